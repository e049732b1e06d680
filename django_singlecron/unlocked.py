"""Runs that hold no lock of their own: without locking, and inside a TestCase."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from django.db import DatabaseError, transaction

from . import history, opening
from .attempts import Opened, Row
from .context import Run
from .database import Sql, fetch_all
from .interrupts import Deadline
from .locks.postgres import PostgresLock
from .models import JobRun
from .runner import RaceLost, Runner
from .transactions import explain_broken_transaction, lock_lost, renew_savepoint, set_savepoint

T = TypeVar("T")

logger = logging.getLogger("django_singlecron")


class UnlockedRunner(Runner):
    """A run without a lock, for development where there is none: said in the log and on the row."""

    label = JobRun.LockKind.NONE.value
    waits_for_older = False

    def open(self) -> Opened:
        self.refresh_connection()
        logger.warning(
            'Job "%s" runs without a lock, since SINGLECRON["LOCKING"] is False. Another replica may run it as well.',
            self.call.job,
        )
        row = opening.record_attempt(self.connection, self.attempt, lock=self.label, key=None)
        return Opened(True, Row(row.pk, None, row.started_at))

    def hold(self) -> None:
        set_savepoint(self.connection)

    def draw_token(self) -> Callable[[], int] | None:
        return None

    def still_holds(self, run: Run) -> bool:
        return not self.is_broken()

    def mark_succeeded(self, run: Run) -> None:
        try:
            renew_savepoint(self.connection)
        except DatabaseError as error:
            explain_broken_transaction(run, error)
            raise lock_lost(run, "closed its database connection or sent a raw COMMIT or ROLLBACK") from error
        try:
            history.mark_succeeded_unlocked(self.connection, run.id, self.tail.text(), run.token)
        except DatabaseError as error:
            explain_broken_transaction(run, error)
            raise

    def sees_history(self) -> bool:
        return True

    def deadline(self) -> Deadline | None:
        if self.call.timeout is None:
            return None
        return Deadline(self.call.job, self.call.timeout, None)


class TestCaseRunner(UnlockedRunner):
    """A run inside a TestCase's transaction: the lock is tried, and let go at once so that the test can go on.

    The connection belongs to the test, so it is neither given limits nor shut down.
    """

    label = PostgresLock.label

    def open(self) -> Opened:
        key_sql, probe_sql = self.lock.key(self.call.key), self.lock.probe(self.call.key)
        statement = Sql(f"SELECT {key_sql.text}, {probe_sql.text}", [*key_sql.parameters, *probe_sql.parameters])
        key, free = self._try(lambda: history.try_lock(self.connection, statement))
        if not free and not self.call.record_skips:
            return Opened(False, None)
        skip_reason = "" if free else JobRun.SkipReason.LOCKED.value
        row = opening.record_attempt(self.connection, self.attempt, lock=self.label, key=key, skip_reason=skip_reason)
        return Opened(free, Row(row.pk, key, row.started_at))

    def hold(self) -> None:
        statement = self.lock.try_exclusive(self.call.key)
        if not self._try(lambda: fetch_all(self.connection, statement))[0][0]:
            raise RaceLost
        super().hold()

    def draw_token(self) -> Callable[[], int] | None:
        return partial(history.draw_token_without_lock, self.connection)

    def _try(self, query: Callable[[], T]) -> T:
        """Return what `query` gives, and take back what it did: a savepoint's locks and settings go with it."""
        with transaction.atomic(using=self.call.using):
            answer = query()
            transaction.set_rollback(True, using=self.call.using)
        return answer
