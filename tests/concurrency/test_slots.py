"""Twenty replicas whose clocks are spread over twenty seconds, and a job of a millisecond: once in each slot.

Two hundred slots where `FULL_SIZE` is set, forty elsewhere: each slot is twenty attempts, all in one process.
"""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

import pytest

from django_singlecron import RunResult, SingletonTask, singleton_task
from django_singlecron.models import JobRun
from django_singlecron.slots import make_schedule, slot_at
from testproject.billing.models import Tenant
from tests.support.deadlines import DEADLINE
from tests.support.threads import in_threads

REPLICAS = 20
SLOTS = 200 if os.environ.get("FULL_SIZE") else 40

PLAN = make_schedule("* * * * *", timezone.utc)
FIRST = datetime(2026, 10, 25, tzinfo=timezone.utc)
DUE = [FIRST + number * timedelta(minutes=1) for number in range(SLOTS)]

# The fastest clock is ten seconds early, the slowest ten seconds late.
SHIFTS = [timedelta(seconds=20 * number / (REPLICAS - 1) - 10) for number in range(REPLICAS)]

MakeTask = Callable[[int, Callable[[int, int], None]], SingletonTask[[int, int], RunResult[None]]]


def one_lock(_: int, work: Callable[[int, int], None]) -> SingletonTask[[int, int], RunResult[None]]:
    return singleton_task("minutely", schedule="* * * * *", timezone="UTC", record_skips=False)(work)


def a_lock_each(replica: int, work: Callable[[int, int], None]) -> SingletonTask[[int, int], RunResult[None]]:
    options = {"schedule": "* * * * *", "timezone": "UTC", "record_skips": False}
    return singleton_task("minutely", key=replica, **options)(work)  # type: ignore[arg-type, no-any-return]


@pytest.mark.timeout(360)
@pytest.mark.django_db(transaction=True, available_apps=["django_singlecron", "testproject.billing"])
@pytest.mark.parametrize("make_task", [one_lock, a_lock_each])
def test_each_slot_has_one_success_also_when_the_lock_keeps_nobody_out(make_task: MakeTask) -> None:
    start = threading.Barrier(REPLICAS)
    begun: list[int] = []

    def work(slot: int, replica: int) -> None:
        begun.append(slot)
        Tenant.objects.create(name=f"{slot} {replica}", monthly_fee=1)
        time.sleep(0.001)

    def replica(number: int) -> list[tuple[int, int, int]]:
        task = make_task(number, work)
        won = []
        for slot, due in enumerate(DUE):
            start.wait(DEADLINE)
            result = task.run(slot, number, slot=slot_at(PLAN, due + SHIFTS[number]))
            if result:
                won.append((slot, number, result.run_id or 0))
        return won

    won = [success for successes in in_threads(REPLICAS, replica, seconds=300) for success in successes]

    assert sorted(slot for slot, _, _ in won) == list(range(SLOTS))
    succeeded = JobRun.objects.for_job("minutely").succeeded()
    assert {row.pk: row.slot for row in succeeded} == {run: DUE[slot] for slot, _, run in won}
    assert JobRun.objects.count() == SLOTS
    assert sorted(Tenant.objects.values_list("name", flat=True)) == sorted(f"{slot} {by}" for slot, by, _ in won)
    in_vain = Counter(begun).total() - SLOTS
    assert in_vain == 0 if make_task is one_lock else in_vain > 0
