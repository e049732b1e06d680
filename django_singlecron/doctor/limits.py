"""What ends a run from outside: the limits of role, database and server, and how long a vanished host is waited for."""

from __future__ import annotations

import math
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from .. import registry
from ..locks.postgres import KEEPALIVE_COUNT, KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, UNACKNOWLEDGED
from .report import Verdict, failed, passed, warning
from .stack import Stack

# As they hold within a run's transaction, and who set them. transaction_timeout came with PostgreSQL 17.
_LIMITS = """
SELECT name, setting::bigint, source FROM pg_settings
WHERE name IN ('statement_timeout', 'transaction_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout',
               'idle_session_timeout')
"""

# From job to job along an index, and of each its newest runs; of so many jobs that it takes no second.
MOST_JOBS, NEWEST = 2_000, 50
_LONGEST = f"""
WITH RECURSIVE names (job) AS (
    (SELECT run.job FROM django_singlecron_jobrun AS run ORDER BY run.job LIMIT 1)
    UNION ALL
    SELECT (SELECT run.job FROM django_singlecron_jobrun AS run WHERE run.job > names.job ORDER BY run.job LIMIT 1)
    FROM names WHERE names.job IS NOT NULL
)
SELECT names.job, extract(epoch FROM longest.took)::float8
FROM (SELECT job FROM names WHERE job IS NOT NULL LIMIT {MOST_JOBS}) AS names
CROSS JOIN LATERAL (
    SELECT max(run.finished_at - run.started_at) AS took
    FROM (SELECT run.finished_at, run.started_at FROM django_singlecron_jobrun AS run
          WHERE run.job = names.job AND run.outcome = 'acquired' ORDER BY run.job, run.id DESC LIMIT {NEWEST}) AS run
) AS longest
WHERE longest.took IS NOT NULL
ORDER BY longest.took DESC
"""  # noqa: S608  # of constants alone

_WHERE = {
    "user": "of the role",
    "database": "of the database",
    "database user": "of the role in the database",
    "client": "of OPTIONS in DATABASES",
    "session": "of the session",
}

# What of these overrules ALTER ROLE.
_ABOVE_ROLE = ("database user", "client", "session")

# Of a limit that a run has come this near to, the next one may fall foul.
NEAR = 0.8

_NAMED = 3

# How the server watches over the client's host during a run, read back after the run's own statement.
_KEEPALIVE = """
SELECT inet_client_addr() IS NULL,
       max(setting::int) FILTER (WHERE name = 'tcp_keepalives_idle'),
       max(setting::int) FILTER (WHERE name = 'tcp_keepalives_interval'),
       max(setting::int) FILTER (WHERE name = 'tcp_keepalives_count'),
       max(setting::int) FILTER (WHERE name = 'tcp_user_timeout')
FROM pg_settings
"""

# So long a lock that nobody holds any more, or a process that waits for a server that is gone, does little harm.
PATIENCE_SECONDS = 120


class Limit(NamedTuple):
    """A limit of the server's, as it holds within a run."""

    name: str
    seconds: float
    source: str

    def __str__(self) -> str:
        return f"{self.name} = {self.seconds:g} s {_WHERE.get(self.source, 'of the server')}"


def timeouts(stack: Stack) -> Verdict:
    """No limit of the role, the database or the server ends a run that is as long as the longest on record."""
    with stack.first.rolled_back(stack.first.acquire(stack.keys()[0])):
        rows = stack.first.rows(_LIMITS)
    longest = stack.first.read(_LONGEST)
    limits = {name: Limit(name, setting / 1000, source) for name, setting, source in rows if setting}
    figures = {
        "limits": {limit.name: limit.seconds for limit in limits.values()},
        "longest_runs": {job: round(seconds, 3) for job, seconds in longest[:_NAMED]},
    }
    if idle := limits.get("idle_in_transaction_session_timeout"):
        return failed(
            f"A run could not switch {idle} off: it would end jobs that compute for longer.",
            "Look who sets it after the run's own statement.",
            **figures,
        )
    whole, statement = limits.get("transaction_timeout"), limits.get("statement_timeout")
    if whole and (over := _longer_than(whole.seconds, longest)):
        return failed(
            f"{whole} ends each run that takes longer, and there were: {over}.", _raise_limit(whole), **figures
        )
    if whole and (near := _longer_than(whole.seconds * NEAR, longest)):
        return warning(
            f"{whole} ends a run, and there were some nearly as long: {near}.", _raise_limit(whole), **figures
        )
    if whole and (later := _later_than(whole, stack)):
        return warning(f"{whole} ends a run before its own timeout= would: {later}.", _raise_limit(whole), **figures)
    if statement and (over := _longer_than(statement.seconds, longest)):
        return warning(
            f"{statement} ends a single statement, and runs have taken longer: {over}.",
            f"If one of their statements may take that long: {_raise_limit(statement)}",
            **figures,
        )
    shown = "; ".join(map(str, limits.values())) or "none is set"
    return passed(f"No limit is in the way of the longest runs ({shown}).", **figures)


