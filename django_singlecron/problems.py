"""What is wrong with the jobs: late, missed, failing, lost, running too long, locked by nobody's run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timedelta
from enum import Enum, IntEnum
from typing import NamedTuple

from . import ledger, monitoring
from .database import aware
from .ledger import Expectation, Fate, Found
from .locks.postgres import APPLICATION_NAME_PREFIX
from .models import JobRun
from .overview import Job, Overview

# A job that is known from the history alone, or under a name with arguments, is taken for gone after that time without
# an attempt: a tenant that left, a command that is not scheduled any more.
FORGOTTEN_AFTER = timedelta(days=31)


class Severity(IntEnum):
    """The exit codes that Nagios and its kin know."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


class Kind(Enum):
    """What can be wrong with a job."""

    LATE = "late"
    MISSED = "missed"
    RUNNING_TOO_LONG = "running_too_long"
    ORPHANED_LOCK = "orphaned_lock"
    FAILING = "failing"
    LOST = "lost"
    REPEATED = "repeated"

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        bad = (Kind.FAILING, Kind.LOST, Kind.REPEATED)
        return Severity.CRITICAL if self in bad else Severity.WARNING


class Problem(NamedTuple):
    """One thing that is wrong with one job."""

    job: str
    kind: Kind
    text: str
    since: datetime
    run_id: int | None = None

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        return self.kind.severity


Slots = Mapping[tuple[str, datetime], Found]


def is_forgotten(job: Job, now: datetime) -> bool:
    """Whether a job that is not known by name was attempted so long ago that it is taken for gone."""
    if job.past is None or (job.task is not None and not job.task.has_placeholders):
        return False
    patience = FORGOTTEN_AFTER
    if job.plan is not None:
        # What is due each month shall be missed for a month before it is forgotten.
        slots = job.plan.since(job.past.attempted_at)
        slot, following = next(slots), next(slots)
        patience += following - slot
    return now - job.past.attempted_at > patience


def wanted_slots(expectations: Collection[Expectation], now: datetime) -> set[tuple[str, datetime]]:
    """Return the slots by which the jobs are judged: the newest, and the newest whose grace is over."""
    dues = [
        (expected.job, due) for expected in expectations for due in (expected.newest(now), expected.newest_over(now))
    ]
    return {(job, due.slot) for job, due in dues if due}


def of_job(job: Job, expected: Expectation | None, slots: Slots, seen: Overview, failures: int) -> Iterator[Problem]:
    """Yield what is wrong with a job, but for its lock. Pure.

    Arguments: `slots`, what was found of its `wanted_slots`; `failures`, how many runs in a row must have failed.
    """
    if expected is not None:
        yield from _of_schedule(job, expected, slots, seen)
    last = job.last
    if last is not None and last.status == JobRun.Status.LOST:
        text = f"run {last.id} on {last.host}, started {_readable(last.started_at, job)}, was lost"
        yield Problem(job.name, Kind.LOST, text, last.started_at, last.id)
    elif last is not None and job.failures >= failures:
        runs = "the last run" if job.failures == 1 else f"the last {job.failures} runs"
        text = f"{runs} failed; run {last.id} on {last.host} at {_readable(last.started_at, job)}: {last.error}"
        yield Problem(job.name, Kind.FAILING, text, last.finished_at or last.started_at, last.id)
    limit = job.task.options.max_duration if job.task else None
    run = job.running
    if limit is not None and run is not None and seen.live.at - aware(run.started_at) > limit:
        text = f"run {run.pk} on {run.host} (pid {run.pid}) has been running since {_readable(run.started_at, job)}"
        yield Problem(job.name, Kind.RUNNING_TOO_LONG, text, aware(run.started_at) + limit, run.pk)


def _of_schedule(job: Job, expected: Expectation, slots: Slots, seen: Overview) -> Iterator[Problem]:
    now = seen.live.at
    newest, over = expected.newest(now), expected.newest_over(now)
    entries = {due.slot: ledger.settle(due, slots[job.name, due.slot], now, seen.lost) for due in (over, newest) if due}
    for entry in entries.values():
        if entry.fate is Fate.REPEATED:
            text = f"its slot of {_readable(entry.due.slot, job)} succeeded more than once: is its unique index there?"
            yield Problem(job.name, Kind.REPEATED, text, entry.due.slot, entry.run_id)
    attempted_since = over and job.past and job.past.last_slot and job.past.last_slot > over.slot
    if over and not attempted_since and entries[over.slot].fate is Fate.MISSED:
        text = f"nothing ran for its slot of {_readable(over.slot, job)}"
        yield Problem(job.name, Kind.MISSED, text, over.missed_from)
    if newest and entries[newest.slot].fate is Fate.DUE and now > newest.late_from:
        text = f"due {_readable(newest.slot, job)}, and nothing has run yet"
        yield Problem(job.name, Kind.LATE, text, newest.late_from)


def of_locks(seen: Overview) -> list[Problem]:
    """Return a problem for each lock of a job's that no run accounts for.

    What seems to be one is looked at again: the run may have ended between the look at the locks and that at the runs.
    """
    first = _unaccounted(seen, seen.live, seen.running)
    if not first:
        return []
    live = monitoring.look(seen.using) or seen.live
    running = list(JobRun.objects.using(seen.using).running().filter(key__in=[key for key, _ in first]))
    again = _unaccounted(seen, live, running)
    return [again[lock] for lock in first if lock in again and live.pids[lock] == seen.live.pids[lock]]


def _unaccounted(seen: Overview, live: monitoring.Live, running: Collection[JobRun]) -> dict[tuple[int, bool], Problem]:
    accounted = {(run.key, run.key_is_pair) for run in running if run.status == JobRun.Status.RUNNING}
    known = {(job.past.key, job.past.key_is_pair): job.name for job in seen.jobs if job.past}
    problems = {}
    for lock, name in live.holders.items():
        is_run = name.startswith(APPLICATION_NAME_PREFIX)
        if lock in accounted or not (lock in known or is_run):
            continue
        job = known.get(lock) or name.partition(" ")[2]
        text = f'its lock is held by no run on record, but by the server process {live.pids[lock]}, named "{name}"'
        problems[lock] = Problem(job, Kind.ORPHANED_LOCK, text, seen.live.at)
    return problems


def _readable(moment: datetime, job: Job) -> str:
    return f"{moment.astimezone(job.zone):%Y-%m-%d %H:%M %Z}"
