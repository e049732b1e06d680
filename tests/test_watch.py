"""The check: what is wrong is found and said once, by one replica, and so is that it is well again."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import django
import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext
from django.utils.log import AdminEmailHandler, RequireDebugFalse

from django_singlecron import registry, watch
from django_singlecron.models import JobRun, JobWatch
from django_singlecron.problems import Severity
from django_singlecron.testing import hold_lock
from django_singlecron.watch import Look, Report
from tests.support.threads import in_thread
from tests.support_core import WAIT, database_alias, real_database, session
from tests.support_watch import (
    DAY,
    HOUR,
    AddTask,
    add_task_fixture,
    daily,
    minute,
    now,
    record,
    watch_since,
)

__all__ = ["add_task_fixture"]

pytestmark = real_database

EMPTY: list[tuple[str, str]] = []


def found(report: Report | None = None, **look: Any) -> list[tuple[str, str]]:
    """The jobs that something is wrong with, and what."""
    report = report or watch.check(Look(**look))
    assert not report.obstacles
    return [(problem.job, problem.kind.value) for _, problem in report.problems]


def check(*options: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code of the command and what it printed."""
    code: Any = 0
    try:
        call_command("singlecron", "check", *options)
    except SystemExit as exit_:
        code = exit_.code
    return code, capsys.readouterr().out


@pytest.fixture(name="mails")
def mails_fixture(settings: Any, mailoutbox: list[Any]) -> Iterator[Callable[[], list[str]]]:
    """Mail what the logger says as the documentation shows; give the subjects since the last time."""
    settings.ADMINS = ["ops@example.com"] if django.VERSION >= (6, 0) else [("Ops", "ops@example.com")]
    # Of Django 6.1; earlier ones know nothing of it.
    settings.MAILERS = {"default": {"BACKEND": "django.core.mail.backends.locmem.EmailBackend"}}
    handler = AdminEmailHandler()
    handler.setLevel(logging.ERROR)
    handler.addFilter(RequireDebugFalse())
    logger = logging.getLogger("django_singlecron")
    logger.addHandler(handler)

    def take() -> list[str]:
        subjects = [mail.subject for mail in mailoutbox]
        mailoutbox.clear()
        return subjects

    yield take
    logger.removeHandler(handler)


# Missed


