"""A project that has `USE_TZ` False, to which Django gives times without their zone."""

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from django.db import connection
from django.db.backends.postgresql.psycopg_any import is_psycopg3
from django.test import override_settings

from django_singlecron import backfill, database, singleton_task
from django_singlecron.models import JobRun, JobWatch
from django_singlecron.watch import Look, check
from tests.support.threads import in_threads

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _without_zones() -> Iterator[None]:
    with override_settings(USE_TZ=False, TIME_ZONE="America/New_York"):
        yield


@pytest.mark.parametrize(
    "options",
    [{"once_per": "month"}, {"once_per": timedelta(days=300)}, {"schedule": "0 0 1 1 *"}, {"min_interval": 3600}],
)
def test_a_second_run_is_skipped(options: dict[str, Any]) -> None:
    task = singleton_task("without-zones", **options)(lambda: None)
    assert [bool(task()), bool(task())] == [True, False]


def test_a_backfill_knows_what_is_done() -> None:
    task = singleton_task("without-zones", schedule="0 2 * * *")(lambda: None)
    slots = backfill.slots_of_range(task, datetime(2026, 3, 7), datetime(2026, 3, 10))  # noqa: DTZ001  # in the task's zone
    assert task.run(slot=slots[1])

    assert backfill.succeeded_slots("without-zones", "default", slots) == {slots[1].astimezone(timezone.utc)}


@pytest.mark.skipif(not is_psycopg3, reason="without USE_TZ, psycopg2 gives times that do not tell the two hours apart")
def test_a_slot_in_the_hour_that_happens_twice_is_the_one_that_was_meant() -> None:
    task = singleton_task("without-zones", once_per="hour")(lambda: None)
    slots = backfill.slots_of_range(task, datetime(2025, 11, 2, 1), datetime(2025, 11, 2, 2))  # noqa: DTZ001  # in the task's zone
    assert task.run(slot=slots[1])

    assert len(slots) == 3
    assert backfill.succeeded_slots("without-zones", "default", slots) == {slots[1].astimezone(timezone.utc)}


def test_the_check_sees_what_is_wrong_with_a_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    task = singleton_task("without-zones", schedule="* * * * *", grace=1, max_duration=60)(lambda: None)
    monkeypatch.setattr("django_singlecron.registry._tasks", {"here": task})
    task()
    assert check(Look(writes=True)).problems == []
    hour = timedelta(hours=1)
    JobWatch.objects.update(watched_since=database.clock(connection) - hour)
    JobRun.objects.update(slot=database.clock(connection) - hour, status="lost")

    kinds = {problem.kind.value for _, problem in check(Look(writes=True)).problems}

    assert kinds == {"lost", "missed"}


def test_who_is_skipped_says_since_when_the_holder_runs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="django_singlecron")

    @singleton_task("without-zones")
    def task() -> None:
        assert not in_threads(1, lambda _: task())[0]

    task()

    held_since = JobRun.objects.acquired().get().started_at
    assert f"holds its lock since {held_since.isoformat(sep=' ', timespec='seconds')}." in caplog.text