def of_server(stack: Stack) -> Verdict:
    """Within seconds the server notices that the host of a run has vanished, and frees its lock."""
    session = stack.first
    is_remote = session.own_socket.family != socket.AF_UNIX
    with session.rolled_back(session.acquire(stack.keys()[0])):
        is_local, idle, interval, count, user_timeout = session.row(_KEEPALIVE)
    if is_local and not is_remote:
        return passed("Everything is on this host: should it vanish, the server and the lock go with it.")
    if stack.pooled:
        return warning(
            "That a replica's host has vanished is noticed by the pooler, whose settings cannot be seen from here.",
            f"In pgbouncer.ini: tcp_keepidle = {KEEPALIVE_IDLE}, tcp_keepintvl = {KEEPALIVE_INTERVAL}, tcp_keepcnt = "
            f"{KEEPALIVE_COUNT}, tcp_user_timeout = {UNACKNOWLEDGED * 1000}. Then accept this warning: --accept "
            "keepalive.server.",
        )
    if (idle, interval, count) != (KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_COUNT):
        return warning(
            f"The server did not take a run's keepalive settings: idle {idle} s, interval {interval} s, count {count}.",
            "Its system must support them: else the lock of a host that vanished is held for as long as TCP waits.",
        )
    quiet = _silence(idle, interval, count, user_timeout / 1000)
    if not user_timeout:
        return warning(
            f"The lock of a host that vanished is free within {quiet:g} s while the server waits for it; but if the "
            "server has just sent it something, only when TCP gives up: after a quarter of an hour or more.",
            "Only Linux servers can limit that, by tcp_user_timeout.",
            seconds=quiet,
            seconds_at_most=None,
        )
    # One may follow the other.
    at_most = quiet + user_timeout / 1000
    text = (
        f"The lock of a host that vanished is free within {quiet:g} s, or {at_most:g} s when the server sends it an "
        "answer meanwhile."
    )
    if at_most > PATIENCE_SECONDS:
        return warning(text, "Lower tcp_user_timeout for the role of the jobs.", seconds=quiet, seconds_at_most=at_most)
    return passed(text, seconds=quiet, seconds_at_most=at_most)


def of_client(stack: Stack) -> Verdict:
    """Within minutes this replica notices that the server's host has vanished, and its process ends."""
    own_socket = stack.first.own_socket
    if own_socket.family == socket.AF_UNIX:
        return passed("The connection is a Unix socket: what answers it is on this host.")
    quiet, unacknowledged = _patience(own_socket)
    at_most = quiet + unacknowledged if quiet is not None and unacknowledged else None
    figures = {"seconds": quiet, "seconds_at_most": at_most}
    if at_most is not None and at_most <= PATIENCE_SECONDS:
        return passed(
            f"This replica notices within {quiet:g} s that the server has vanished, or {at_most:g} s when it sends a "
            "statement meanwhile.",
            **figures,
        )
    if quiet is None:
        how_long = "for ever"
    elif at_most is None:
        how_long = f"for {quiet:g} s, or if it has just sent a statement until TCP gives up, after a quarter of an hour"
    else:
        how_long = f"for {quiet:g} s, or {at_most:g} s if it sends a statement meanwhile"
    return warning(
        f"When the server vanishes without a word, as in a failover, this replica's process hangs {how_long}.",
        'In OPTIONS of DATABASES: "keepalives": 1, "keepalives_idle": 10, "keepalives_interval": 5, '
        '"keepalives_count": 3, "tcp_user_timeout": 25000',
        **figures,
    )


def _patience(own_socket: socket.socket) -> tuple[float | None, float]:
    """Return for how many seconds the system waits for a silent peer, None when for ever; and for an acknowledgement.

    The second is 0 where that has no limit of its own.
    """

    def of_tcp(option: int) -> int:
        return own_socket.getsockopt(socket.IPPROTO_TCP, option)

    # macOS has another name for the idle time, and only Linux has the limit.
    user_timeout: int = getattr(socket, "TCP_USER_TIMEOUT", 0)
    unacknowledged = of_tcp(user_timeout) / 1000 if user_timeout else 0.0
    if not own_socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE):
        return None, unacknowledged
    idle = of_tcp(getattr(socket, "TCP_KEEPIDLE", 0) or getattr(socket, "TCP_KEEPALIVE", 0))
    interval, count = of_tcp(socket.TCP_KEEPINTVL), of_tcp(socket.TCP_KEEPCNT)
    return _silence(idle, interval, count, unacknowledged), unacknowledged


def _silence(idle: float, interval: float, count: int, unacknowledged: float) -> float:
    """Return after how many seconds of silence keepalives end a connection.

    Where acknowledgements have a limit, it stands in for the count (tcp(7), TCP_USER_TIMEOUT), and Linux looks at it
    when the next keepalive is due, at the earliest after the first.
    """
    if unacknowledged:
        count = max(math.ceil((unacknowledged - idle) / interval), 1)
    return idle + interval * count


def _longer_than(seconds: float, longest: Sequence[tuple[str, float]]) -> str:
    found = [f'"{job}" ({took:.0f} s)' for job, took in longest if took >= seconds]
    return ", ".join(found[:_NAMED]) + (f" and {len(found) - _NAMED} more" if len(found) > _NAMED else "")


def _later_than(limit: Limit, stack: Stack) -> str:
    bound = timedelta(seconds=limit.seconds)
    return ", ".join(
        f'"{task.name}"'
        for task in registry.tasks()
        if task.using == stack.alias and task.options.timeout and task.options.timeout > bound
    )


def _raise_limit(limit: Limit) -> str:
    of_role = f"for the role of the jobs (ALTER ROLE … SET {limit.name} = …)"
    return f"Raise it {'where it is set' if limit.source in _ABOVE_ROLE else of_role}, or make the jobs shorter."
