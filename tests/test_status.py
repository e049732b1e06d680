"""`manage.py singlecron status`: each job at a glance, in few queries and a narrow terminal."""

from __future__ import annotations

import io
import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_singlecron import overview as overviews
from django_singlecron.management.singlecron_status import fit
from django_singlecron.models import JobRun
from django_singlecron.overview import overview
from tests.bench.filling import fill_slots
from tests.support.threads import in_thread
from tests.support_core import database_alias, real_database
from tests.support_watch import DAY, HOUR, AddTask, add_task_fixture, daily, minute, now, record

__all__ = ["add_task_fixture"]

pytestmark = real_database

LONG = "billing.management.commands.a_very_long_name_of_a_job_that_does_not_fit_into_eighty_columns"


def status(*options: str, **more: Any) -> str:
    out = io.StringIO()
    call_command("singlecron", "status", *options, stdout=out, **more)
    return out.getvalue()


def as_json(*options: str) -> Any:
    return json.loads(status("--json", *options))


def test_each_job_with_its_last_run_and_its_next(add_task: AddTask) -> None:
    due = minute(2 * HOUR)
    add_task("nightly", schedule=daily(due), timezone="UTC")
    add_task("hourly", once_per="hour", timezone="Europe/Berlin")
    add_task("new")
    run = record("nightly", started_at=due, finished_at=due + timedelta(seconds=75))
    record("nightly", status="skipped")
    record("hourly")
    for _ in range(2):
        record("hourly", status="failed", error_class="ValueError", error_message="no fee")
    wrapped = record("wrapped", started_at=due, finished_at=due + timedelta(seconds=3))

    lines = status().splitlines()
    day, clock = f"{due:%Y-%m-%d}", f"{due:%H:%M}"
    assert lines[0].split() == ["JOB", "LAST", "RUN", "RESULT", "TOOK", "NEXT", "DUE"]
    assert lines[1].startswith("hourly ")
    assert re.search(r"  failed     5\.0 s$", lines[1])
    assert lines[2:4] == ["  once per hour (Europe/Berlin)", "  2 runs in a row did not succeed"]
    assert lines[4] == "new                      never"
    assert lines[5].split() == ["nightly", day, clock, "succeeded", "1", "m", "15", f"{due + DAY:%Y-%m-%d}", clock]
    assert lines[6] == f"  At {clock} every day (UTC)"
    assert lines[7].split() == ["wrapped", day, clock, "succeeded", "3.0", "s"]

    hourly, new, nightly, other = as_json()
    assert nightly == {
        "job": "nightly",
        "database": "default",
        "schedule": daily(due),
        "schedule_in_words": f"At {clock} every day",
        "timezone": "UTC",
        "last_run": {
            "id": run.pk,
            "host": "web-1",
            "started_at": due.isoformat(),
            "result": "succeeded",
            "error": "",
            "seconds": 75.0,
        },
        "next_due": (due + DAY).isoformat(),
        "running": None,
        "consecutive_failures": 0,
    }
    assert (hourly["consecutive_failures"], hourly["last_run"]["error"]) == (2, "ValueError: no fee")
    assert (hourly["schedule"], hourly["schedule_in_words"], hourly["next_due"]) == (None, "once per hour", None)
    assert (new["last_run"], new["running"], new["next_due"]) == (None, None, None)
    assert other["last_run"]["id"] == wrapped.pk
    assert as_json("--job", "nightly") == [nightly]


def test_where_a_job_runs_and_since_when(add_task: AddTask) -> None:
    seen: list[Any] = []
    task = add_task(function=lambda: seen.append((in_thread(status), in_thread(as_json))))
    record(status="failed")
    task()
    run = JobRun.objects.latest()
    (text, (job,)) = seen[0]
    assert f"  running on {run.host} (pid {run.pid}) since {run.started_at:%Y-%m-%d %H:%M:%S}" in text
    assert job["running"]["id"] == run.pk
    assert (job["last_run"]["result"], job["consecutive_failures"]) == ("failed", 1)
    assert as_json()[0]["consecutive_failures"] == 0


def test_a_killed_run_is_lost(add_task: AddTask) -> None:
    add_task()
    record()
    killed = record(status="running")
    (job,) = as_json()
    assert job["running"] is None
    assert job["last_run"]["id"] == killed.pk
    assert (job["last_run"]["result"], job["last_run"]["seconds"]) == ("lost", None)
    assert "  lost" in status()
    # Killed, and not yet found out when the next one ended.
    record(status="failed")
    (job,) = as_json()
    assert (job["last_run"]["result"], job["consecutive_failures"]) == ("failed", 2)