def test_a_missed_slot_turns_the_check_bad_until_the_next_success_with_a_mail_for_each(
    add_task: AddTask, mails: Callable[[], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    due = minute(2 * HOUR)
    task = add_task(schedule=daily(due), timezone="UTC")
    assert check(capsys=capsys) == (0, "OK: 1 job checked\n")
    assert JobWatch.objects.get().schedule == f"{daily(due)} UTC"

    watch_since("job", now() - 2 * DAY)
    problem = f"missed  job (default): nothing ran for its slot of {due:%Y-%m-%d %H:%M} UTC\n"
    assert check(capsys=capsys) == (1, f"WARNING: 1 problem in 1 job\n{problem}")
    assert mails() == [
        f'[Django] ERROR: Job "job" is in trouble. missed: nothing ran for its slot of {due:%Y-%m-%d %H:%M} UTC'
    ]
    assert check(capsys=capsys)[0] == 1
    assert mails() == []

    assert task().ran
    assert check(capsys=capsys)[0] == 0
    (subject,) = mails()
    assert subject.startswith('[Django] ERROR: Job "job" is well again. It was: missed')
    assert check(capsys=capsys)[0] == 0
    assert mails() == []
    assert JobWatch.objects.get().problem == ""


def test_a_failed_run_clears_missed_and_is_told_as_failing(add_task: AddTask) -> None:
    due = minute(2 * HOUR)
    add_task(schedule=daily(due), timezone="UTC")
    record(slot=due - 3 * DAY, started_at=due - 3 * DAY)
    assert found() == [("job", "missed")]
    run = record(slot=due, status="failed", error_class="ValueError", error_message="no\nfee")
    report = watch.check(Look())
    assert found(report) == [("job", "failing")]
    assert report.severity is Severity.CRITICAL
    problem = report.problems[0][1]
    assert problem.text.startswith(f"the last run failed; run {run.pk} on web-1 at ")
    assert problem.text.endswith(": ValueError: no fee")
    record(slot=due)
    assert found() == EMPTY


def test_a_job_that_is_due_is_late_within_its_grace_and_is_not_mailed(
    add_task: AddTask, mails: Callable[[], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    due = minute(timedelta(minutes=10))
    add_task(schedule=daily(due), timezone="UTC")
    record(slot=due - DAY, started_at=due - DAY)
    code, out = check("--json", capsys=capsys)
    assert code == 1
    assert json.loads(out)["problems"] == [
        {
            "job": "job",
            "database": "default",
            "kind": "late",
            "severity": "warning",
            "text": f"due {due:%Y-%m-%d %H:%M} UTC, and nothing has run yet",
            "since": (due + timedelta(seconds=30)).isoformat(),
            "run_id": None,
        }
    ]
    assert mails() == []
    # What was missed before stays missed until something runs.
    JobRun.objects.update(slot=due - 2 * DAY, started_at=due - 2 * DAY, finished_at=due - 2 * DAY)
    assert found() == [("job", "missed"), ("job", "late")]


@pytest.mark.parametrize("grace", [timedelta(minutes=1), timedelta(hours=40)])
def test_the_task_says_the_grace(add_task: AddTask, grace: timedelta) -> None:
    due = minute(timedelta(minutes=10))
    add_task(schedule=daily(due), timezone="UTC", grace=grace)
    record(slot=due - 4 * DAY, started_at=due - 4 * DAY)
    assert ("job", "missed") in found()
    # With forty hours, the newest slot whose grace is over is that of the day before yesterday.
    record(slot=due - DAY, started_at=due - DAY)
    assert found() == [("job", "missed" if grace < HOUR else "late")]


def test_a_run_that_goes_on_past_the_next_slot_does_not_let_it_be_missed(add_task: AddTask) -> None:
    due = minute(2 * HOUR)
    add_task(schedule=daily(due), timezone="UTC", record_skips=False)
    record(slot=due - DAY, started_at=due - HOUR, finished_at=due + HOUR)
    assert found() == EMPTY


def test_a_slot_that_succeeded_twice_is_told(add_task: AddTask) -> None:
    due = minute(2 * HOUR)
    add_task(schedule=daily(due), timezone="UTC")
    with session() as owner:
        definition = owner.one("SELECT pg_get_indexdef('singlecron_slot'::regclass)")
        owner.execute("DROP INDEX singlecron_slot")
        try:
            record(slot=due)
            record(slot=due)
            report = watch.check(Look())
            assert found(report) == [("job", "repeated")]
            assert report.severity is Severity.CRITICAL
        finally:
            owner.execute("DELETE FROM django_singlecron_jobrun")
            owner.execute(definition)


# Since when


def test_a_new_schedule_is_expected_from_then_on(add_task: AddTask) -> None:
    due = minute(2 * HOUR)
    record(slot=due - 5 * DAY, started_at=due - 5 * DAY)
    add_task(schedule=daily(due), timezone="UTC")
    assert found(writes=True) == [("job", "missed")]
    assert JobWatch.objects.get().watched_since == due - 5 * DAY

    earlier = due - HOUR
    add_task(schedule=daily(earlier), timezone="UTC")
    assert found(writes=True) == EMPTY
    assert JobWatch.objects.get().schedule == f"{daily(earlier)} UTC"
    watch_since("job", earlier - DAY)
    assert found(writes=True) == [("job", "missed")]


def test_each_name_of_a_template_has_its_own_slots(add_task: AddTask) -> None:
    due = minute(2 * HOUR)
    add_task("bill:{tenant}", lambda tenant: None, schedule=daily(due), timezone="UTC")
    add_task("bill:special", schedule=daily(due), timezone="UTC")
    for job in ("bill:1", "bill:2", "other"):
        record(job=job, slot=due - DAY, started_at=due - DAY)
    record(job="bill:2", slot=due)
    assert found() == [("bill:1", "missed")]
    assert found(job="bill:{tenant}") == [("bill:1", "missed")]
    assert found(job="bill:2") == EMPTY


def test_a_tenant_that_left_is_forgotten_after_a_month(add_task: AddTask, mails: Callable[[], list[str]]) -> None:
    due = minute(2 * HOUR)
    add_task("bill:{tenant}", lambda tenant: None, schedule=daily(due), timezone="UTC")
    run = record(job="bill:1", slot=due - 30 * DAY, started_at=due - 30 * DAY)
    record(job="wrapped", status="failed", started_at=due - 30 * DAY)
    assert found(writes=True, tells=True) == [("wrapped", "failing"), ("bill:1", "missed")]
    assert len(mails()) == 2
    JobRun.objects.update(started_at=run.started_at - 3 * DAY)
    assert found(writes=True, tells=True) == EMPTY
    subjects = mails()
    assert len(subjects) == 2
    assert all("is not watched any more: it is gone" in subject for subject in subjects)


# Runs


def test_failures_in_a_row(add_task: AddTask, capsys: pytest.CaptureFixture[str]) -> None:
    add_task()
    record()
    record(status="failed")
    record(status="lost")
    record(status="failed")
    assert found(failures=3) == [("job", "failing")]
    assert found(failures=4) == EMPTY
    code, out = check("--failures", "3", "--no-mail", capsys=capsys)
    assert code == 2
    assert "failing  job (default): the last 3 runs failed; run " in out
    assert not JobWatch.objects.exists()


def test_a_run_that_was_killed_is_lost_whether_it_is_recorded_or_not(add_task: AddTask) -> None:
    add_task()
    run = record(status="lost")
    record(status="skipped")
    report = watch.check(Look(failures=5))
    assert found(report) == [("job", "lost")]
    assert report.severity is Severity.CRITICAL
    record()
    assert found() == EMPTY
    killed = record(status="running")
    report = watch.check(Look())
    assert found(report) == [("job", "lost")]
    assert [problem.run_id for _, problem in report.problems] == [killed.pk]
    assert run.pk != killed.pk


def test_a_run_that_takes_too_long(add_task: AddTask) -> None:
    seen: list[Report] = []

    def body() -> None:
        for ago in (timedelta(minutes=29), timedelta(minutes=31)):
            with session() as other:
                other.execute("UPDATE django_singlecron_jobrun SET started_at = now() - %s", ago)
            seen.append(in_thread(lambda: watch.check(Look())))

    add_task(function=body, max_duration=1800)()
    assert found(seen[0]) == EMPTY
    assert found(seen[1]) == [("job", "running_too_long")]
    run = JobRun.objects.get()
    text = seen[1].problems[0][1].text
    assert text.startswith(f"run {run.pk} on {run.host} (pid {run.pid}) has been running since ")
    assert found() == EMPTY


# Locks


def test_a_lock_that_no_run_accounts_for(add_task: AddTask) -> None:
    task = add_task()
    task()
    assert found() == EMPTY
    with hold_lock("job"), hold_lock("a stranger's"):
        report = watch.check(Look())
        assert found(report) == [("job", "orphaned_lock")]
        assert report.severity is Severity.WARNING
        assert found(job="job") == [("job", "orphaned_lock")]
    assert found() == EMPTY


def test_a_lock_of_a_run_whose_record_is_gone(add_task: AddTask) -> None:
    seen: list[Any] = []

    def body() -> None:
        with session() as other:
            other.execute("DELETE FROM django_singlecron_jobrun")
        seen.append(in_thread(lambda: watch.check(Look())))
        seen.append(in_thread(lambda: watch.check(Look(job="else"))))

    add_task("else")
    add_task("nightly job", body)()
    assert found(seen[0]) == [("nightly job", "orphaned_lock")]
    assert found(seen[1]) == EMPTY


# Saying it


def test_two_checks_at_once_send_one_mail(add_task: AddTask, mails: Callable[[], list[str]]) -> None:
    add_task()
    record(status="failed")
    logger, barrier = logging.getLogger("django_singlecron.alerts"), threading.Barrier(2, timeout=WAIT)
    done = threading.Event()

    class Slow(logging.Handler):
        """Holds the one that speaks until the other is done."""

        def emit(self, record: logging.LogRecord) -> None:
            assert done.wait(WAIT)

    slow = Slow()
    logger.addHandler(slow)
    reports: list[Report] = []

    def check_once() -> None:
        barrier.wait()
        try:
            reports.append(watch.check(Look(writes=True, tells=True)))
        finally:
            done.set()
            connections.close_all()

    threads = [threading.Thread(target=check_once) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
        assert not thread.is_alive()
    logger.removeHandler(slow)
    assert [found(report) for report in reports] == [[("job", "failing")]] * 2
    assert len(mails()) == 1


def test_what_a_handler_could_not_say_is_said_by_the_next_check(
    add_task: AddTask, mails: Callable[[], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    add_task()
    run = record(status="failed")

    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("no mail server")

    broken, logger = Broken(), logging.getLogger("django_singlecron.alerts")
    logger.addHandler(broken)
    assert check(capsys=capsys)[0] == 2
    assert mails() == []
    logger.removeHandler(broken)
    assert check(capsys=capsys)[0] == 2
    assert len(mails()) == 1

    logger.addHandler(broken)
    JobRun.objects.filter(pk=run.pk).update(status="succeeded")
    assert check(capsys=capsys)[0] == 0
    assert mails() == []
    logger.removeHandler(broken)
    assert check(capsys=capsys)[0] == 0
    assert len(mails()) == 1


def test_another_problem_of_a_bad_job_is_kept_in_mind_and_not_mailed(
    add_task: AddTask, mails: Callable[[], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    add_task()
    record(status="failed")
    check(capsys=capsys)
    assert len(mails()) == 1
    changed_at = JobWatch.objects.get().changed_at
    record(status="lost")
    check(capsys=capsys)
    assert mails() == []
    assert JobWatch.objects.get().problem.startswith("lost: run ")
    assert JobWatch.objects.get().changed_at == changed_at


def test_without_mail_the_state_stays_as_it_is(
    add_task: AddTask, mails: Callable[[], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    add_task(schedule="@daily")
    record(status="failed")
    assert check("--no-mail", capsys=capsys)[0] == 2
    assert mails() == []
    assert JobWatch.objects.get().problem == ""
    assert check("--job", "job", capsys=capsys)[0] == 2
    assert len(mails()) == 1
    assert check("--no-mail", capsys=capsys)[0] == 2
    assert str(JobWatch.objects.get()).startswith("job: failing: the last run failed")


def test_a_look_writes_nothing(add_task: AddTask) -> None:
    add_task(schedule="@daily")
    record(status="failed")
    assert found() == [("job", "failing")]
    assert not JobWatch.objects.exists()


def test_the_check_takes_few_queries_whatever_the_number_of_jobs(add_task: AddTask) -> None:
    due = minute(2 * HOUR)
    counts = []
    for number in range(20):
        add_task(f"job {number}", schedule=daily(due), timezone="UTC")
        record(job=f"job {number}", slot=due)
        with CaptureQueriesContext(connection) as queries:
            assert found() == EMPTY
        counts.append(len(queries))
    assert set(counts) == {5}


# What could not be done


def test_what_stands_in_the_way_is_unknown(
    add_task: AddTask, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    add_task()
    assert check("--job", "dance", capsys=capsys) == (3, 'UNKNOWN: 0 jobs checked\nThere is no job "dance".\n')
    code, out = check("--database", "absent", capsys=capsys)
    assert (code, out.splitlines()[1]) == (3, 'There is no database "absent" in DATABASES.')
    failure = registry.ImportFailure("shop.cron", ZeroDivisionError("division by zero"))
    monkeypatch.setattr(registry, "autodiscover", lambda: [failure])
    code, out = check(capsys=capsys)
    assert (code, out.splitlines()[1]) == (3, "The module shop.cron cannot be imported: division by zero")
    record(status="failed")
    assert check(capsys=capsys)[0] == 2


def test_a_database_that_cannot_be_asked_is_unknown(add_task: AddTask, tmp_path: Path) -> None:
    task = add_task()
    for changes, said in [
        ({"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "lite")}, "is sqlite, not PostgreSQL"),
        ({"HOST": "127.0.0.1", "PORT": "1"}, 'The database "other" cannot be asked: '),
        ({"NAME": "template1"}, "Run: manage.py migrate django_singlecron --database other"),
    ]:
        with database_alias("other", **changes):
            task.options = task.options._replace(using="other")
            for look in (Look(), Look(writes=True)):
                report = watch.check(look, "other")
                assert report.severity is Severity.UNKNOWN
                assert said in report.obstacles[0]


def test_the_table_of_watched_jobs_is_missing(add_task: AddTask) -> None:
    add_task()
    with session() as owner:
        owner.execute("ALTER TABLE django_singlecron_jobwatch RENAME TO away")
        try:
            for look in (Look(), Look(writes=True)):
                assert "is not migrated" in watch.check(look).obstacles[0]
        finally:
            owner.execute("ALTER TABLE away RENAME TO django_singlecron_jobwatch")


@pytest.mark.parametrize("number", ["0", "-1", "51", "x", "1.5"])
def test_a_number_of_failures_that_is_none(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CommandError, match="is no number from 1 to 50"):
        call_command("singlecron", "check", f"--failures={number}")
