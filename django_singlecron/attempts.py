"""What is known of an attempt, of its row, and of the runs that were in its way: plain values."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from .keys import LockKey
from .models import JobRun


class Attempt(NamedTuple):
    """What is known of an attempt before it is made."""

    job: str
    key: LockKey
    record_skips: bool
    arguments: str
    host: str
    pid: int
    trigger: str
    command: str
    slot: datetime | None = None
    """The slot that its success will take; None when it will take none."""
    forced: bool = False

    def columns(self) -> dict[str, Any]:
        """Return what its row says of it, whatever became of it and under whichever lock."""
        return {name: value for name, value in self._asdict().items() if name not in ("key", "record_skips")}


class Holder(NamedTuple):
    """The run that holds the lock, for messages."""

    run_id: int
    host: str
    pid: int
    started_at: datetime
    is_sure: bool = False
    """Whether its server session was seen to hold the lock."""


class Claim(NamedTuple):
    """What must not have happened before, for an attempt to run."""

    now: datetime
    """The moment of the attempt, by the database's clock; with a time zone."""
    slot: datetime | None
    """The slot, as it is stored. No run may have taken it: by its success, or by any end where there is no retry."""
    retry: bool
    min_interval: timedelta | None
    """How long ago the last run must have started."""


class Earlier(NamedTuple):
    """An earlier run because of which an attempt is skipped."""

    skip_reason: str
    run: Holder

    @property
    def takes_slot(self) -> bool:
        """Whether it took the slot, and did not merely run a short time ago."""
        return self.skip_reason == JobRun.SkipReason.ALREADY_RAN


class Row(NamedTuple):
    """An attempt's row."""

    id: int
    key: int | None
    started_at: datetime
    held_by: int | None = None
    """The run that is on record as what kept it from running."""
    table_oid: int = 0
    """The number by which the server knows the history's table, whatever search_path says; 0 without a lock."""


class Opened(NamedTuple):
    """What came of opening an attempt."""

    acquired: bool
    row: Row | None
    """None when the attempt was skipped and skips are not recorded."""
    holders: Sequence[Holder] = ()
    """Runs of the key that may hold it, the likeliest first. More than one: some are about to find that they do not."""
