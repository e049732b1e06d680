"""The history's questions and what a row says of itself."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_singlecron.models import JobRun

pytestmark = pytest.mark.django_db

START = dt.datetime(2026, 11, 29, 2, 0, tzinfo=dt.timezone.utc)


def record(job: str = "job", status: str = "succeeded", **values: Any) -> JobRun:
    outcome = "skipped" if status == "skipped" else "acquired"
    values = {"host": "web-1", "pid": 1, "trigger": "function", "started_at": START, **values}
    return JobRun.objects.create(job=job, outcome=outcome, status=status, **values)


def test_each_verb_finds_its_rows() -> None:
    rows = {status: record(status=status) for status in JobRun.Status.values}
    runs = JobRun.objects
    assert runs.acquired().count() == 4
    assert runs.skipped().get() == rows["skipped"]
    assert runs.running().get() == rows["running"]
    assert runs.succeeded().get() == rows["succeeded"]
    assert runs.failed().get() == rows["failed"]
    assert runs.lost().get() == rows["lost"]


def test_a_jobs_attempts_come_newest_first() -> None:
    first, second = record("a"), record("a")
    record("b")
    assert list(JobRun.objects.for_job("a")) == [second, first]
    assert JobRun.objects.latest() != first


def test_the_newest_attempt_of_each_job_is_found_in_one_query() -> None:
    for job in ("b", "a", "c", "a"):
        last = record(job)
    with CaptureQueriesContext(
        connection,
    ) as queries:
        newest = list(JobRun.objects.latest_per_job())
    assert [run.job for run in newest] == ["a", "b", "c"]
    assert newest[0] == last
    assert len(queries) == 1


def test_an_empty_history_has_no_newest_attempt() -> None:
    assert list(JobRun.objects.latest_per_job()) == []


def test_large_columns_are_left_unread() -> None:
    record(traceback="x")
    with CaptureQueriesContext(connection) as queries:
        run = JobRun.objects.without_texts().get()
    for column in ("arguments", "error_message", "traceback", "output"):
        assert f'"{column}"' not in queries[0]["sql"]
    assert run.traceback == "x"


def test_a_row_says_which_run_it_is() -> None:
    run = record("nightly", "failed")
    assert str(run) == f"nightly #{run.pk} failed"


def test_how_long_a_run_took() -> None:
    end = START + dt.timedelta(seconds=90)
    assert record(finished_at=end).duration == dt.timedelta(seconds=90)
    assert record(status="running").duration is None
    assert record(status="skipped", finished_at=end).duration is None


@pytest.mark.parametrize(
    ("key", "is_pair", "pair"),
    [
        ((7 << 32) | 42, True, (7, 42)),
        ((7 << 32) | 0xFFFF_FFFF, True, (7, -1)),
        ((-1 << 32) | 5, True, (-1, 5)),
        (-(2**63), True, (-(2**31), 0)),
        (42, False, None),
        (None, False, None),
    ],
)
def test_a_key_that_is_a_pair_is_shown_as_such(key: int | None, is_pair: bool, pair: tuple[int, int] | None) -> None:
    run = record(key=key, key_is_pair=is_pair)
    run.refresh_from_db()
    assert run.key_pair == pair


def test_a_deleted_holder_is_forgotten_by_the_rows_that_it_held_up() -> None:
    holder = record()
    skip = record(status="skipped", held_by=holder)
    assert list(holder.blocked.all()) == [skip]
    holder.delete()
    skip.refresh_from_db()
    assert skip.held_by_id is None
