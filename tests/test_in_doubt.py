"""Where a failure counts as well as a success: what an attempt makes of an older one that has not said how it ended."""

from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from django_singlecron import singleton_task
from django_singlecron.models import JobRun
from tests.support.deadlines import wait_until
from tests.support.threads import in_threads

pytestmark = pytest.mark.django_db(transaction=True)

OPTIONS: list[dict[str, Any]] = [{"once_per": "day", "retry": False}, {"min_interval": 3600}]


def older_attempt(job: str, age: timedelta = timedelta(0)) -> JobRun:
    """A run that has let its lock go and not recorded its end, as one that failed this moment; its session is there."""
    singleton_task(job, **OPTIONS[0])(lambda: None)()
    run = JobRun.objects.for_job(job).get()
    JobRun.objects.update(status=JobRun.Status.RUNNING, finished_at=None, started_at=Now() - age)
    return run


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(
    ("end", "reasons"),
    [
        ({"status": "failed", "finished_at": Now()}, {"already_ran", "too_soon"}),
        ({"status": "skipped", "outcome": "skipped", "finished_at": Now()}, {None}),
    ],
)
def test_it_waits_for_the_older_ones_word(options: dict[str, Any], end: dict[str, Any], reasons: set[str]) -> None:
    task = singleton_task("in-doubt", **options)(lambda: None)
    older = older_attempt("in-doubt")

    def replica(number: int) -> str | None:
        if number == 0:
            return task().skip_reason
        wait_until(lambda: JobRun.objects.exclude(pk=older.pk).exists(), what="the attempt of the other replica")
        JobRun.objects.filter(pk=older.pk).update(**end)
        return None

    assert in_threads(2, replica)[0] in reasons


# Ten minutes before the server's clock was set back, which are in the future now, nobody waits for.
@pytest.mark.parametrize("age", [9.5, -600])
@pytest.mark.parametrize("options", OPTIONS)
def test_one_that_was_killed_behind_a_pooler_counts_once_it_is_lost(options: dict[str, Any], age: float) -> None:
    older = older_attempt("in-doubt", age=timedelta(seconds=age))

    result = singleton_task("in-doubt", **options)(lambda: None)()

    assert (bool(result), result.held_by) == (False, older.pk)
    older.refresh_from_db()
    assert older.status == JobRun.Status.LOST


def test_a_forced_run_does_not_wait() -> None:
    older = older_attempt("in-doubt")
    assert singleton_task("in-doubt", **OPTIONS[0])(lambda: None).run(force=True)
    older.refresh_from_db()
    assert older.status == JobRun.Status.RUNNING


@pytest.mark.parametrize("options", OPTIONS)
def test_of_replicas_that_begin_at_once_exactly_one_runs(options: dict[str, Any]) -> None:
    ran: list[int] = []

    @singleton_task("in-doubt-{number}", **options)
    def task(number: int) -> None:
        ran.append(number)

    for number in range(10):
        in_threads(8, lambda _, number=number: task(number))  # type: ignore[misc]  # bound now
    assert ran == list(range(10))
    assert not JobRun.objects.running().exists()
