"""One call of a singleton task on its way to a run, and what comes back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from .capture import OutputTail
from .context import RunResult
from .keys import LockKey
from .slots import Plan

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


class Outcome(NamedTuple):
    """The result of a call, and in words why it was skipped."""

    result: RunResult[Any]
    explain: Callable[[], str] = str
    """Says why it was skipped; nothing, which is what `str()` gives, when it ran."""