def test_failures_in_a_row_are_counted_up_to_a_bound(add_task: AddTask) -> None:
    add_task()
    for _ in range(52):
        record(status="failed")
    assert "  50+ runs in a row did not succeed\n" in status()


@pytest.mark.parametrize("letter", ["x", "é", "工", "e\u0301", "\U0001f600"])
def test_eighty_columns_are_enough(add_task: AddTask, letter: str) -> None:
    add_task(letter * 90, schedule="1-59/2 1,3,5,7,9,11,13,15,17,19 1-7,15-21 */2 1,3,5", timezone="America/New_York")
    record(letter * 90, host="h" * 200, started_at=minute(400 * DAY), finished_at=minute(DAY))
    record(letter * 90, status="running", lock="none", host="h" * 200)
    for line in status().splitlines():
        assert fit(line, 80).rstrip() == line
    assert "…" in status()


def test_names_are_cut_to_their_column() -> None:
    assert fit("job", 5) == "job  "
    assert fit("nightly", 7) == "nightly"
    assert fit("nightly_", 7) == "nightl…"
    assert fit("工工工", 5) == "工工…"
    assert fit("工工工", 4) == "工… "
    assert fit(LONG, 20) == "billing.management.…"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.9, "59.9 s"), (61, "1 m 01"), (3600, "1 h 00"), (90061, "1 d 1 h")],
)
def test_durations_are_short(add_task: AddTask, seconds: float, text: str) -> None:
    record(started_at=now() - 3 * DAY, finished_at=now() - 3 * DAY + timedelta(seconds=seconds))
    add_task()
    assert status("--job", "job").splitlines()[1].endswith(f"succeeded  {text}")


def test_it_is_coloured_on_a_terminal_and_uses_its_width(add_task: AddTask, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    add_task()
    record(LONG)
    monkeypatch.setenv("COLUMNS", "200")
    out = Terminal()
    call_command("singlecron", "status", stdout=out, force_color=True)
    assert LONG in out.getvalue()
    assert re.search("\x1b\\[[0-9;]*msucceeded *\x1b\\[0m", out.getvalue())
    out = Terminal()
    monkeypatch.setenv("COLUMNS", "40")
    call_command("singlecron", "status", stdout=out, no_color=True)
    assert "\x1b" not in out.getvalue()
    assert len(out.getvalue().splitlines()[1]) > 40


def test_the_database_is_named_when_there_are_several(add_task: AddTask) -> None:
    add_task("one")
    with database_alias("other"):
        add_task("two", using="other")
        assert '  in the database "other"\n' in status()
        assert '  in the database "default"\n' in status()
        assert "  in the database" not in status("--database", "other")


def test_nothing_to_show(add_task: AddTask) -> None:
    assert status() == "There are no jobs.\n"
    assert as_json() == []
    with pytest.raises(CommandError, match='There is no job "dance"'):
        status("--job", "dance")
    with pytest.raises(CommandError, match='There is no database "absent" in DATABASES'):
        status("--database", "absent")


def test_many_jobs_take_three_queries_that_read_no_table_whole(add_task: AddTask) -> None:
    for number in range(200):
        add_task(f"job {number}", schedule="0 2 * * *")
    fill_slots("default", 60_000)
    with CaptureQueriesContext(connection) as queries:
        assert len(as_json()) == 200
    assert len(queries) == 3
    with connection.cursor() as cursor:
        for query in queries:
            cursor.execute(f"EXPLAIN {query['sql']}")
            plan = "\n".join(line for (line,) in cursor.fetchall())
            assert "Seq Scan on django_singlecron_jobrun" not in plan, plan
            assert "Bitmap" not in plan, plan
            assert "Parallel" not in plan, plan


def test_a_run_that_began_between_two_queries_is_not_lost(add_task: AddTask, monkeypatch: pytest.MonkeyPatch) -> None:
    add_task()
    record()
    read = overviews._read_history

    def read_later(using: str) -> Any:
        record(status="running")
        return read(using)

    monkeypatch.setattr(overviews, "_read_history", read_later)
    (job,) = overview("default").jobs
    assert (job.failures, job.running, job.last and job.last.status) == (0, None, "succeeded")


def test_a_run_that_ended_between_two_queries_is_over(add_task: AddTask, monkeypatch: pytest.MonkeyPatch) -> None:
    add_task()
    run = record(status="running", lock="none")
    read = overviews._read_history

    def read_later(using: str) -> Any:
        JobRun.objects.filter(pk=run.pk).update(status="failed")
        return read(using)

    monkeypatch.setattr(overviews, "_read_history", read_later)
    (job,) = overview("default").jobs
    assert (job.failures, job.running, job.last and job.last.id) == (1, None, run.pk)
