"""What is known of an attempt, of its row, and of the runs that were in its way: plain values.

Plain classes, since each process that tries a job would have to generate the methods of named tuples and dataclasses.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from .calls import Call


class Attempt:
    """An attempt at a call's job. One object for each call."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.host = socket.gethostname()[:255]
        self.pid = os.getpid()
        self.slot: datetime | None = None
        """The slot that its success will take, as it is stored; None when it will take none."""

    def columns(self) -> dict[str, Any]:
        """Return what its row says of it, whatever became of it and under whichever lock."""
        call = self.call
        return {
            "job": call.job,
            "arguments": call.arguments,
            "slot": self.slot,
            "forced": call.force,
            "host": self.host,
            "pid": self.pid,
            "trigger": call.trigger,
            "command": call.command,
        }


class Holder:
    """The run that holds the lock, for messages."""

    def __init__(self, run_id: int, host: str, pid: int, started_at: datetime, is_sure: bool = False) -> None:
        self.run_id = run_id
        self.host = host
        self.pid = pid
        self.started_at = started_at
        self.is_sure = is_sure
        """Whether its server session was seen to hold the lock."""


class Row:
    """An attempt's row."""

    def __init__(
        self, run_id: int, key: int | None, started_at: datetime, held_by: int | None = None, table_oid: int = 0
    ) -> None:
        self.id = run_id
        self.key = key
        self.started_at = started_at
        self.held_by = held_by
        """The run that is on record as what kept it from running."""
        self.table_oid = table_oid
        """The number by which the server knows the history's table, whatever search_path says; 0 without a lock."""


class Opened:
    """What came of opening an attempt."""

    def __init__(self, acquired: bool, row: Row | None, holders: Sequence[Holder] = ()) -> None:
        self.acquired = acquired
        self.row = row
        """None when the attempt was skipped and skips are not recorded."""
        self.holders = holders
        """Runs of the key that may hold it, the likeliest first. More than one: some are to find that they do not."""
