"""The check of django-health-check: unwell jobs are shown on its page, and no session stays open."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from django.db import connection
from health_check.base import HealthCheckResult
from health_check.exceptions import ServiceUnavailable, ServiceWarning

from django_singlecron.contrib.health_check import Jobs
from django_singlecron.models import JobWatch
from django_singlecron.testing import hold_lock
from tests.support_core import real_database
from tests.support_watch import AddTask, add_task_fixture, record

__all__ = ["add_task_fixture"]

pytestmark = real_database


def result(check: Jobs) -> HealthCheckResult:
    """As the library's view has it, in a thread of a pool."""
    with ThreadPoolExecutor(1) as executor:
        return asyncio.run(check.get_result(executor))


def test_well_and_unwell(add_task: AddTask) -> None:
    task = add_task()
    add_task("other")
    task()
    assert result(Jobs()).error is None
    with hold_lock("job"):
        error = result(Jobs()).error
        assert (type(error), str(error)) == (ServiceWarning, "Warning: job: orphaned_lock")
    record(status="failed", error_message="a secret")
    error = result(Jobs()).error
    assert (type(error), str(error)) == (ServiceUnavailable, "Unavailable: job: failing")
    assert result(Jobs(failures=2)).error is None
    assert result(Jobs(job="other")).error is None
    assert not JobWatch.objects.exists()


def test_what_cannot_be_checked_is_unavailable(add_task: AddTask) -> None:
    error = result(Jobs(database="absent")).error
    assert (type(error), str(error)) == (ServiceUnavailable, "Unavailable: some jobs could not be checked")


def test_a_connection_that_was_open_stays_open(add_task: AddTask) -> None:
    connection.ensure_connection()
    Jobs().run()
    assert connection.connection is not None
