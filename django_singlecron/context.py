"""The run that is going on in this thread or task, and what a call returns."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from .capture import OutputTail

T = TypeVar("T")


# No dataclass: each process that starts would generate its methods.
class Run:
    """One acquired attempt, as the job sees it through `current_run()`."""

    id: int
    """The primary key of its `JobRun` row."""
    name: str
    """The job's name, placeholders filled in."""
    key: int | None
    """The advisory lock's key; None when it runs without a lock."""
    started_at: datetime
    """When the attempt was made, by the database's clock."""
    using: str
    """The alias of the database that holds the lock, the history and the work."""
    slot: datetime | None
    """The slot that the run is for, in the job's time zone; None when the job has no slots."""
    token_if_drawn: int | None = None
    """The token when the job asked for it."""

    def __init__(
        self,
        run_id: int,
        name: str,
        key: int | None,
        started_at: datetime,
        using: str,
        slot: datetime | None = None,
        draw_token: Callable[[], int] | None = None,
    ) -> None:
        self.id = run_id
        self.name = name
        self.key = key
        self.started_at = started_at
        self.using = using
        self.slot = slot
        self._draw_token = draw_token

    @property
    def token(self) -> int | None:
        """A number that grows with every run of the job, for outside systems that fence; None without a lock.

        It is drawn from the history's sequence when it is first asked for, on the run's connection: a number that was
        drawn may cost the transaction an id of its own, which keeps vacuum from cleaning up while the job goes on.
        """
        if self.token_if_drawn is None and self._draw_token is not None:
            self.token_if_drawn = self._draw_token()
        return self.token_if_drawn

    def end(self, token: int | None) -> None:
        """Let the token be what the history says, now that none can be drawn under the lock any more."""
        self.token_if_drawn, self._draw_token = token, None

    def __repr__(self) -> str:
        return f"<run {self.id} of the job {self.name!r}>"


@dataclass(frozen=True)
class RunResult(Generic[T]):
    """What became of one call of a singleton task. True when the job ran, false when it was skipped."""

    outcome: str
    """`"acquired"` or `"skipped"`."""
    value: T | None = None
    """What the job returned; None when it was skipped."""
    skip_reason: str | None = None
    """Why it was skipped, such as `"locked"`; None when it ran."""
    held_by: int | None = None
    """The id of the run that held the lock or took the slot; None when it ran, or when the holder left no row."""
    run_id: int | None = None
    """The id of this attempt's `JobRun` row; None when skips are not recorded."""

    @property
    def ran(self) -> bool:
        """Whether the job ran."""
        return self.outcome == "acquired"

    def __bool__(self) -> bool:
        return self.ran


class RunContext(NamedTuple):
    """A run and the runs that it was called from."""

    run: Run
    outer: RunContext | None
    tail: OutputTail
    """What the run writes and logs."""
    inner_attempts: list[object]
    """The rows of attempts recorded inside the run's transaction, to be written again should that roll them back."""

    def find(self, name: str, using: str) -> RunContext | None:
        """Return the run of the job `name` in the database `using` that this is inside of, if any."""
        if (self.run.name, self.run.using) == (name, using):
            return self
        return self.outer.find(name, using) if self.outer else None


run_context: ContextVar[RunContext | None] = ContextVar("django_singlecron_run", default=None)


def current_run() -> Run | None:
    """Return the run that this code is part of, or None outside a job."""
    context = run_context.get()
    return context.run if context else None
