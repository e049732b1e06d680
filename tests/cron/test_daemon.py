"""Two replicas that a real cron daemon fires every minute. Takes four minutes, so it runs only when asked for."""

from __future__ import annotations

import os
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from django.db import connection

from django_singlecron.models import JobRun
from testproject.billing.models import Tenant
from tests.cron.daemon import Checkout, cron_daemon, own_crontab, require_cron
from tests.support.deadlines import wait_until
from tests.support.replicas import database_url

MINUTES = 3
MINUTE = timedelta(minutes=1)
JOBS = ("hanging", "quick")


@pytest.fixture
def replicas(transactional_db: None, tmp_path: Path) -> Iterator[list[Checkout]]:
    """Two checkouts with their lines in the crontab, and a daemon that has not fired them yet."""
    require_cron()
    hang = tmp_path / "hang"
    hang.touch()
    with ExitStack() as stack:
        stack.enter_context(own_crontab())
        checkouts = [Checkout(tmp_path / name, database_url(connection), hang) for name in ("replica-1", "replica-2")]
        for checkout in checkouts:
            stack.callback(checkout.destroy)
            assert checkout.crontab("add").count("adding cronjob") == len(JOBS)
        stack.enter_context(cron_daemon())
        yield checkouts


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_each_slot_runs_once_and_a_killed_run_is_lost(replicas: list[Checkout]) -> None:
    killed = wait_for_the_hanging_run(replicas[0].hang)
    wait_until(lambda: JobRun.objects.filter(held_by=killed), what="the other replica's skip", seconds=45)
    os.kill(killed.pid, signal.SIGKILL)

    slots = [killed.slot + number * MINUTE for number in range(MINUTES)]
    runs = wait_for_the_runs_of(slots, replicas)
    for checkout in replicas:
        checkout.crontab("remove")

    killed.refresh_from_db()
    assert (killed.status, killed.outcome, killed.error_class) == ("lost", "acquired", "")
    assert "was killed" in killed.error_message
    for job in JOBS:
        for slot in slots:
            acquired, skipped = sorted(runs[job, slot], key=lambda run: run.outcome)
            assert (acquired.outcome, skipped.outcome) == ("acquired", "skipped")
            # The replica that came too late for a lock came too late for the slot.
            assert skipped.held_by_id == acquired.pk
            assert skipped.skip_reason in ("locked", "already_ran")
            assert acquired.pid != skipped.pid
            # Nobody fires the killed run's slot again: the next firing belongs to the next one.
            assert acquired.status == ("lost" if acquired == killed else "succeeded")

    done = [
        f"{job} {slot.isoformat()} für 5 €" for job in JOBS for slot in slots if (job, slot) != ("hanging", slots[0])
    ]
    assert sorted(Tenant.objects.values_list("name", flat=True)) == sorted(done)
    assert_cron_gave_nothing(replicas)


def wait_for_the_hanging_run(hang: Path) -> JobRun:
    """Wait until the first minute begins, in which one replica takes the file away that makes a run hang."""
    wait_until(lambda: not hang.exists(), what="a run that hangs", seconds=90)
    runs = JobRun.objects.filter(job="hanging", status="running")
    # Another may be about to find that it came too late for the lock.
    wait_until(lambda: runs.count() == 1, what="one run alone")
    return runs.get()


def wait_for_the_runs_of(
    slots: list[datetime], replicas: list[Checkout]
) -> dict[tuple[str, datetime | None], list[JobRun]]:
    """Wait until both replicas have ended their attempts for each slot; return them by job and slot."""
    attempts = JobRun.objects.filter(slot__in=slots).exclude(status="running")
    expected = len(JOBS) * len(slots) * len(replicas)
    try:
        wait_until(lambda: attempts.count() >= expected, what=f"{expected} attempts", seconds=MINUTES * 60)
    except AssertionError as error:
        recorded = list(JobRun.objects.values_list("job", "slot", "status"))
        raise AssertionError(f"There are {recorded}; {[replica.log for replica in replicas]}") from error
    found = defaultdict(list)
    for run in attempts:
        found[run.job, run.slot].append(run)
    return found


def assert_cron_gave_nothing(replicas: list[Checkout]) -> None:
    """Fail unless the runs had neither this process's environment nor anything to make up for it."""
    given = [replica.environment for replica in replicas if replica.environment]
    assert given
    for environment in given:
        assert not {"VIRTUAL_ENV", "PYTHONPATH", "DATABASE_URL", "DJANGO_SETTINGS_MODULE", "LC_ALL"} & set(environment)
        assert str(Path(sys.executable).parent) not in environment["PATH"].split(os.pathsep)
    log = "".join(replica.log for replica in replicas)
    assert log.count("quick: 5 €") == MINUTES
    assert "Error" not in log
