"""PostgreSQL's transaction-level advisory locks.

https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-ADVISORY-LOCKS
"""

from __future__ import annotations

from datetime import timedelta
from functools import cache
from typing import ClassVar

from ..database import Sql
from ..keys import LockKey
from . import Hold

# The argument lists of the lock functions, by algorithm. Only the pair has a key space of its own. The parentheses keep
# a minus sign with its number: -9223372036854775808::bigint casts the number first, and that is out of range.
_LOCK_ARGUMENTS = {
    "hashtextextended": "hashtextextended(%s::text, 0)",
    "hashtext": "hashtext(%s::text)::bigint",
    "integer": "(%s)::bigint",
    "pair": "(%s)::integer, (%s)::integer",
}

# A pair is stored as pg_locks shows it: the first integer in the high 32 bits, the second in the low ones.
_PAIR_AS_ONE = "((%s)::bigint << 32) | ((%s)::bigint & 4294967295)"

# The run's own setting: it goes with the transaction, so its absence later shows that the lock went too.
RUN_SETTING = "singlecron.run"

APPLICATION_NAME_PREFIX = "singlecron/"
MAX_APPLICATION_NAME_BYTES = 63

# A holder's host that vanished is noticed after IDLE + INTERVAL * COUNT seconds. While the server waits for it to
# acknowledge an answer, no keepalives are sent, and the system would try for a quarter of an hour; so that is limited
# to as long. Both in a row, when an answer is sent into the silence: twice as long at the most.
KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_COUNT = 10, 5, 3
UNACKNOWLEDGED = KEEPALIVE_IDLE + KEEPALIVE_INTERVAL * KEEPALIVE_COUNT

# The lock comes first, and only who has it names its session after its run: others tell the holder by that, and the run
# itself by its own setting.
# Every set_config is local to the transaction (its third argument) and allowed to an ordinary role.
# PostgreSQL can look for a vanished client during a statement, and limit the time without an acknowledgement, only
# where its system can, as Linux does. tcp_user_timeout also ends a connection whose client does not read what it asked
# for, as a slow reader of COPY; so what the role or the connection says of it stays.
_ACQUIRE = """
SELECT CASE WHEN pg_try_advisory_xact_lock({arguments})
            THEN set_config('application_name', %s, true) || set_config('singlecron.run', %s, true) END IS NOT NULL,
       set_config('idle_in_transaction_session_timeout', %s, true),
       set_config('tcp_keepalives_idle', '{idle}', true),
       set_config('tcp_keepalives_interval', '{interval}', true),
       set_config('tcp_keepalives_count', '{count}', true),
       CASE WHEN version() LIKE '%%linux%%' THEN set_config('client_connection_check_interval', '100', true) END,
       CASE WHEN version() LIKE '%%linux%%' AND current_setting('tcp_user_timeout') = '0'
            THEN set_config('tcp_user_timeout', '{unacknowledged}', true) END
       {deadlines}
"""

# The server's own deadlines, behind the replica's: for a replica that was stopped or cut off. A stricter limit of the
# role stays. transaction_timeout came with PostgreSQL 17; where it does not exist, current_setting gives NULL.
_SERVER_DEADLINES = """,
       CASE WHEN current_setting('statement_timeout') = '0' THEN set_config('statement_timeout', %s, true) END,
       CASE WHEN current_setting('transaction_timeout', true) = '0' THEN set_config('transaction_timeout', %s, true) END
"""
SERVER_DEADLINE_MARGIN = timedelta(seconds=1)


class PostgresLock:
    """The lock of a run's own transaction."""

    label: ClassVar[str] = "transaction"

    def key(self, key: LockKey) -> Sql:
        text = _PAIR_AS_ONE if key.is_pair else _LOCK_ARGUMENTS[key.algorithm]
        return Sql(text, key.arguments)

    def probe(self, key: LockKey) -> Sql:
        # Shared, so that only a holder makes it fail, never another probe.
        return Sql(f"pg_try_advisory_xact_lock_shared({_LOCK_ARGUMENTS[key.algorithm]})", key.arguments)

    def try_exclusive(self, key: LockKey) -> Sql:
        """A query of one boolean: take the bare lock for the transaction that it is sent in."""
        return Sql(f"SELECT pg_try_advisory_xact_lock({_LOCK_ARGUMENTS[key.algorithm]})", key.arguments)

    def acquire(self, key: LockKey, hold: Hold) -> Sql:
        limit = _milliseconds(hold.timeout)
        limits = [limit] * (3 if hold.timeout else 1)
        name = application_name(hold.run_id, hold.job)
        return Sql(_acquire_with(key.algorithm, bool(hold.timeout)), [*key.arguments, name, str(hold.run_id), *limits])


def application_name(run_id: int, job: str = "") -> str:
    """Return how a run calls itself in `pg_stat_activity`: `singlecron/<run id> <job>`, in printable ASCII.

    Without the job, how that begins.
    """
    name = f"{APPLICATION_NAME_PREFIX}{run_id} {job}"
    return name.encode("ascii", "replace").decode("ascii")[:MAX_APPLICATION_NAME_BYTES]


@cache
def _acquire_with(algorithm: str, has_deadlines: bool) -> str:
    return _ACQUIRE.format(
        arguments=_LOCK_ARGUMENTS[algorithm],
        idle=KEEPALIVE_IDLE,
        interval=KEEPALIVE_INTERVAL,
        count=KEEPALIVE_COUNT,
        unacknowledged=UNACKNOWLEDGED * 1000,
        deadlines=_SERVER_DEADLINES if has_deadlines else "",
    )


def _milliseconds(timeout: timedelta | None) -> str:
    if timeout is None:
        return "0"
    return str((timeout + SERVER_DEADLINE_MARGIN) // timedelta(milliseconds=1))
