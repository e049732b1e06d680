"""Many real connections in one process: one body at a time, whatever the timing, and every attempt recorded."""

import os
import threading
from collections import Counter
from datetime import timedelta

import pytest

from django_singlecron import RunResult, singleton_task
from django_singlecron.models import JobRun
from testproject.billing.models import Tenant
from tests.support.bodies import Body
from tests.support.deadlines import DEADLINE
from tests.support.sessions import Watcher
from tests.support.threads import in_threads

pytestmark = pytest.mark.django_db(transaction=True)


# A run holds its lock until its COMMIT is done, which comes after the end that its row tells.
COMMIT = timedelta(seconds=1)


@pytest.mark.parametrize("replicas", [2, 5, 80])
def test_of_attempts_at_once_one_runs_and_the_others_are_recorded_as_skipped(replicas: int) -> None:
    body = Body()

    @singleton_task("digest")
    def digest() -> None:
        Tenant.objects.create(name="written once", monthly_fee=1)
        body.run(wait_for_skips=replicas - 1)

    results = in_threads(replicas, lambda _: body.note(digest()))

    [winner] = [result for result in results if result.ran]
    assert body.runs == [winner.run_id]
    assert Tenant.objects.count() == 1
    assert {result.held_by for result in results if not result.ran} == {winner.run_id}
    rows = JobRun.objects.for_job("digest")
    assert rows.get(pk=winner.run_id).status == "succeeded"
    skipped = rows.skipped().filter(status="skipped", skip_reason="locked", held_by=winner.run_id)
    assert skipped.count() == replicas - 1 == rows.count() - 1


def test_two_threads_share_a_decorated_function_and_leave_its_lock_free(watcher: Watcher) -> None:
    body = Body()

    @singleton_task("shared")
    def shared() -> None:
        body.run(wait_for_skips=1)

    for _ in range(2):
        results = in_threads(2, lambda _: body.note(shared()))
        assert sorted(result.ran for result in results) == [False, True]
        assert watcher.advisory_locks() == []


# Each round is 40 attempts in one process: more than a minute where FULL_SIZE is set, a quarter of it elsewhere.
ROUNDS = 200 if os.environ.get("FULL_SIZE") else 50


@pytest.mark.timeout(300)
def test_in_200_rounds_of_40_threads_there_is_always_one_winner() -> None:
    rounds, replicas = ROUNDS, 40
    bodies = [Body() for _ in range(rounds)]
    start = threading.Barrier(replicas)

    @singleton_task("rounds")
    def job(number: int) -> None:
        bodies[number].run(wait_for_skips=replicas - 1)

    def replica(_: int) -> list[RunResult[None]]:
        results = []
        for number in range(rounds):
            start.wait(DEADLINE)
            results.append(bodies[number].note(job(number)))
        return results

    by_replica = in_threads(replicas, replica, seconds=240)

    winners = [body.runs for body in bodies]
    assert [len(runs) for runs in winners] == [1] * rounds
    named = Counter(result.held_by for results in by_replica for result in results if not result.ran)
    assert named == {run: replicas - 1 for [run] in winners}
    rows = JobRun.objects.for_job("rounds")
    assert rows.succeeded().count() == rounds
    recorded = rows.skipped().filter(status="skipped").values_list("held_by", flat=True)
    assert Counter(recorded) == named


def test_when_runs_follow_at_once_each_skip_names_a_run_that_was_going_on() -> None:
    rounds, replicas = 20, 20
    body = Body()
    start = threading.Barrier(replicas)

    @singleton_task("brief")
    def brief() -> None:
        body.run()

    def replica(_: int) -> list[RunResult[None]]:
        results = []
        for _ in range(rounds):
            start.wait(DEADLINE)
            results.append(brief())
        return results

    results = [result for results in in_threads(replicas, replica) for result in results]

    rows = {row.pk: row for row in JobRun.objects.for_job("brief")}
    assert len(rows) == rounds * replicas
    assert {row.status for row in rows.values()} == {"succeeded", "skipped"}
    assert sorted(body.runs) == sorted(pk for pk, row in rows.items() if row.status == "succeeded")
    skips = [rows[result.run_id] for result in results if not result.ran and result.run_id]
    assert {skip.pk: skip.held_by_id for skip in skips} == {r.run_id: r.held_by for r in results if not r.ran}
    for skip in skips:
        holder = rows[skip.held_by_id]
        assert holder.status == "succeeded"
        assert skip.started_at < holder.finished_at + COMMIT, "The holder had ended before the attempt."
        assert holder.started_at < skip.finished_at + COMMIT, "The holder came after the attempt."
