"""What the tests of the ledger, the check and the status share: tasks that are the only ones, and runs of the past."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from django.db import connections

from django_singlecron import SingletonTask, registry, singleton_task
from django_singlecron.database import clock
from django_singlecron.models import JobRun, JobWatch

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)

AddTask = Callable[..., SingletonTask[Any, Any]]


@pytest.fixture(name="add_task")
def add_task_fixture(monkeypatch: pytest.MonkeyPatch) -> AddTask:
    """Define tasks, which are the only ones in the test."""
    registry.autodiscover()
    tasks: dict[str, SingletonTask[Any, Any]] = {}
    monkeypatch.setattr(registry, "_tasks", tasks)

    def add(name: str = "job", function: Callable[..., Any] = lambda: None, **options: Any) -> SingletonTask[Any, Any]:
        tasks[name] = singleton_task(name, **options)(function)
        return tasks[name]

    return add


def now() -> datetime:
    return clock(connections["default"])


def minute(ago: timedelta) -> datetime:
    """The whole minute before `ago`."""
    return (now() - ago).astimezone(timezone.utc).replace(second=0, microsecond=0)


def daily(due: datetime) -> str:
    """The schedule that is due each day at that time."""
    return f"{due.minute} {due.hour} * * *"


def record(job: str = "job", status: str = "succeeded", **values: Any) -> JobRun:
    """Write a run, an hour ago unless `started_at` says, that took five seconds if it has ended."""
    started_at = values.pop("started_at", None) or now() - HOUR
    skipped = status == "skipped"
    return JobRun.objects.create(
        **{
            "job": job,
            "key": 4242,
            "outcome": "skipped" if skipped else "acquired",
            "skip_reason": "locked" if skipped else "",
            "status": status,
            "host": "web-1",
            "pid": 100,
            "trigger": "function",
            "started_at": started_at,
            "finished_at": None if status == "running" else started_at + timedelta(seconds=5),
            **values,
        }
    )


def watch_since(job: str, since: datetime) -> None:
    """Let the check have seen the job long ago."""
    JobWatch.objects.filter(job=job).update(watched_since=since)
