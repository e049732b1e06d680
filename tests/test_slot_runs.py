"""Runs of tasks with slots: once in each period, by the database's clock, whatever the replicas' clocks say."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from io import StringIO
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.core.management import call_command
from django.core.management.base import BaseCommand
from django.db import IntegrityError, connection
from django.test import TestCase

from django_singlecron import DatabaseUnavailable, InvalidSlot, RunResult, current_run, singleton_task
from django_singlecron.announcements import describe_skip
from django_singlecron.attempts import Holder
from django_singlecron.models import JobRun
from django_singlecron.testing import hold_lock, without_locking

from .support.threads import in_thread
from .support_core import (
    TAKES_LOCK,
    before_statement,
    database_alias,
    is_free,
    job,
    real_database,
    session,
    sqlite,
    the_run,
    trigger,
    write,
    written,
)

UTC = timezone.utc
BERLIN = ZoneInfo("Europe/Berlin")

# Yesterday at two, and what the database's clock may say round it.
SLOT = datetime(2026, 11, 28, 2, tzinfo=UTC)
NIGHTLY = {"schedule": "0 2 * * *", "timezone": "UTC"}


@contextmanager
def database_clock(start: datetime) -> Iterator[Callable[[datetime], None]]:
    """Let the clock of this connection's database say what the test sets: a function shadows the server's."""
    with session() as owner:
        owner.execute("CREATE SCHEMA shifted; CREATE TABLE shifted.clock (now timestamptz)")
        owner.execute("INSERT INTO shifted.clock VALUES (%s)", start)
        owner.execute(
            "CREATE FUNCTION shifted.clock_timestamp() RETURNS timestamptz "
            "LANGUAGE sql AS 'SELECT now FROM shifted.clock'"
        )
        try:
            with connection.cursor() as cursor:
                cursor.execute("SET search_path = shifted, pg_catalog, public")
            yield lambda moment: owner.execute("UPDATE shifted.clock SET now = %s", moment)
        finally:
            with connection.cursor() as cursor:
                cursor.execute("RESET search_path")
            owner.execute("DROP SCHEMA shifted CASCADE")


def record(name: str = "job", **values: Any) -> JobRun:
    """Record a run of another replica, on a connection of its own."""
    with database_alias("recorder") as alias:
        values = {"status": "succeeded", "outcome": "acquired", "host": "web-2", "pid": 7, **values}
        now = datetime.now(UTC)
        values = {"started_at": now, "finished_at": now, "trigger": "function", **values}
        row = JobRun.objects.using(alias).create(job=name, **values)
    row._state.db = "default"
    return row


def fail() -> None:
    write("of a run that failed")
    raise ValueError("no")


def skips() -> list[tuple[str, int | None]]:
    return list(JobRun.objects.skipped().order_by("id").values_list("skip_reason", "held_by"))


def statuses() -> list[str]:
    return list(JobRun.objects.order_by("id").values_list("status", flat=True))


# Cases of two clocks


@real_database
def test_a_replica_that_comes_late_finds_the_slot_taken() -> None:
    with database_clock(SLOT) as set_clock:
        first = job(write, **NIGHTLY)()
        set_clock(SLOT + timedelta(seconds=5))
        second = job(write, **NIGHTLY)()
        assert second == RunResult("skipped", skip_reason="already_ran", held_by=first.run_id, run_id=second.run_id)
        set_clock(SLOT + timedelta(days=1))
        assert job(lambda: write("of the next day"), **NIGHTLY)()
    assert written() == ["of the next day", "written"]
    skip = JobRun.objects.skipped().get()
    assert (skip.slot, skip.status, skip.held_by_id) == (SLOT, "skipped", first.run_id)
    assert is_free()


@real_database
def test_without_a_slot_a_replica_that_comes_late_runs_the_job_again() -> None:
    assert job(lambda: write("first"))()
    assert job(lambda: write("second"))()
    assert written() == ["first", "second"]


@real_database
def test_a_replica_that_fires_early_runs_for_the_coming_slot_and_takes_neither_the_last_nor_the_next() -> None:
    slots: list[Any] = []

    def work() -> None:
        slots.append(current_run().slot)

    yesterday, today, tomorrow = (SLOT + timedelta(days=n) for n in (-1, 0, 1))
    with database_clock(yesterday) as set_clock:
        for moment in (yesterday, today - timedelta(seconds=10), today, today + timedelta(seconds=5), tomorrow):
            set_clock(moment)
            job(work, **NIGHTLY)()
    assert slots == [yesterday, today, tomorrow]
    assert statuses() == ["succeeded", "succeeded", "skipped", "skipped", "succeeded"]


@real_database
@pytest.mark.parametrize("hours", [-1, 1])
def test_slots_follow_the_databases_clock_and_not_the_replicas(hours: int) -> None:
    there = datetime.now(UTC) + timedelta(hours=hours)
    with database_clock(there):
        result = job(lambda: current_run().slot, once_per=timedelta(minutes=1))()
    assert abs(result.value - there) <= timedelta(minutes=1)
    assert the_run().slot == result.value


@real_database
def test_a_slot_is_in_the_tasks_time_zone() -> None:
    with database_clock(datetime(2026, 10, 31, 23, 30, tzinfo=UTC)):
        result = job(lambda: current_run().slot, once_per="month", timezone="Europe/Berlin")()
    assert result.value.isoformat() == "2026-11-01T00:00:00+01:00"
    assert result.value.tzinfo == BERLIN


@real_database
def test_a_slot_whose_first_run_failed_is_open_for_the_next() -> None:
    with pytest.raises(ValueError, match="no"):
        job(fail, once_per="month")()
    assert job(write, once_per="month")()
    assert not job(write, once_per="month")()
    assert statuses() == ["failed", "succeeded", "skipped"]
    assert written() == ["written"]


@real_database
def test_jobs_and_tenants_have_slots_of_their_own() -> None:
    task = job(lambda tenant: tenant, "bill:{tenant}", once_per="month")
    assert [bool(task(tenant)) for tenant in (1, 2, 1, 2)] == [True, True, False, False]


# What else closes a slot, and what opens it


@real_database
def test_without_retry_the_first_run_closes_the_slot_whatever_becomes_of_it() -> None:
    with pytest.raises(ValueError, match="no"):
        job(fail, once_per="month", retry=False)()
    failed = the_run().pk
    assert not job(write, once_per="month", retry=False)()
    assert skips() == [("already_ran", failed)]
    assert written() == []


@real_database
@pytest.mark.parametrize(("retry", "runs"), [(False, False), (True, True)])
def test_a_killed_run_is_found_lost_under_the_lock_and_closes_its_slot_without_retry(retry: bool, runs: bool) -> None:
    killed = run_of_a_killed_process(slot=datetime(2026, 11, 1, tzinfo=UTC))
    task = job(write, once_per="month", timezone="UTC", retry=retry)
    result = task.run(slot=datetime(2026, 11, 1, tzinfo=UTC))
    assert result.ran is runs
    killed.refresh_from_db()
    assert killed.status == "lost"
    assert (written(), skips()) == ((["written"], []) if runs else ([], [("already_ran", killed.pk)]))


def run_of_a_killed_process(**values: Any) -> JobRun:
    """Record a run that reads "running", whose server session is gone."""
    with session() as gone:
        key = gone.one("SELECT hashtextextended('job', 0)")
        pid = gone.one("SELECT pg_backend_pid()")
    return record(key=key, status="running", finished_at=None, backend_pid=pid, **values)


@real_database
def test_a_forced_run_takes_a_free_slot_and_no_slot_that_is_taken() -> None:
    task = job(lambda: current_run().slot, once_per="month", timezone="UTC")
    free, taken = task.run(force=True), task.run(force=True)
    assert free.value == taken.value
    assert free.value.day == 1
    rows = [JobRun.objects.get(pk=result.run_id) for result in (free, taken)]
    assert [(row.forced, row.slot, row.status) for row in rows] == [
        (True, free.value, "succeeded"),
        (True, None, "succeeded"),
    ]
    assert task().held_by == free.run_id


@real_database
def test_the_lock_is_asked_for_though_a_run_is_forced() -> None:
    with hold_lock("job"):
        result = job(write, once_per="month").run(force=True)
    assert (result.ran, result.skip_reason) == (False, "locked")
    assert the_run().forced


@real_database
def test_a_slot_may_be_asked_for_and_is_the_runs() -> None:
    task = job(lambda: current_run().slot, **{**NIGHTLY, "timezone": "Europe/Berlin"})
    result = task.run(slot=datetime.fromisoformat("2026-10-01T02:00"))
    assert result.value.isoformat() == "2026-10-01T02:00:00+02:00"
    assert the_run().slot == result.value
    assert task.run(slot=datetime(2026, 10, 1, tzinfo=UTC)).skip_reason == "already_ran"
    assert task.run(slot=datetime.fromisoformat("2026-10-02T02:00")).ran


def test_what_is_no_slot_of_the_task_is_refused() -> None:
    task = job(write, **{**NIGHTLY, "timezone": "Europe/Berlin"})
    with pytest.raises(InvalidSlot) as refused:
        task.run(slot=datetime.fromisoformat("2026-10-01T02:01"))
    assert str(refused.value) == (
        '2026-10-01T02:01:00+02:00 is no slot of the job "job". The nearest are 2026-10-01T02:00:00+02:00 and '
        "2026-10-02T02:00:00+02:00."
    )
    with pytest.raises(InvalidSlot) as refused:
        job(write).check_slot(SLOT)
    assert str(refused.value) == 'The job "job" has no slots: it has neither once_per= nor schedule=.'


# Not again so soon


@real_database
def test_a_job_does_not_run_again_until_so_long_after_its_last_start() -> None:
    last = record(started_at=datetime.now(UTC) - timedelta(minutes=59))
    task = job(write, min_interval=timedelta(hours=1))
    assert task() == RunResult("skipped", skip_reason="too_soon", held_by=last.pk, run_id=last.pk + 1)
    JobRun.objects.filter(pk=last.pk).update(started_at=datetime.now(UTC) - timedelta(minutes=61))
    assert task()
    assert the_slots() == [None, None, None]


@real_database
@pytest.mark.parametrize(("ahead", "runs"), [(timedelta(minutes=59), False), (timedelta(minutes=61), True)])
def test_a_start_in_the_future_counts_no_further_than_one_in_the_past(ahead: timedelta, runs: bool) -> None:
    # The server's clock was wrong then, perhaps by years, and the job shall not wait for these.
    record(started_at=datetime.now(UTC) + ahead)
    assert job(write, min_interval=timedelta(hours=1))().ran is runs


def the_slots() -> list[datetime | None]:
    return list(JobRun.objects.order_by("id").values_list("slot", flat=True))


@real_database
def test_failed_and_killed_runs_have_started_too() -> None:
    killed = run_of_a_killed_process()
    task = job(fail, min_interval=3600)
    assert task().held_by == killed.pk
    JobRun.objects.all().delete()
    with pytest.raises(ValueError, match="no"):
        task()
    assert task().skip_reason == "too_soon"


@real_database
def test_a_job_that_waits_for_its_interval_may_be_forced_and_takes_its_slot_then() -> None:
    record(slot=datetime(2026, 10, 1, tzinfo=UTC))
    task = job(lambda: current_run().slot, once_per="month", min_interval=3600)
    assert task().skip_reason == "too_soon"
    forced = task.run(force=True)
    assert forced.ran
    row = JobRun.objects.get(pk=forced.run_id)
    assert (row.forced, row.slot) == (True, forced.value)
    assert task().skip_reason == "already_ran"


@real_database
def test_a_slot_that_is_still_to_come_is_not_taken_before() -> None:
    task = job(write, schedule="0 2 1 * *")
    with pytest.raises(InvalidSlot, match=r"2199-12-01T02:00:00\+00:00 is still to come"):
        task.run(slot=datetime(2199, 12, 1, 2, tzinfo=UTC))
    assert (written(), JobRun.objects.count()) == ([], 0)


# Between the first look and the lock, and after it


@real_database
@pytest.mark.parametrize("record_skips", [True, False])
@pytest.mark.parametrize("reason", ["already_ran", "too_soon"])
def test_a_run_that_ended_between_the_look_and_the_lock_is_seen_under_the_lock(reason: str, record_skips: bool) -> None:
    ran: list[str] = []
    options: dict[str, Any] = {"once_per": "month"} if reason == "already_ran" else {"min_interval": 3600}
    task = job(lambda: ran.append("ran"), record_skips=record_skips, **options)
    others: list[int] = []

    def another_runs() -> None:
        # Where each end of a run counts, a real one would wait for the attempt that stands still here, as the older.
        others.append(in_thread(task).run_id if reason == "already_ran" else record().pk)

    with before_statement(TAKES_LOCK, another_runs):
        result = task()
    assert (result.ran, result.skip_reason, result.held_by) == (False, reason, others[0])
    assert ran == (["ran"] if reason == "already_ran" else [])
    skip = JobRun.objects.skipped().first()
    if record_skips:
        assert skip is not None
        assert (skip.pk, skip.status, skip.skip_reason, skip.held_by_id) == (
            result.run_id,
            "skipped",
            reason,
            others[0],
        )
        assert skip.finished_at is not None
    else:
        assert (skip, result.run_id) == (None, None)
        assert JobRun.objects.count() == 1
    assert is_free()


@real_database
@pytest.mark.parametrize("reason", ["already_ran", "too_soon"])
def test_a_forced_run_gives_its_slot_up_when_that_was_taken_meanwhile(reason: str) -> None:
    task = job(lambda: current_run().slot, once_per="month", min_interval=3600)
    slot = {"slot": task().value} if reason == "already_ran" else {}
    JobRun.objects.all().delete()
    with before_statement(TAKES_LOCK, lambda: record(**slot)):
        result = task.run(force=True)
    row = JobRun.objects.get(pk=result.run_id)
    assert (row.status, row.forced, result.value.day) == ("succeeded", True, 1)
    assert row.slot == (None if slot else result.value)


@real_database
def test_a_forced_run_has_no_slot_to_give_up_when_that_was_taken_before() -> None:
    task = job(lambda: None, once_per="month")
    assert task()
    with before_statement(TAKES_LOCK, lambda: record(slot=None)):
        result = task.run(force=True)
    assert JobRun.objects.get(pk=result.run_id).slot is None


@real_database
def test_a_forced_run_whose_row_was_deleted_has_given_its_slot_up_all_the_same() -> None:
    slot = job(lambda: current_run().slot, once_per="month")().value
    JobRun.objects.all().delete()

    def work() -> None:
        write()
        run = current_run()
        assert run is not None
        JobRun.objects.filter(pk=run.id).delete()

    with before_statement(TAKES_LOCK, lambda: record(slot=slot)):
        result = job(work, once_per="month").run(force=True)
    row = JobRun.objects.get(pk=result.run_id)
    assert (row.status, row.slot, row.forced) == ("succeeded", None, True)
    assert written() == ["written"]


@real_database
@pytest.mark.parametrize("record_skips", [True, False])
def test_the_index_alone_lets_one_run_of_a_slot_succeed(record_skips: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "django_singlecron")
    rivals: list[JobRun] = []

    def lose() -> None:
        write("of the loser")
        logging.getLogger("billing").warning("I worked in vain.")
        run = current_run()
        assert run is not None
        rivals.append(record(slot=run.slot))

    result = job(lose, once_per="month", record_skips=record_skips)()
    assert (result.ran, result.skip_reason, result.held_by) == (False, "already_ran", rivals[0].pk)
    assert written() == []
    own = JobRun.objects.exclude(pk=rivals[0].pk).first()
    assert "is rolled back, since its slot was taken by another run meanwhile." in caplog.text
    assert f"run {rivals[0].pk} on web-2 (pid 7) took its slot of " in caplog.text
    if record_skips:
        assert own is not None
        assert (own.pk, own.status, own.held_by_id) == (result.run_id, "skipped", rivals[0].pk)
        assert "I worked in vain." in own.output
    else:
        assert (own, result.run_id) == (None, None)


@real_database
def test_a_success_whose_row_was_deleted_at_once_took_the_slot_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "django_singlecron")
    rivals: list[JobRun] = []

    def lose() -> None:
        run = current_run()
        assert run is not None
        rivals.append(record(slot=run.slot))

    def forget(*_: Any) -> None:
        with database_alias("recorder") as alias:
            JobRun.objects.using(alias).filter(pk=rivals[0].pk).delete()

    with before_statement("ROLLBACK TO SAVEPOINT", forget):
        result = job(lose, once_per="month")()
    assert (result.ran, result.skip_reason, result.held_by) == (False, "already_ran", None)
    assert "another run took its slot." in caplog.text


@real_database
@pytest.mark.parametrize("options", [{}, {"min_interval": 3600}])
def test_an_integrity_error_of_a_run_without_a_slot_is_a_failure(options: dict[str, Any]) -> None:
    body = "IF new.status = 'succeeded' THEN RAISE unique_violation; END IF; RETURN new;"
    with trigger("BEFORE UPDATE", body), pytest.raises(IntegrityError):
        job(write, **options)()
    assert (the_run().status, written()) == ("failed", [])


# What is said of it


class _Nightly(BaseCommand):
    requires_system_checks = ()

    @singleton_task("nightly", once_per="month", timezone="UTC")
    def handle(self, *args: Any, **options: Any) -> str:
        return "billed"


@real_database
def test_a_command_says_that_its_slot_was_taken() -> None:
    out, err = StringIO(), StringIO()
    assert call_command(_Nightly(), stdout=out) == "billed"
    run = the_run()
    assert run.slot is not None
    call_command(_Nightly(), stdout=out, stderr=err, no_color=True)
    slot, since = (moment.isoformat(sep=" ", timespec="seconds") for moment in (run.slot, run.started_at))
    assert (
        err.getvalue()
        == f"Skipped: run {run.pk} on {run.host} (pid {os.getpid()}) took its slot of {slot} at {since}.\n"
    )
    err = StringIO()
    call_command(_Nightly(), stdout=out, stderr=err, verbosity=0)
    assert err.getvalue() == ""


@real_database
def test_log_lines_of_skips(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "django_singlecron")
    last = record()
    result = job(write, min_interval=3600)()
    since = last.started_at.isoformat(sep=" ", timespec="seconds")
    said = f"run {last.pk} on web-2 (pid 7) started only at {since}."
    assert f'Job "job" skipped (attempt {result.run_id}): {said}' in caplog.text
    job(write, min_interval=3600, record_skips=False)()
    assert f'Job "job" skipped: {said}' in caplog.text


def test_skips_in_words() -> None:
    holder = Holder(5, "web-1", 42, SLOT)
    who, at = "run 5 on web-1 (pid 42)", "2026-11-28 02:00:00+00:00"
    assert describe_skip("locked", holder, SLOT) == f"{who} holds its lock since {at}"
    assert describe_skip("already_ran", holder, SLOT) == f"{who} took its slot of {at} at {at}"
    assert describe_skip("too_soon", holder, None) == f"{who} started only at {at}"
    assert describe_skip("locked", None, SLOT) == "its lock is held, by a run that left no record"
    assert describe_skip("already_ran", None, SLOT) == "another run took its slot"


@real_database
@pytest.mark.parametrize("options", [{"once_per": "month"}, {"min_interval": 3600}])
def test_skips_that_are_not_recorded_leave_no_row(options: dict[str, Any]) -> None:
    task = job(lambda: None, record_skips=False, **options)
    first, second = task(), task()
    assert (second.ran, second.held_by, second.run_id) == (False, first.run_id, None)
    assert JobRun.objects.count() == 1


@real_database
def test_a_database_that_cannot_be_asked_refuses_the_run() -> None:
    with database_alias("away", PORT="1", HOST="127.0.0.1") as alias, pytest.raises(DatabaseUnavailable):
        job(write, once_per="month", using=alias)()
    assert written() == []


# Where runs hold no lock of their own


class SlotsInTestCase(TestCase):
    def test_a_slot_holds_in_a_test_case(self) -> None:
        task = job(write, once_per="month")
        assert task()
        assert task().skip_reason == "already_ran"
        assert job(lambda: write("forced"), once_per="month").run(force=True)
        assert written() == ["forced", "written"]

    def test_the_index_holds_in_a_test_case(self) -> None:
        def lose() -> None:
            run = current_run()
            assert run is not None
            write()
            values = {"outcome": "acquired", "status": "succeeded", "host": "web-2", "pid": 7, "trigger": "function"}
            JobRun.objects.create(job="job", slot=run.slot, started_at=run.started_at, **values)

        assert job(lose, once_per="month")().skip_reason == "already_ran"
        assert (the_run().status, written()) == ("skipped", [])


@pytest.fixture(params=["default", "lite"])
def using(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """PostgreSQL, and SQLite; without locking."""
    with without_locking():
        if request.param == "default":
            yield "default"
        else:
            with sqlite(tmp_path) as alias:
                yield alias


@real_database
def test_slots_hold_without_locking(using: str) -> None:
    task = job(lambda: write(using=using), once_per="month", using=using)
    first = task()
    assert first
    assert task().skip_reason == "already_ran"
    forced = job(lambda: current_run().slot, once_per="month", using=using).run(force=True)
    assert forced.value == JobRun.objects.using(using).get(pk=first.run_id).slot
    assert JobRun.objects.using(using).get(pk=forced.run_id).slot is None
    assert written(using) == ["written"]


@real_database
def test_the_index_holds_without_locking(using: str) -> None:
    def lose() -> None:
        run = current_run()
        assert run is not None
        write(using=using)
        values = {"outcome": "acquired", "status": "succeeded", "host": "web-2", "pid": 7, "trigger": "function"}
        JobRun.objects.using(using).create(job="job", slot=run.slot, started_at=run.started_at, **values)

    assert job(lose, once_per="month", using=using)().skip_reason == "already_ran"
    assert JobRun.objects.using(using).get().status == "skipped"
    assert written(using) == []


@real_database
def test_min_interval_holds_without_locking(using: str) -> None:
    task = job(write, min_interval=3600, using=using)
    assert job(lambda: None, min_interval=3600, using=using)()
    assert task().skip_reason == "too_soon"


@real_database
@pytest.mark.parametrize("locking", [True, False])
def test_slots_hold_in_a_project_without_time_zones(settings: Any, tmp_path: Path, *, locking: bool) -> None:
    settings.USE_TZ = False
    settings.TIME_ZONE = "America/New_York"
    task = job(lambda: current_run().slot, once_per="day", min_interval=3600)
    if locking:
        slots_hold(task, "default")
        return
    with sqlite(tmp_path) as alias, without_locking():
        slots_hold(job(task.func, once_per="day", min_interval=3600, using=alias), alias)


def slots_hold(task: Any, using: str) -> None:
    slot = task().value
    assert (str(slot.tzinfo), slot.hour) == ("America/New_York", 0)
    assert task().skip_reason == "already_ran"
    rows = JobRun.objects.using(using)
    assert {row.slot for row in rows.all()} == {slot.replace(tzinfo=None)}
    rows.update(slot=None)
    assert task().skip_reason == "too_soon"
    assert task.run(slot=slot.replace(tzinfo=None) - timedelta(days=1), force=True).value == slot - timedelta(days=1)


@real_database
def test_only_the_slots_own_index_makes_a_skip() -> None:
    audit = "IF new.status = 'succeeded' THEN RAISE unique_violation USING MESSAGE = 'audit'; END IF; RETURN new;"
    with trigger("BEFORE UPDATE", audit), pytest.raises(IntegrityError, match="audit"):
        job(write, once_per="day")()
    assert (the_run().status, the_run().error_class) == ("failed", "django.db.utils.IntegrityError")
    assert written() == []


@real_database
def test_a_call_of_the_job_from_within_itself_stays_on_record_when_its_slot_is_taken() -> None:
    def work() -> None:
        task()
        running = JobRun.objects.running().get()
        # Not on this connection, which is in the run's transaction.
        with database_alias("another") as alias:
            running.pk, running.status = None, "succeeded"
            running.save(using=alias, force_insert=True)

    task = job(work, once_per="day")
    assert task().skip_reason == "already_ran"
    assert sorted(JobRun.objects.values_list("status", flat=True)) == ["skipped", "skipped", "succeeded"]
