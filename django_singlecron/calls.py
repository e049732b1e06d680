"""One call of a singleton task on its way to a run, and what comes back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, NamedTuple, TypeVar

from .capture import OutputTail
from .context import RunResult
from .keys import LockKey
from .slots import Plan

T = TypeVar("T")

Body = Callable[[OutputTail], Any]


class Call(NamedTuple):
    """One call of a singleton task."""

    job: str
    key: LockKey
    using: str
    timeout: timedelta | None
    record_skips: bool
    arguments: str
    trigger: str
    command: str
    body: Body
    """Runs the job; what it writes goes to the tail too. May return a coroutine, which is awaited."""
    plan: Plan | None = None
    slot: datetime | None = None
    """The slot to run for, in place of the present one."""
    retry: bool = True
    min_interval: timedelta | None = None
    force: bool = False
    is_async: bool = False
    on_acquired: Callable[[int], object] | None = None
    """Told the run's id before it starts."""


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """The result of a call, and in words why it was skipped."""

    result: RunResult[T]
    explanation: str = ""
