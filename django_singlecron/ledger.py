"""The ledger: what became of each slot in which a scheduled job was expected to run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import NamedTuple

from django.db import connections

from .database import aware
from .models import JobRun
from .slots import TOLERANCE, TOLERANCE_SHARE, Schedule

# How long after its due time a slot may stay without a run, unless the task says: an hour, or half its period.
GRACE = timedelta(hours=1)
GRACE_SHARE = 2

_MOMENT = timedelta(microseconds=1)

# One seek in an index for each answer on each slot, whatever the number of attempts. The run that shows for a slot is
# the one that succeeded, or else the newest. Where nothing is on record, the job's newest run that began before tells
# whether it was still going on then: the attempts that it kept from running may have left no row.
_FIND = """
SELECT wanted.job, wanted.slot, shown.id, shown.status, coalesce(success.count, 0), skip.skip_reason, busy.id
FROM unnest(%s::text[], %s::timestamptz[]) AS wanted (job, slot)
LEFT JOIN LATERAL (
    SELECT run.id, run.status FROM django_singlecron_jobrun AS run
    WHERE run.job = wanted.job AND run.slot = wanted.slot AND run.outcome = 'acquired'
    ORDER BY run.status = 'succeeded' DESC, run.id DESC LIMIT 1
) AS shown ON true
LEFT JOIN LATERAL (
    SELECT count(*) FROM django_singlecron_jobrun AS run
    WHERE run.job = wanted.job AND run.slot = wanted.slot AND run.outcome = 'acquired' AND run.status = 'succeeded'
) AS success ON shown.status = 'succeeded'
LEFT JOIN LATERAL (
    SELECT run.id, run.skip_reason FROM django_singlecron_jobrun AS run
    WHERE run.job = wanted.job AND run.slot = wanted.slot AND run.outcome = 'skipped' AND shown.id IS NULL
    ORDER BY run.id DESC LIMIT 1
) AS skip ON true
LEFT JOIN LATERAL (
    SELECT run.id, run.finished_at FROM django_singlecron_jobrun AS run
    WHERE run.job = wanted.job AND run.outcome = 'acquired' AND run.started_at <= wanted.slot
      AND shown.id IS NULL AND skip.id IS NULL
    ORDER BY run.job, run.id DESC LIMIT 1
) AS busy ON busy.finished_at IS NULL OR busy.finished_at >= wanted.slot
"""


class Fate(Enum):
    """What became of a slot."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LOST = "lost"
    RUNNING = "running"
    SKIPPED = "skipped"
    """Nothing was acquired, and an attempt says why."""
    MISSED = "missed"
    """Nothing was acquired within the grace."""
    DUE = "due"
    """Nothing was acquired yet, within the grace."""
    REPEATED = "repeated"
    """More than one run succeeded, which the unique index forbids: it is broken or gone."""


_FATES = {
    JobRun.Status.SUCCEEDED.value: Fate.SUCCEEDED,
    JobRun.Status.FAILED.value: Fate.FAILED,
    JobRun.Status.LOST.value: Fate.LOST,
    JobRun.Status.RUNNING.value: Fate.RUNNING,
}


class Due(NamedTuple):
    """A slot, and when having nothing to show for it means something."""

    slot: datetime
    late_from: datetime
    """From here on a replica's clock is no excuse."""
    missed_from: datetime
    """The end of the grace."""


class Found(NamedTuple):
    """What the history holds of a slot."""

    run_id: int | None = None
    """The run that succeeded, or else the newest that was acquired."""
    status: str = ""
    successes: int = 0
    skip_reason: str | None = None
    """Of the newest skip, when nothing was acquired."""
    busy_id: int | None = None
    """A run of the job that was going on when the slot was due, when nothing else is on record."""


class Entry(NamedTuple):
    """One line of the ledger."""

    due: Due
    fate: Fate
    run_id: int | None = None
    reason: str = ""
    """Why it was skipped, one of `JobRun.SkipReason`."""


@dataclass(frozen=True)
class Expectation:
    """A job that is to run in each slot of a schedule."""

    job: str
    plan: Schedule
    grace: timedelta | None
    since: datetime
    """The first moment whose slot counts."""

    def dues(self, since: datetime, until: datetime) -> Iterator[Due]:
        """Yield the expected slots from `since` to `until`, both included, in order."""
        slots = self.plan.since(max(since, self.since))
        slot, following = next(slots), next(slots)
        while slot <= until:
            if slot >= max(since, self.since):
                yield self._due(slot, following)
            slot, following = following, next(slots)

    def newest(self, now: datetime) -> Due | None:
        """Return the newest slot that is due at `now`; None when none is expected yet."""
        slots = self.plan.since(now)
        return self._if_expected(self._due(next(slots), next(slots)))

    def newest_over(self, now: datetime) -> Due | None:
        """Return the newest slot whose grace has ended at `now`; None when none is expected yet."""
        slots = self.plan.since(now if self.grace is None else now - self.grace)
        due = self._due(next(slots), next(slots))
        if due.missed_from > now:
            due = self._due(next(self.plan.since(due.slot - _MOMENT)), due.slot)
        return self._if_expected(due)

    def _due(self, slot: datetime, following: datetime) -> Due:
        period = following - slot
        grace = min(GRACE, period / GRACE_SHARE) if self.grace is None else self.grace
        return Due(slot, slot + min(TOLERANCE, period / TOLERANCE_SHARE), slot + grace)

    def _if_expected(self, due: Due) -> Due | None:
        return due if due.slot >= self.since else None


def settle(due: Due, found: Found, now: datetime, lost: Collection[int] = ()) -> Entry:
    """Say what became of a slot. Pure.

    Arguments: `found`, what the history holds of it; `lost`, the runs that were killed and still read "running".
    """
    if found.successes > 1:
        return Entry(due, Fate.REPEATED, found.run_id)
    if found.run_id is not None:
        return Entry(due, Fate.LOST if found.run_id in lost else _FATES[found.status], found.run_id)
    if found.skip_reason is not None:
        return Entry(due, Fate.SKIPPED, None, found.skip_reason)
    if found.busy_id is not None and found.busy_id not in lost:
        return Entry(due, Fate.SKIPPED, None, JobRun.SkipReason.LOCKED.value)
    return Entry(due, Fate.MISSED if now >= due.missed_from else Fate.DUE)


def find(using: str, wanted: Collection[tuple[str, datetime]]) -> dict[tuple[str, datetime], Found]:
    """Return what the history of the database `using` holds of each of the slots, given with their jobs. One query."""
    if not wanted:
        return {}
    jobs, slots = zip(*wanted, strict=True)
    with connections[using].cursor() as cursor:
        cursor.execute(_FIND, [list(jobs), list(slots)])
        return {
            (job, aware(slot)): Found(run, status or "", *more) for job, slot, run, status, *more in cursor.fetchall()
        }


def read(
    using: str,
    expectations: Iterable[Expectation],
    since: datetime,
    now: datetime,
    lost: Collection[int] = (),
) -> Mapping[str, Sequence[Entry]]:
    """Return the ledger of each job from `since` to `now`, the oldest slot first. One query.

    Arguments: `expectations` of the database `using`; `lost`, see `settle`.
    """
    dues = {expected.job: list(expected.dues(since, now)) for expected in expectations}
    found = find(using, [(job, due.slot) for job, of_job in dues.items() for due in of_job])
    return {job: [settle(due, found[job, due.slot], now, lost) for due in of_job] for job, of_job in dues.items()}
