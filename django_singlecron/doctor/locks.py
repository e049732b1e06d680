"""That the lock excludes: two connections, the statements that runs send, keys that nobody else has."""

from __future__ import annotations

import time

from django.db import Error

from ..keys import LockKey
from ..locks.postgres import RUN_SETTING
from .report import Unsound, Verdict, failed, passed
from .stack import NoAnswer, Session, Stack

ROUNDS = 5

# The server lets a lock go as soon as it has ended the session, which on a busy one may take a moment.
FREE_WITHIN_SECONDS = 3.0
PAUSE_SECONDS = 0.01

# What the functions are that runs call by these names on this connection, if not PostgreSQL's own.
_SCHEMAS = """
SELECT DISTINCT namespace.nspname::text
FROM unnest(ARRAY['pg_try_advisory_xact_lock(bigint)', 'pg_try_advisory_xact_lock(integer, integer)',
                  'pg_try_advisory_xact_lock_shared(bigint)', 'pg_try_advisory_xact_lock_shared(integer, integer)',
                  'hashtextextended(text, bigint)', 'hashtext(text)']) AS wanted
JOIN pg_catalog.pg_proc AS function ON function.oid = to_regprocedure(wanted)
JOIN pg_catalog.pg_namespace AS namespace ON namespace.oid = function.pronamespace
WHERE namespace.nspname <> 'pg_catalog'
"""

NO_POSTGRESQL = (
    "Jobs would run on several replicas at once. Use a PostgreSQL server, without a service that answers for it."
)
ONE_CONNECTION = "Give the pool two server connections or more (PgBouncer: default_pool_size)."

_RUN = "SELECT pg_backend_pid(), current_setting(%s, true)"


def excludes(stack: Stack) -> Verdict:
    """While a connection holds, another is refused, by its probe and by its lock; other keys are granted."""
    try:
        for key, other in zip(stack.keys(), stack.keys(), strict=True):
            _hold(stack, key)
            if not stack.second.is_granted(other):
                raise _unsound(stack, "A second connection was refused a lock that nobody holds")
            stack.first.rollback()
    except NoAnswer as error:
        return failed(f"A second connection gave {error} while the first was in a transaction.", ONE_CONNECTION)
    return passed("A second connection is refused while the first holds.", keys=stack.algorithms)


def free_after_commit(stack: Stack) -> Verdict:
    """The lock is granted to another after the holder's commit."""
    key = stack.keys()[0]
    _hold(stack, key)
    stack.first.commit()
    _granted(stack, key, "has committed")
    return passed("After the holder's commit the second connection is granted the lock.")


def free_after_rollback(stack: Stack) -> Verdict:
    """The lock is granted to another after the holder's rollback."""
    key = stack.keys()[0]
    _hold(stack, key)
    stack.first.rollback()
    _granted(stack, key, "has rolled back")
    return passed("After the holder's rollback the second connection is granted the lock.")


def free_after_kill(stack: Stack) -> Verdict:
    """The lock is granted to another after the holder's server session was ended."""
    key = stack.keys()[0]
    _hold(stack, key)
    how = _kill(stack)
    began = time.monotonic()
    while not stack.second.is_granted(key):
        seconds = time.monotonic() - began
        if seconds > FREE_WITHIN_SECONDS:
            return failed(
                f"The lock was not free {seconds:.0f} s after the holder's session was ended ({how}).",
                "Look in pg_locks who holds it: something between keeps a dead client's session alive.",
            )
        time.sleep(PAUSE_SECONDS)
    seconds = time.monotonic() - began
    stack.close()
    return passed(
        f"After the holder's session was killed ({how}) the lock was free within {seconds * 1000:.0f} ms.",
        seconds=round(seconds, 3),
        by=how,
    )


def survives_transactions(stack: Stack) -> Verdict:
    """In several transactions one after the other, the lock lasts as long as each, and so does what a run sets."""
    first, second = stack.first, stack.second
    for number in range(1, ROUNDS + 1):
        key = stack.keys()[0]
        _hold(stack, key)
        before = first.row(_RUN, [RUN_SETTING])
        _refused(stack, key)
        if first.row(_RUN, [RUN_SETTING]) != before or not before[1]:
            return failed(
                f"Transaction {number} lost what a run sets in it, or went on in another server session.",
                "A pooler must keep a transaction on one server connection: use transaction or session mode.",
            )
        first.commit()
        _granted(stack, key, "has committed")
        left = [session.row(_RUN, [RUN_SETTING])[1] for session in (first, second)]
        if any(left):
            return failed(
                f"A session kept what transaction {number} had set for itself alone.",
                "Use a PostgreSQL server: SET LOCAL must end with its transaction.",
            )
    return passed(f"In {ROUNDS} transactions in a row the lock came and went with each.")


def _hold(stack: Stack, key: LockKey) -> None:
    """Let the first connection hold the lock, from which the second is then kept out."""
    if not stack.first.acquire(key):
        raise _unsound(stack, "The first connection was refused a lock that nobody holds")
    _refused(stack, key)


def _refused(stack: Stack, key: LockKey) -> None:
    if stack.second.probe(key) or stack.second.is_granted(key):
        raise _unsound(stack, "A second connection was granted the lock while the first held it")


def _granted(stack: Stack, key: LockKey, since: str) -> None:
    if not (stack.second.probe(key) and stack.second.is_granted(key)):
        raise _unsound(stack, f"The second connection was refused the lock although its holder {since}")


def _kill(stack: Stack) -> str:
    """End the session of the first connection, which is in a transaction and so has the server process to itself."""
    try:
        if stack.second.row("SELECT pg_terminate_backend(%s)", [stack.first.pid()])[0]:
            return "pg_terminate_backend"
    except Error:
        pass
    stack.first.cut()
    return "connection cut"


def _unsound(stack: Stack, what: str) -> Unsound:
    schemas = ", ".join(sorted(schema for (schema,) in _schemas(stack.second)))
    if not schemas:
        return Unsound(failed(f"{what}: this server's advisory locks do not exclude.", NO_POSTGRESQL))
    return Unsound(
        failed(
            f"{what}: the functions that were called are not PostgreSQL's own but those of the schema {schemas}, which "
            "comes before pg_catalog in the search_path.",
            "Remove these functions, or take pg_catalog out of the search_path, so that it comes first.",
        )
    )


def _schemas(session: Session) -> list[tuple[str]]:
    try:
        return session.rows(_SCHEMAS)
    except Error:
        # Another product than PostgreSQL need not have its catalogue.
        return []
