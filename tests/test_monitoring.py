"""What is said of a run while it runs and after it was killed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone

import pytest
from django.db import connection
from django.db.models import F
from django.test import Client

from django_singlecron import monitoring
from django_singlecron.models import JobRun
from django_singlecron.monitoring import Live
from tests.support.replicas import database_url

NOW = datetime(2026, 3, 1, 2, 0, tzinfo=timezone.utc)

JOB = """
import sys
import django
django.setup()
from django_singlecron import singleton_task

@singleton_task("nightly_billing", key={key!r})
def job():
    print("in the job", flush=True)
    sys.stdin.read()

job()
"""


def a_run(**values: object) -> JobRun:
    return JobRun(
        **{
            "pk": 7,
            "job": "nightly_billing",
            "key": 4242,
            "key_is_pair": False,
            "lock": "transaction",
            "outcome": "acquired",
            "status": "running",
            "host": "web-1",
            "pid": 100,
            "trigger": "function",
            "started_at": NOW - timedelta(hours=1),
            **values,
        }
    )


@contextmanager
def process_in_job(key: object) -> Iterator[subprocess.Popen[str]]:
    """A replica in the middle of a job, on the test's database. It ends with its standard input."""
    process = subprocess.Popen(
        [sys.executable, "-c", JOB.format(key=key)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "DATABASE_URL": database_url(connection), "DJANGO_SETTINGS_MODULE": "testproject.settings"},
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "in the job\n"
            yield process
        finally:
            process.kill()


def wait_until_free(run: JobRun) -> None:
    arguments = [run.key] if run.key_pair is None else [*run.key_pair]
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = '10s'")
        # In autocommit the lock that this waits for is let go with the statement.
        cursor.execute(f"SELECT pg_advisory_xact_lock({', '.join(['%s'] * len(arguments))})", arguments)
        cursor.execute("RESET statement_timeout")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("key", ["hashtextextended", "hashtext", -4242, (-7, 2**31 - 1), (5, -1)], ids=str)
def test_killed_run_is_shown_as_lost_and_nothing_is_written(key: object, admin_client: Client) -> None:
    with process_in_job(key) as process:
        run = JobRun.objects.get()
        # The previous run of the key was killed too, and the clock of neither is within the ten seconds of grace.
        earlier = JobRun.objects.get()
        earlier.pk = None
        earlier.save()
        JobRun.objects.update(started_at=F("started_at") - timedelta(seconds=11))
        earlier.refresh_from_db()

        page = admin_client.get("/admin/django_singlecron/jobrun/").content.decode()
        assert badges(page) == ["lost (not yet recorded)", "running"]
        assert monitoring.unrecorded_losses("default") == [earlier.pk]

        process.kill()
        process.wait(timeout=10)
        wait_until_free(run)

    page = admin_client.get("/admin/django_singlecron/jobrun/").content.decode()
    assert badges(page) == ["lost (not yet recorded)"] * 2
    page = admin_client.get(f"/admin/django_singlecron/jobrun/{run.pk}/change/").content.decode()
    assert badges(page) == ["lost (not yet recorded)"]
    page = admin_client.get("/admin/django_singlecron/jobrun/?status=lost").content.decode()
    assert badges(page) == ["lost (not yet recorded)"] * 2
    page = admin_client.get("/admin/django_singlecron/jobrun/?status=running").content.decode()
    assert badges(page) == []
    assert set(JobRun.objects.values_list("status", flat=True)) == {"running"}


def badges(page: str) -> list[str]:
    """What the page says of the status of each run."""
    badge = r'class="singlecron-badge singlecron-\w+">(\w+)</span>(?: <span class="singlecron-note">([^<]+))?'
    # The outcome's comes before each.
    return [" ".join(filter(None, found)) for found in re.findall(badge, page)][1::2]


@pytest.mark.parametrize(
    ("holders", "values", "lost"),
    [
        ({(4242, False): "singlecron/7 nightly_billing"}, {}, False),
        ({(4242, False): "singlecron/71 nightly_billing"}, {}, True),
        ({(4242, False): "billing, 40 %"}, {}, False),
        ({(4242, True): "singlecron/7 nightly_billing"}, {}, True),
        ({(4243, False): "singlecron/7 nightly_billing"}, {}, True),
        ({}, {}, True),
        ({}, {"key": None}, True),
        ({}, {"started_at": NOW - timedelta(seconds=9)}, False),
        ({}, {"lock": "none", "key": None}, False),
        ({}, {"status": "succeeded"}, False),
        ({}, {"status": "failed"}, False),
    ],
)
def test_a_run_is_lost_only_when_it_should_hold_a_lock_and_does_not(
    holders: dict[tuple[int, bool], str], values: dict[str, object], lost: bool
) -> None:
    assert Live(NOW, holders).is_lost(a_run(**values)) is lost


def test_without_postgresql_nothing_is_told() -> None:
    assert [run.status for run in monitoring.tell_lost([a_run()], None)] == ["running"]


@pytest.mark.django_db
def test_looking_gives_the_database_clock_when_nothing_is_locked() -> None:
    live = monitoring.look("default")
    assert live is not None
    assert live.at.tzinfo is not None
    assert all(isinstance(key, int) for key, _pair in live.holders)


@pytest.mark.parametrize(("age", "lost"), [(11, True), (5, False), (-5, False), (-11, True)])
def test_a_run_that_began_in_the_future_is_as_old_as_one_in_the_past(age: int, lost: bool) -> None:
    now = datetime.now(timezone.utc)
    run = JobRun(status="running", lock="transaction", key=1, started_at=now - timedelta(seconds=age))
    assert monitoring.Live(at=now, holders={}).is_lost(run) is lost
