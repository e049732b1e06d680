"""The doctor's own connections: opened by the project's settings, every wait with a deadline, all closed at the end."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar, cast

from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from ..capture import error_message
from ..database import sqlstate
from ..interrupts import own_socket, shut_down
from ..keys import LockKey
from ..locks import Hold
from ..locks.postgres import PostgresLock
from ..registry import ImportFailure

T = TypeVar("T")

# libpq and psycopg take whole seconds, and no fewer than two.
CONNECT_SECONDS = 5
ANSWER_SECONDS = 4.0
TOTAL_SECONDS = 40.0

# Ends a statement that waits in the server, such as for a table that a migration has locked, before the replica's own
# deadline ends the connection: the session would otherwise wait on without its client.
_LIMITS = "SELECT set_config('statement_timeout', '3000', true), set_config('lock_timeout', '2000', true)"

_LOCK = PostgresLock()

_WAITED = "Something has the table locked, or the server is overloaded: look in pg_stat_activity, and try again."
_ADVICE = {
    "25006": "Point the alias at a server, and give it a role, that takes writes.",
    "42501": (
        "Grant the role SELECT, INSERT, UPDATE, DELETE on django_singlecron_jobrun and django_singlecron_jobwatch, and "
        "USAGE on their sequences."
    ),
    "55P03": _WAITED,
    "57014": _WAITED,
}

# A run's number is never 0, so nobody takes the doctor's session for a run.
_HOLD = Hold(0, "doctor", None)


class NoAnswer(Exception):
    """A connection gave no answer within the deadline, and was cut off."""


class Session:
    """One connection with the settings of an alias, outside any pool of the process."""

    def __init__(self, alias: str) -> None:
        self._wrapper = _fresh(alias)
        self._socket: socket.socket | None = None

    @property
    def own_socket(self) -> socket.socket:
        """The socket of the open connection."""
        return cast("socket.socket", self._socket)

    def open(self) -> None:
        """Connect. Raises the database's `Error`, or `NoAnswer`."""
        with self._deadline(CONNECT_SECONDS + ANSWER_SECONDS):
            self._wrapper.ensure_connection()
        self._socket = own_socket(self._wrapper)

    def close(self) -> None:
        """Disconnect, which rolls back what is open."""
        if self._socket is not None:
            self._socket.close()
        with suppress(Error):
            self._wrapper.close()

    def cut(self) -> None:
        """End the connection as the death of its process would."""
        shut_down(self.own_socket)

    def rows(self, sql: str, parameters: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """Return the rows of a query. Raises the database's `Error`, or `NoAnswer`."""
        with self._deadline(ANSWER_SECONDS), self._wrapper.cursor() as cursor:
            cursor.execute(sql, parameters)
            rows: list[tuple[Any, ...]] = cursor.fetchall() if cursor.description else []
        return rows

    def row(self, sql: str, parameters: Sequence[Any] | None = None) -> tuple[Any, ...]:
        """Return the one row of a query."""
        return self.rows(sql, parameters)[0]

    def read(self, sql: str, parameters: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """Return the rows of a query that may have to wait, in a transaction with the doctor's limits."""
        self.begin()
        try:
            rows = self.rows(sql, parameters)
        except Error:
            with suppress(Error):
                self.rollback()
            raise
        self.rollback()
        return rows

    def begin(self, *, limits: bool = True) -> None:
        """Begin a transaction; without `limits` its first statement is still to be sent."""
        self._wrapper.set_autocommit(False)
        if limits:
            self.row(_LIMITS)

    def commit(self) -> None:
        with self._deadline(ANSWER_SECONDS):
            self._wrapper.commit()
            self._wrapper.set_autocommit(True)

    def rollback(self) -> None:
        with self._deadline(ANSWER_SECONDS):
            self._wrapper.rollback()
            self._wrapper.set_autocommit(True)

    def announced_pid(self) -> int:
        """The server process that answered when it connected, by its own account."""
        pid: int = self._wrapper.connection.info.backend_pid
        return pid

    def pid(self) -> int:
        """The server process that answers at this moment."""
        pid: int = self.row("SELECT pg_backend_pid()")[0]
        return pid

    def acquire(self, key: LockKey) -> bool:
        """Begin a run's transaction, by the query that runs send: take the lock, and set the guards."""
        self.begin(limits=False)
        granted: bool = self.row(*_LOCK.acquire(key, _HOLD))[0]
        return granted

    def probe(self, key: LockKey) -> bool:
        """Whether nobody holds the key, by the condition that attempts ask."""
        condition = _LOCK.probe(key)
        free: bool = self.row(f"SELECT {condition.text}", condition.parameters)[0]
        return free

    def is_granted(self, key: LockKey) -> bool:
        """Whether a run would get the key now: it is let go at once."""
        with self.rolled_back(self.acquire(key)) as granted:
            return granted

    @contextmanager
    def rolled_back(self, value: T) -> Iterator[T]:
        """Give what began a transaction, and roll that back after the block; after an error `close` does."""
        yield value
        self.rollback()

    @contextmanager
    def _deadline(self, seconds: float) -> Iterator[None]:
        """Cut the connection off when the block takes longer, and raise `NoAnswer` at its end."""
        over, passed = threading.Event(), threading.Event()

        def watch() -> None:
            wait = seconds
            while not over.wait(wait):
                passed.set()
                self._cut_off()
                # It was still connecting, perhaps, and had no socket yet.
                wait = 0.1

        watcher = threading.Thread(target=watch, name="singlecron-doctor", daemon=True)
        watcher.start()
        try:
            yield
        except Error as error:
            if not passed.is_set():
                raise
            raise NoAnswer(f"no answer within {seconds:g} s") from error
        finally:
            over.set()
            watcher.join()

    def _cut_off(self) -> None:
        if self._socket is not None:
            shut_down(self._socket)
        elif self._wrapper.connection is not None:
            with own_socket(self._wrapper) as its_socket:
                shut_down(its_socket)


class Stack:
    """What is examined: one database of the project, seen from this replica."""

    def __init__(
        self, alias: str, algorithms: Collection[str] = (), import_failures: Sequence[ImportFailure] = ()
    ) -> None:
        self.alias = alias
        self.import_failures = import_failures
        """The modules of tasks that cannot be imported."""
        self.algorithms = sorted({"hashtextextended", "pair", *algorithms})
        """The ways in which the tasks' names become keys: the default one and both key spaces at least."""
        self.pooled = False
        """Whether a pooler stands between, as far as it was seen."""
        self.lends_sessions = False
        """Whether that pooler gives a server session to one client after the other, as in transaction mode."""
        self._sessions: dict[str, Session] = {}
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long it has taken."""
        return time.monotonic() - self._began

    @property
    def first(self) -> Session:
        """A connection, open."""
        return self._session("first")

    @property
    def second(self) -> Session:
        """Another one, as another replica would have it."""
        return self._session("second")

    def keys(self) -> list[LockKey]:
        """Return new keys, one of each kind, that no job has and no other doctor."""
        number, name = secrets.randbits(63), f"django_singlecron.doctor/{secrets.token_hex(16)}"
        arguments: dict[str, tuple[Any, ...]] = {
            "integer": (number,),
            "pair": (number >> 32, number & 0x7FFF_FFFF),
        }
        return [LockKey(cast("Any", each), arguments.get(each, (name,))) for each in self.algorithms]

    def close(self) -> None:
        """Close the connections."""
        while self._sessions:
            self._sessions.popitem()[1].close()

    def _session(self, name: str) -> Session:
        if name not in self._sessions:
            self._sessions[name] = Session(self.alias)
            self._sessions[name].open()
        return self._sessions[name]


def advice_on(error: BaseException) -> str:
    """Return what to do about what a database said, or did not say."""
    if isinstance(error, NoAnswer):
        return "Look whether the server is overloaded, or a pooler has no connection to give."
    return _ADVICE.get(sqlstate(error) or "", "Mend what the reason names.")


def reason_of(error: BaseException) -> str:
    """Return an error as one line."""
    return " ".join(error_message(error).split()).rstrip(".")


def _fresh(alias: str) -> BaseDatabaseWrapper:
    wrapper = connections[alias].copy()
    options = wrapper.settings_dict["OPTIONS"]
    # A pool of the process would keep the connections, and might have none to give.
    options.pop("pool", None)
    given = int(options.get("connect_timeout") or 0)
    options["connect_timeout"] = given if 0 < given < CONNECT_SECONDS else CONNECT_SECONDS
    wrapper.settings_dict["CONN_MAX_AGE"] = 0
    return wrapper
