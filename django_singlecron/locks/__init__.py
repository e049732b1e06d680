"""How exclusivity is had: one small protocol, and a file for each way of meeting it."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar, NamedTuple, Protocol

from ..database import Sql
from ..keys import LockKey


class Hold(NamedTuple):
    """What a run's transaction is set up with."""

    run_id: int
    job: str
    timeout: timedelta | None


class Lock(Protocol):
    """A lock that lasts as long as the transaction that took it."""

    label: ClassVar[str]
    """How `JobRun.lock` calls it."""

    def key(self, key: LockKey) -> Sql:
        """An expression: the key as one 64-bit integer, as the history stores it."""
        ...

    def probe(self, key: LockKey) -> Sql:
        """A condition: nobody holds the key. Probes do not see one another."""
        ...

    def acquire(self, key: LockKey, hold: Hold) -> Sql:
        """A query of one row that takes the lock for a run's transaction and sets its guards.

        Its first column is whether the lock is granted. Then, and only then, the setting `singlecron.run` is the run's
        id: by that the run knows later whether it still holds it (`history.holds`).
        """
        ...
