"""What an attempt claims beside the lock: that its slot is free, and that the last run started long enough ago.

Most jobs claim neither, and their processes do not import this.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from django.db.backends.base.base import BaseDatabaseWrapper

from . import history
from .attempts import Attempt, Holder, Row
from .database import aware, clock, storable
from .exceptions import InvalidSlot
from .models import JobRun
from .slots import slot_at


class Earlier(NamedTuple):
    """An earlier run because of which an attempt is skipped."""

    skip_reason: str
    run: Holder

    @property
    def takes_slot(self) -> bool:
        """Whether it took the slot, and did not merely run a short time ago."""
        return self.skip_reason == JobRun.SkipReason.ALREADY_RAN


class Claim:
    """What one attempt claims, at the moment when it is made by the database's clock. One object for each call.

    It tells the attempt which slot its success will take.
    """

    def __init__(self, attempt: Attempt, connection: BaseDatabaseWrapper) -> None:
        self._attempt = attempt
        self._connection = connection
        self._now = clock(connection)
        self.slot = self._find_slot()
        """The slot that the attempt is for, in UTC; None for a job that has none."""
        self._stored = storable(connection, self.slot) if self.slot else None
        attempt.slot = self._stored

    def _find_slot(self) -> datetime | None:
        """Return the slot that is asked for, or else the present one."""
        call = self._attempt.call
        if call.plan is None:
            return None
        present = slot_at(call.plan, self._now)
        if call.slot is not None and call.slot > present:
            raise InvalidSlot(
                f'The job "{call.job}" did not run: its slot of {call.slot.astimezone(call.plan.zone).isoformat()} is '
                "still to come, and would be taken then."
            )
        return call.slot or present

    def look(self, row: Row | None = None) -> Earlier | None:
        """Return the earlier run because of which the attempt is skipped.

        A forced attempt is not skipped; it only takes no slot that is taken. Arguments: `row`, the attempt's own, once
        it has one.
        """
        earlier = self.find_earlier(except_run=row.id if row else 0)
        if earlier is None or not self._attempt.call.force:
            return earlier
        if earlier.takes_slot and self._attempt.slot is not None:
            if row is not None:
                history.give_slot_up(self._connection, row.id)
            self._attempt.slot = None
        return None

    def find_earlier(self, *, except_run: int = 0) -> Earlier | None:
        """Return an earlier run that took the slot, or that started too short a time ago.

        Runs that read "running" do not count: if they hold the lock, that keeps this one from running, and if they do
        not, see `is_in_doubt`.
        """
        call = self._attempt.call
        runs = JobRun.objects.using(self._connection.alias).for_job(call.job).acquired().exclude(pk=except_run)
        ended = runs.exclude(status=JobRun.Status.RUNNING).without_texts()
        if self._stored is not None:
            of_slot = ended.filter(slot=self._stored)
            # A slot is taken by its success, or by any end where there is no retry.
            taker = (of_slot.succeeded() if call.retry else of_slot).first()
            if taker is not None:
                return Earlier(JobRun.SkipReason.ALREADY_RAN.value, _as_holder(taker))
        if call.min_interval is not None:
            last = ended.first()
            # Not one that seems to lie further in the future: the server's clock was wrong, for how long nobody knows.
            if last is not None and abs(self._now - aware(last.started_at)) < call.min_interval:
                return Earlier(JobRun.SkipReason.TOO_SOON.value, _as_holder(last))
        return None

    def is_in_doubt(self, row: Row) -> bool:
        """Whether an older attempt reads "running", although this run has the lock.

        It lost the race for the lock and is about to say so, or it ran, and its failure is not on record yet. That
        matters where a failure counts as well. The younger of two waits for the older, so that one of them runs.
        """
        call = self._attempt.call
        counts_failures = call.min_interval is not None or (self._stored is not None and not call.retry)
        if call.force or not counts_failures:
            return False
        running = JobRun.objects.using(self._connection.alias).running().filter(job=call.job)
        return running.filter(key=row.key, key_is_pair=call.key.is_pair, pk__lt=row.id).exists()


def _as_holder(run: JobRun) -> Holder:
    return Holder(run.pk, run.host, run.pid, run.started_at)
