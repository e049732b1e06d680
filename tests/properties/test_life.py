"""A model of one job's life, held against the real thing after each step: replicas, lock, rows, slots and work."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

import pytest
from django.db import connection
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from django_singlecron import RunResult
from django_singlecron.models import JobRun
from django_singlecron.testing import hold_lock
from testproject.billing.models import Tenant
from tests.properties.replica import Replica
from tests.support.deadlines import wait_until
from tests.support_core import job, real_database, session, written

EXAMPLES, STEPS = (100, 50) if os.environ.get("FULL_SIZE") else (25, 30)

SLOTS = [datetime(2026, 11, day, 2, tzinfo=timezone.utc) for day in range(1, 29)]

# How a run ends, by what it has done to its lock before and how its body ends. Whatever is not here has succeeded.
ENDS = {
    ("holds", "raise"): "failed",
    ("holds", "swallow"): "failed",
    ("holds", "exit 3"): "failed",
    ("killed", "return"): "failed",
    ("killed", "raise"): "failed",
    ("killed", "exit 3"): "failed",
    ("closed", "return"): "lost",
    ("closed", "raise"): "failed",
    ("closed", "exit 3"): "failed",
    ("ended", "return"): "lost",
    ("ended", "raise"): "lost",
    ("ended", "exit 3"): "lost",
}
# The job raises, or what it did is found out when it returns.
RAISES = {("holds", "exit 0"), *ENDS}

HOLDERS = """
SELECT count(*) FROM pg_locks
WHERE locktype = 'advisory' AND mode = 'ExclusiveLock'
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


@dataclass(frozen=True)
class Row:
    """What the history is to say of an attempt."""

    status: str
    slot: datetime | None
    forced: bool = False
    skip_reason: str = ""
    held_by: int | None = None

    @property
    def has_ended(self) -> bool:
        return self.status in ("succeeded", "failed", "lost")


@dataclass
class Body:
    """A replica that is in the job's body."""

    run: int
    slot: datetime | None
    """The slot that its success takes."""
    row: Row
    """Its row as it is until its end, wherever that is."""
    lock: str = "holds"
    """What became of its lock: "holds", "killed", "closed", or "ended" by a statement of its own."""
    inner: dict[int, Row] = field(default_factory=dict)
    """The calls of the job from within itself, which nobody else sees yet."""


