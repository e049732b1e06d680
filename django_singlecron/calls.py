"""One call of a singleton task on its way to a run, and what comes back.

Plain classes, since each process that calls a task would have to generate the methods of named tuples and dataclasses.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .capture import OutputTail
    from .context import RunResult
    from .keys import LockKey
    from .slots import Plan


class Call:
    """One call of a singleton task."""

    def __init__(
        self,
        *,
        job: str,
        key: LockKey,
        using: str,
        timeout: timedelta | None,
        record_skips: bool,
        arguments: str,
        trigger: str,
        command: str,
        body: Callable[[OutputTail], Any],
        plan: Plan | None = None,
        slot: datetime | None = None,
        retry: bool = True,
        min_interval: timedelta | None = None,
        force: bool = False,
        is_async: bool = False,
        on_acquired: Callable[[int], object] | None = None,
    ) -> None:
        self.job = job
        self.key = key
        self.using = using
        self.timeout = timeout
        self.record_skips = record_skips
        self.arguments = arguments
        self.trigger = trigger
        self.command = command
        self.body = body
        """Runs the job; what it writes goes to the tail too. May return a coroutine, which is awaited."""
        self.plan = plan
        self.slot = slot
        """The slot to run for, in place of the present one."""
        self.retry = retry
        self.min_interval = min_interval
        self.force = force
        self.is_async = is_async
        self.on_acquired = on_acquired
        """Told the run's id before it starts."""


class Outcome:
    """The result of a call, and in words why it was skipped."""

    def __init__(self, result: RunResult[Any], explain: Callable[[], str] = str) -> None:
        self.result = result
        self.explain = explain
        """Says why it was skipped; nothing, which is what `str()` gives, when it ran."""
