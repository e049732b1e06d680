"""What the server knows of the test database's sessions and locks, asked on a connection to another database."""

from dataclasses import dataclass
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from tests.support.deadlines import wait_until

SESSIONS = """
SELECT pid, application_name, coalesce(state, ''), left(query, 200)
FROM pg_stat_activity
WHERE datname = %s AND backend_type = 'client backend'
ORDER BY pid
"""

ADVISORY_LOCKS = """
SELECT pid, (classid::bigint << 32) | objid::bigint, mode, granted
FROM pg_locks
WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = %s)
ORDER BY pid
"""


@dataclass(frozen=True)
class Session:
    pid: int
    application_name: str
    state: str
    query: str


@dataclass(frozen=True)
class AdvisoryLock:
    pid: int
    key: int
    mode: str
    granted: bool


class Watcher:
    """Looks at the server from outside the test database, so that it is none of what it looks for."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._database = connection.settings_dict["NAME"]
        self._connection = connection.copy()
        self._connection.settings_dict["NAME"] = "postgres"

    def sessions(self) -> list[Session]:
        return [Session(*row) for row in self.fetch(SESSIONS, [self._database])]

    def advisory_locks(self) -> list[AdvisoryLock]:
        return [AdvisoryLock(*row) for row in self.fetch(ADVISORY_LOCKS, [self._database])]

    def run_sessions(self) -> list[Session]:
        """The sessions that are in a run's transaction at this moment."""
        return [session for session in self.sessions() if session.application_name.startswith("singlecron/")]

    def wait_for_run(self) -> Session:
        """Wait until some session is in a run's transaction."""
        return wait_until(self.run_sessions, what="a session that runs a job")[0]

    def fetch(self, query: str, parameters: list[Any]) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(query, parameters)
            return cursor.fetchall()

    def close(self) -> None:
        self._connection.close()


def own_pids() -> set[int]:
    """The server processes of this thread's connections."""
    return {wrapper.connection.info.backend_pid for wrapper in connections.all() if wrapper.connection is not None}


def own_open_transactions() -> set[int]:
    """The server processes of those of this thread's connections that are in a transaction, as in a TestCase."""
    return {
        wrapper.connection.info.backend_pid
        for wrapper in connections.all()
        if wrapper.connection is not None and wrapper.in_atomic_block
    }


def assert_nothing_left(watcher: Watcher, *, seconds: float = 5) -> None:
    """Fail when the test database keeps sessions that are not this thread's, or advisory locks.

    A session is gone a moment after its client, so both get a few seconds.
    """

    def left() -> list[Session | AdvisoryLock]:
        sessions = [session for session in watcher.sessions() if session.pid not in own_pids()]
        locks = [lock for lock in watcher.advisory_locks() if lock.pid not in own_open_transactions()]
        return [*sessions, *locks]

    try:
        wait_until(lambda: not left(), what="no session and no lock left behind", seconds=seconds)
    except AssertionError as error:
        raise AssertionError("Left behind: " + "; ".join(map(str, left()))) from error