class Life(RuleBasedStateMachine):
    """One job, three replicas, and whoever interferes with them."""

    def __init__(self) -> None:
        super().__init__()
        self.replicas = [Replica(number) for number in range(3)]
        self.bodies: dict[int, Body] = {}
        self.rows: dict[int, Row] = {}
        self.work: set[str] = set()
        self.now = 0
        self.outsider = False
        self.outsiders = ExitStack()

    @initialize(retry=st.booleans(), record_skips=st.booleans())
    def decorate(self, retry: bool, record_skips: bool) -> None:
        options = {"schedule": "0 2 * * *", "timezone": "UTC", "retry": retry, "record_skips": record_skips}
        self.task = job(Replica.body, "life", **options)
        self.retry, self.record_skips = retry, record_skips

    def teardown(self) -> None:
        for number in list(self.bodies):
            self.end_body(number, "raise")
        self.outsiders.close()
        for replica in self.replicas:
            replica.end()
        JobRun.objects.all().delete()
        Tenant.objects.all().delete()

    # What happens. It is one rule, since Hypothesis would leave some of several out of each life.

    @rule(data=st.data())
    def something_happens(self, data: st.DataObject) -> None:
        happening = data.draw(st.sampled_from([name for name, times in self.possible() for _ in range(times)]))
        getattr(self, happening)(data)

    def possible(self) -> list[tuple[str, int]]:
        """What may happen next, and how likely."""
        holds = self.holder() is not None
        return [
            ("attempt", 8 * (len(self.bodies) < len(self.replicas))),
            ("end", 8 * bool(self.bodies)),
            ("call_from_within", 2 * holds),
            ("kill_the_session", holds),
            ("close_the_connection", holds),
            # Where each end counts, others wait ten seconds for the end of a run that goes on without its lock.
            ("end_the_transaction", holds and self.retry),
            ("delete_a_row", bool(self.deletable())),
            ("move_on_to_the_next_slot", 2 * (self.now < len(SLOTS) - 1)),
            ("let_somebody_else_take_the_lock", not self.outsider and not holds),
            ("let_go", 4 * bool(self.outsider)),
        ]

    def attempt(self, data: st.DataObject) -> None:
        force, earlier = data.draw(st.sampled_from([False, False, True])), data.draw(st.sampled_from([0, 0, 0, 1]))
        number = data.draw(st.sampled_from([n for n in range(3) if n not in self.bodies]))
        slot = SLOTS[max(self.now - earlier, 0)]
        taker = self.taker(slot)
        if taker and not force:
            self.expect_skip(self.call(number, slot, force), Row("skipped", slot, False, "already_ran", taker))
            return
        row = Row("running", None if taker else slot, force)
        holder = self.holder()
        if self.outsider or holder:
            result = self.call(number, slot, force)
            held_by = holder.run if holder and holder.run in self.rows else None
            self.expect_skip(result, replace(row, status="skipped", skip_reason="locked", held_by=held_by))
            return
        # The runs whose sessions are gone are found out, and have ended then.
        dead = {body.run for body in self.bodies.values() if body.lock in ("killed", "closed")} & set(self.rows)
        self.rows |= {run: replace(self.rows[run], status="lost") for run in dead}
        late_taker = self.taker(slot)
        result = self.call(number, slot, force)
        if late_taker and not force:
            self.expect_skip(result, replace(row, status="skipped", skip_reason="already_ran", held_by=late_taker))
            return
        assert result is None
        run = self.replicas[number].run_id
        self.rows[run] = row
        self.bodies[number] = Body(run, None if late_taker else row.slot, row)

    def end(self, data: st.DataObject) -> None:
        how = data.draw(st.sampled_from(["return", "return", "raise", "raise", "swallow", "exit 0", "exit 3"]))
        number = data.draw(st.sampled_from(sorted(self.bodies)))
        if self.bodies[number].lock != "holds" and how in ("swallow", "exit 0"):
            how = "return"
        self.end_body(number, how)

    def kill_the_session(self, _: st.DataObject) -> None:
        number, body = self.holding()
        with session() as other:
            assert other.one("SELECT pg_terminate_backend(%s, 10000)", self.replicas[number].backend_pid)
        body.lock = "killed"

    def close_the_connection(self, _: st.DataObject) -> None:
        number, body = self.holding()
        self.replicas[number].act("close")
        pid = self.replicas[number].backend_pid
        with session() as other:
            gone = "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = %s"
            wait_until(lambda: other.one(gone, pid), what="the end of the session")
        body.lock = "closed"

    def end_the_transaction(self, data: st.DataObject) -> None:
        statement = data.draw(st.sampled_from(["commit", "rollback"]))
        number, body = self.holding()
        self.replicas[number].act(statement)
        body.lock = "ended"
        if statement == "commit":
            self.work.add(f"run {body.run}")
            self.rows |= body.inner
            body.inner.clear()

    def call_from_within(self, _: st.DataObject) -> None:
        number, body = self.holding()
        result = self.call(number, SLOTS[self.now], False)
        assert result is not None
        assert (result.ran, result.skip_reason, result.held_by) == (False, "locked", body.run)
        assert (result.run_id is not None) == self.record_skips
        if result.run_id is not None:
            body.inner[result.run_id] = Row("skipped", None, False, "locked", body.run)

    def delete_a_row(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(self.deletable()))
        JobRun.objects.filter(pk=run).delete()
        del self.rows[run]
        # Django's own rule for what refers to a deleted row.
        self.rows |= {id_: replace(row, held_by=None) for id_, row in self.rows.items() if row.held_by == run}

    def move_on_to_the_next_slot(self, _: st.DataObject) -> None:
        self.now += 1

    def let_somebody_else_take_the_lock(self, _: st.DataObject) -> None:
        self.outsiders.enter_context(self.as_outsider())

    def let_go(self, _: st.DataObject) -> None:
        self.outsiders.close()

    # What holds after each step

    @invariant()
    def the_history_says_what_happened(self) -> None:
        found = {
            run.pk: Row(run.status, run.slot, run.forced, run.skip_reason, run.held_by_id)
            for run in JobRun.objects.all()
        }
        assert found == self.rows
        for run in JobRun.objects.all():
            assert (run.finished_at is None) == (run.status == "running")
            assert (run.outcome == "skipped") == (run.status == "skipped")

    @invariant()
    def work_is_there_when_its_run_succeeded_or_committed_it_itself(self) -> None:
        assert set(written()) == self.work

    @invariant()
    def the_lock_is_held_once_or_not_at_all(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute(HOLDERS)
            assert cursor.fetchone() == (1 if self.holder() or self.outsider else 0,)

    @invariant()
    def a_slot_is_taken_once(self) -> None:
        taken = [row.slot for row in self.rows.values() if row.status == "succeeded" and row.slot]
        assert len(taken) == len(set(taken))

    # The model's own means and questions

    @contextmanager
    def as_outsider(self) -> Iterator[None]:
        with hold_lock("life"):
            self.outsider = True
            yield
        self.outsider = False

    def call(self, number: int, slot: datetime, force: bool) -> RunResult[None] | None:
        return self.replicas[number].call(self.task, slot, force)

    def holding(self) -> tuple[int, Body]:
        [(number, body)] = [(number, body) for number, body in self.bodies.items() if body.lock == "holds"]
        return number, body

    def holder(self) -> Body | None:
        return next((body for body in self.bodies.values() if body.lock == "holds"), None)

    def taker(self, slot: datetime) -> int | None:
        """The run that took a slot, the newest if there are more."""
        closes = [
            run
            for run, row in self.rows.items()
            if row.slot == slot and (row.status == "succeeded" or (row.has_ended and not self.retry))
        ]
        return max(closes, default=None)

    def deletable(self) -> list[int]:
        # A run that found out late that its slot is taken gives it up in its own transaction, and has locked its row.
        locked = {body.run for body in self.bodies.values() if body.slot != body.row.slot and body.lock == "holds"}
        return sorted(set(self.rows) - locked)

    def expect_skip(self, result: RunResult[None] | None, row: Row) -> None:
        assert isinstance(result, RunResult), result
        assert (result.ran, result.skip_reason) == (False, row.skip_reason)
        assert (result.run_id is not None) == self.record_skips
        # Where the holder left no row, a run of this moment may be taken for it.
        if row.held_by is None and result.held_by is not None:
            assert result.held_by in self.rows
            row = replace(row, held_by=result.held_by)
        assert result.held_by == row.held_by
        if result.run_id is not None:
            self.rows[result.run_id] = row

    def end_body(self, number: int, how: str) -> None:
        body = self.bodies.pop(number)
        status = ENDS.get((body.lock, how), "succeeded")
        result = self.replicas[number].act(how)
        assert isinstance(result, BaseException) == ((body.lock, how) in RAISES), result
        if not isinstance(result, BaseException):
            assert result == RunResult("acquired", run_id=body.run)
        slot = body.slot if status == "succeeded" else body.row.slot
        self.rows[body.run] = replace(body.row, status=status, slot=slot)
        self.rows |= body.inner
        if status == "succeeded":
            self.work.add(f"run {body.run}")


@pytest.mark.timeout(900)
@real_database
def test_a_life_is_as_the_model_says() -> None:
    run_state_machine_as_test(
        Life,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
