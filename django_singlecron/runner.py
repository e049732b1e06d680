"""One run of a job, from the attempt to its record, statement by statement."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from django.db import DatabaseError, Error, IntegrityError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from . import announcements, database, history, holders, opening
from .attempts import Attempt, Holder, Opened, Row
from .bodies import call_body
from .calls import Call, Outcome
from .capture import OutputTail
from .conf import get_settings
from .context import Run, RunContext, RunResult, run_context
from .exceptions import ForkedRun, LockLost
from .interrupts import Deadline, KeptFromChildren, SigtermRaises
from .locks import Hold
from .locks.postgres import PostgresLock
from .models import SLOT_CONSTRAINT, JobRun
from .transactions import (
    OpenBlocks,
    block_left_open,
    commits_nothing,
    explain_broken_transaction,
    history_out_of_sight,
    is_busy,
    is_closed,
    lock_lost,
    refuse_outer_transaction,
    roll_back_to_savepoint,
    statement_left_open,
)

if TYPE_CHECKING:
    from .claims import Claim, Earlier

# How long a run waits until it looks again what became of an older attempt.
IN_DOUBT_PAUSE_SECONDS = 0.02


class RaceLost(Exception):
    """Another run took the lock since the probe."""


class SlotTaken(Exception):
    """Another run took the slot since the attempt was made, or ran too short a time ago."""

    def __init__(self, earlier: Earlier | None) -> None:
        super().__init__()
        self.earlier = earlier


class InDoubt(Exception):
    """Another attempt may have run and not said so yet."""


class Runner:
    """A run under its lock, on its own connection. One object for each call."""

    lock = PostgresLock()
    label: str = PostgresLock.label
    waits_for_older = True
    """Whether an older attempt that reads "running" can only be about to end, since this run has the lock."""

    def __init__(self, call: Call, connection: BaseDatabaseWrapper) -> None:
        self.call = call
        self.connection = connection
        self.outer = run_context.get()
        self.tail = OutputTail(get_settings().output_limit)
        self.began = time.monotonic()
        self.lock_was_lost = False
        self.exit: SystemExit | None = None
        self.claim: Claim | None = None
        self.context: RunContext | None = None
        self.attempt = Attempt(call)

    def run(self) -> Outcome:
        if self.connection.in_atomic_block and self.outer:
            same = self.outer.find(self.call.job, self.call.using)
            if same is not None:
                return self._skip_inside_itself(same)
        refuse_outer_transaction(self.connection, self.call.job, self.outer.run if self.outer else None)
        earlier = self._look_for_earlier()
        if earlier is not None:
            return self._skip_for_earlier(earlier)
        opened = self.open()
        if not opened.acquired:
            return self._skipped(opened)
        self.row = cast("Row", opened.row)
        try:
            if opened.holders:
                self.mark_lost()
            value = self._run_under_lock()
        except RaceLost:
            return self._skipped_after_probe()
        except SlotTaken as taken:
            self._restore_inner_attempts()
            return self._skipped_after_all(taken.earlier or self._find_taker())
        except BaseException as error:
            # SystemExit, KeyboardInterrupt and CancelledError end a run as any error does.
            self._record_end(error)
            raise
        self._restore_inner_attempts()
        announcements.succeeded(cast("RunContext", self.context).run, time.monotonic() - self.began)
        if self.exit is not None:
            raise self.exit
        return Outcome(RunResult("acquired", value=value, run_id=self.row.id))

    def _run_under_lock(self) -> Any:
        """Steps 2 to 5; from the start again while an older attempt may have run and not said so."""
        while True:
            try:
                with KeptFromChildren(self.connection), transaction.atomic(using=self.call.using, durable=True):
                    self.hold()
                    self.context = self._make_context()
                    self._look_again()
                    return self._run_job(self.context)
            except InDoubt:
                # The lock is let go meanwhile: the other attempt may be about to take it.
                self.context = None
                time.sleep(IN_DOUBT_PAUSE_SECONDS)
                self.mark_lost()

    def _look_for_earlier(self) -> Earlier | None:
        """Ask the database's clock for the slot, and whether an earlier run did what this one would do.

        For tasks with slots or a least interval alone: others send nothing before step 1.
        """
        if self.call.plan is None and self.call.min_interval is None:
            return None
        from .claims import Claim

        self.refresh_connection()
        try:
            self.claim = Claim(self.attempt, self.connection)
            return self.claim.look()
        except Error as error:
            raise database.refusal(error, self.call.job, self.call.using) from error

    @property
    def slot(self) -> datetime | None:
        """The slot that the attempt is for; None for a job that has none."""
        return self.claim.slot if self.claim else None

    # The steps, in their order. What differs in a TestCase or without a lock is overridden elsewhere.

    def open(self) -> Opened:
        """Step 1: probe the lock and record the attempt, in one statement."""
        self.refresh_connection()
        return opening.open_attempt(self.connection, self.attempt, self.lock)

    def refresh_connection(self) -> None:
        """Do as Django at the start of a request: a scheduler's thread may have kept a connection that is stale now.

        Not where connections last one request (`CONN_MAX_AGE` 0, the default): each call of a job would open another.
        Should that one be dead, the first statement is sent again on a new one. Nor in a TestCase's transaction.
        """
        if self.connection.settings_dict["CONN_MAX_AGE"] != 0 and not self.connection.in_atomic_block:
            self.connection.close_if_unusable_or_obsolete()

    def mark_lost(self) -> None:
        """Put earlier runs right that still read "running" although nobody holds their key."""
        for job, holder in history.mark_lost(self.connection, self.row, self.call.key):
            announcements.lost(job, holder, self.call.using)

    def hold(self) -> None:
        """Step 2: set the transaction up, take the real lock, and set a savepoint for the job."""
        hold = Hold(self.row.id, self.call.job, self.call.timeout)
        if not history.begin_run(self.connection, self.attempt, self.lock.acquire(self.call.key, hold)):
            raise RaceLost

    def draw_token(self) -> Callable[[], int] | None:
        """What draws the run's token; None where there is none."""
        return partial(history.draw_token, self.connection, self.row.id)

    def _look_again(self) -> None:
        """Step 3: ask again for an earlier run, in a statement that is younger than the lock and sees all before it."""
        if self.claim is None:
            return
        # Asked first: an end that is recorded between the two is seen by the second.
        if self.waits_for_older and self.claim.is_in_doubt(self.row):
            raise InDoubt
        earlier = self.claim.look(self.row)
        if earlier is not None:
            raise SlotTaken(earlier)

    def mark_succeeded(self, run: Run) -> None:
        """Step 5: write the success mark in the job's transaction, if that still holds the lock."""
        if self.connection.closed_in_transaction:
            raise lock_lost(run, "closed its database connection")
        output = self.tail.text()
        token = run.token_if_drawn
        try:
            marked = history.mark_succeeded(self.connection, self.row, output, token)
            if marked is None and not history.holds(self.connection, run.id):
                raise lock_lost(run, "ended the transaction by a raw COMMIT or ROLLBACK")
            if marked is None and not history.sees_table(self.connection, self.row):
                raise history_out_of_sight(run)
            if marked is None:
                history.recreate(self.connection, self.attempt, self.row, lock=self.label)
                marked = history.mark_succeeded(self.connection, self.row, output, token)
            run.end(marked[0] if marked else None)
        except DatabaseError as error:
            explain_broken_transaction(run, error)
            raise

    def still_holds(self, run: Run) -> bool:
        """Whether the run's transaction still has its lock."""
        return not self.is_broken() and history.holds(self.connection, run.id)

    def sees_history(self) -> bool:
        """Whether search_path still leads to the history that the run is in: another schema may have one of its own."""
        return history.sees_table(self.connection, self.row)

    def is_broken(self) -> bool:
        """Whether the run's transaction can only be rolled back, or is gone with its connection."""
        return self.connection.closed_in_transaction or self.connection.needs_rollback

    def deadline(self) -> Deadline | None:
        """The watch over the task's timeout."""
        if self.call.timeout is None:
            return None
        return Deadline(self.call.job, self.call.timeout, self.connection)

    def _make_context(self) -> RunContext:
        slot = self.slot.astimezone(self.call.plan.zone) if self.slot and self.call.plan else None
        row, call = self.row, self.call
        run = Run(row.id, call.job, row.key, row.started_at, call.using, slot, self.draw_token())
        if call.is_async:
            # A coroutine could not ask for it later: the connection is another thread's.
            _ = run.token
        return RunContext(run, self.outer, self.tail, [])

    def _run_job(self, context: RunContext) -> Any:
        """Steps 4 and 5: the job and its success mark."""
        deadline = self.deadline()
        blocks = OpenBlocks(self.connection)
        with SigtermRaises(), deadline or nullcontext():
            try:
                heard = announcements.acquired(context.run)
                if heard and not (blocks.are_as_before() and self.still_holds(context.run)):
                    raise lock_lost(context.run, "had a receiver of run_acquired that ended or left open a transaction")
                if self.call.on_acquired is not None:
                    self.call.on_acquired(self.row.id)
                value, self.exit = call_body(self.call, context, deadline)
                if os.getpid() != self.attempt.pid:
                    raise ForkedRun(
                        f'A process that the job "{self.call.job}" forked came back out of it. End it with '
                        "os._exit(), or use subprocess or multiprocessing."
                    )
                if blocks.has_more():
                    raise block_left_open(context.run)
                if is_busy(self.connection):
                    raise statement_left_open(context.run)
                try:
                    self.mark_succeeded(context.run)
                except IntegrityError as error:
                    # It holds even where the lock did not.
                    if self.attempt.slot is not None and database.violates(error, SLOT_CONSTRAINT):
                        raise SlotTaken(None) from error
                    raise
            except BaseException:
                blocks.forget_more()
                timed_out = deadline is not None and deadline.passed
                # In the middle of a statement the connection takes no other, not even ROLLBACK while a stream holds it.
                if is_busy(self.connection):
                    self.connection.close()
                elif not timed_out:
                    # Should the way back be broken off, nobody knows what was committed.
                    self.lock_was_lost = True
                    rolled_back = roll_back_to_savepoint(self.connection)
                    # No savepoint, on a connection that works: the job ended the transaction, or released what kept its
                    # errors from the lock. Nobody knows then how long it had that.
                    self.lock_was_lost = not rolled_back and not is_closed(self.connection)
                raise
        return value

    def _record_end(self, error: BaseException) -> None:
        """Step 6: record how the run ended. Never raises, so that the job's own error comes out."""
        if os.getpid() != self.attempt.pid:
            return
        lost = self.lock_was_lost or isinstance(error, LockLost)
        status = JobRun.Status.LOST if lost else JobRun.Status.FAILED
        try:
            if commits_nothing(self.connection):
                # As an on_commit hook left it.
                self.connection.close()
            token = self.context.run.token_if_drawn if self.context else None
            if self.context:
                self.context.run.end(token)
            mark = partial(history.mark_ended, self.connection, self.row, status, error, self.tail.text(), token)
            ended = mark()
            if ended is None and self.sees_history():
                history.recreate(self.connection, self.attempt, self.row, lock=self.label)
                ended = mark()
            elif ended is None:
                # A hook left search_path changed. A new session has what the project says.
                self.connection.close()
                ended = mark()
            if ended is None:
                raise LookupError(f"search_path leads to another history than that of the run {self.row.id}.")
            status = ended
        except Exception:
            announcements.not_recorded(self.call.job, self.row.id, 'Its end could not be; it will read "lost".')
        self._restore_inner_attempts()
        announcements.ended(self.call.job, self.row.id, self.call.using, status, error, time.monotonic() - self.began)

    def _restore_inner_attempts(self) -> None:
        """Write the skipped calls of the job from within itself again, where a rollback took them away."""
        if self.context is None or not self.context.inner_attempts:
            return
        try:
            history.restore(self.connection, cast("list[JobRun]", self.context.inner_attempts))
        except Exception:
            announcements.not_recorded(
                self.call.job, self.row.id, "The calls that it skipped inside itself could not be."
            )

    def _skipped(self, opened: Opened) -> Outcome:
        if opened.row is None:
            return self._skip(None, opened.holders[0] if opened.holders else None, JobRun.SkipReason.LOCKED)
        holder = holders.plain_holder(opened.row, opened.holders)
        if holder is None:
            holder = holders.find(self.connection, self.attempt, opened.row, opened.holders)
        if opened.row.held_by != (holder.run_id if holder else None):
            history.name_holder(self.connection, opened.row, holder)
        return self._skip(opened.row.id, holder, JobRun.SkipReason.LOCKED)

    def _skipped_after_probe(self) -> Outcome:
        holder = holders.find(self.connection, self.attempt, self.row)
        history.mark_skipped(self.connection, self.row, self.attempt, holder)
        return self._skip(self.row.id if self.call.record_skips else None, holder, JobRun.SkipReason.LOCKED)

    def _skip_for_earlier(self, earlier: Earlier) -> Outcome:
        run_id = None
        if self.call.record_skips:
            row = opening.record_attempt(
                self.connection,
                self.attempt,
                lock=self.label,
                key=None,
                skip_reason=earlier.skip_reason,
                held_by=earlier.run.run_id,
            )
            run_id = row.pk
        return self._skip(run_id, earlier.run, earlier.skip_reason)

    def _find_taker(self) -> Earlier | None:
        """Say that the work is rolled back, and return the run whose success took the slot meanwhile."""
        announcements.rolled_back(self.call.job, self.row.id)
        return cast("Claim", self.claim).find_earlier(except_run=self.row.id)

    def _skipped_after_all(self, earlier: Earlier | None) -> Outcome:
        """Turn the attempt into a skip; another run's success took its slot, or it came too soon after another."""
        reason = earlier.skip_reason if earlier else JobRun.SkipReason.ALREADY_RAN.value
        taker = earlier.run if earlier else None
        history.mark_skipped(
            self.connection, self.row, self.attempt, taker, skip_reason=reason, output=self.tail.text()
        )
        return self._skip(self.row.id if self.call.record_skips else None, taker, reason)

    def _skip_inside_itself(self, same: RunContext) -> Outcome:
        """Skip a call of the job from within itself: PostgreSQL would grant the session its own lock again."""
        holder = Holder(same.run.id, self.attempt.host, self.attempt.pid, same.run.started_at)
        if not self.call.record_skips:
            return self._skip(None, holder, JobRun.SkipReason.LOCKED)
        row = opening.record_attempt(
            self.connection,
            self.attempt,
            lock=self.label,
            key=same.run.key,
            skip_reason=JobRun.SkipReason.LOCKED,
            held_by=same.run.id,
        )
        same.inner_attempts.append(row)
        return self._skip(row.pk, holder, JobRun.SkipReason.LOCKED)

    def _skip(self, run_id: int | None, holder: Holder | None, reason: str) -> Outcome:
        reason = str(reason)
        explain = partial(announcements.describe_skip, reason, holder, self.slot)
        announcements.skipped(self.call, run_id, holder, reason, explain)
        result: RunResult[Any] = RunResult(
            "skipped",
            skip_reason=reason,
            held_by=holder.run_id if holder else None,
            run_id=run_id,
        )
        return Outcome(result, explain)
