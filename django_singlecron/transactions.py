"""The transaction that a run needs: what is refused before it, what a job may have done to it, and its savepoint."""

from __future__ import annotations

from django.db import DatabaseError, Error, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import TransactionManagementError

from .context import Run
from .database import sqlstate
from .exceptions import LockLost, OuterTransaction, TransactionBroken

# Of the savepoint between a run's lock and its job. A database error that the job catches frees a transaction's locks
# at once, but not those that were taken before a savepoint. COMMIT releases it.
SAVEPOINT = "singlecron"

# libpq's PGTransactionStatusType, as both drivers give it: PQTRANS_ACTIVE, then PQTRANS_INTRANS and PQTRANS_INERROR.
_ACTIVE = 1
_IN_A_TRANSACTION = (2, 3)


def refuse_outer_transaction(connection: BaseDatabaseWrapper, job: str, outer: Run | None) -> None:
    """Raise `OuterTransaction` when a run would become part of a transaction that is not its own.

    Arguments: `outer`, the run that this is inside of, if any.
    """
    alias = connection.alias
    if connection.in_atomic_block:
        if in_test_case(connection):
            return
        if outer is not None and outer.using == alias:
            raise OuterTransaction(
                f'The job "{job}" did not run: it was called inside the job "{outer.name}", whose '
                "transaction would take in its work, its lock and its record. Call its .func to make it part of "
                f'"{outer.name}", or call it after the commit: '
                "django.db.transaction.on_commit(task)."
            )
        raise OuterTransaction(
            f'The job "{job}" did not run: it was called inside a transaction on the database "{alias}", which '
            "would keep its lock after the job and take its failure record back. Call it outside "
            "transaction.atomic(), or through django.db.transaction.on_commit; a view under ATOMIC_REQUESTS needs "
            "@transaction.non_atomic_requests; .func is the job without its lock."
        )
    if not connection.settings_dict["AUTOCOMMIT"]:
        raise OuterTransaction(
            f'The job "{job}" did not run: the database "{alias}" has AUTOCOMMIT off, so what its history says '
            "would not be committed. Remove that setting."
        )
    if connection.connection is not None and not connection.autocommit:
        raise OuterTransaction(
            f'The job "{job}" did not run: set_autocommit(False) left the database "{alias}" in a transaction. '
            "Commit it and set autocommit again before."
        )
    if is_in_transaction(connection):
        raise OuterTransaction(
            f'The job "{job}" did not run: a raw BEGIN left the database "{alias}" in a transaction. End it before, or '
            "use transaction.atomic() in its place."
        )


def explain_broken_transaction(run: Run, error: DatabaseError) -> None:
    """Raise `TransactionBroken` from an error that says that the transaction cannot be committed; pass on any other."""
    if isinstance(error, TransactionManagementError) or sqlstate(error) == "25P02":
        raise TransactionBroken(
            f'The job "{run.name}" caught a database error and went on, or asked for a rollback, so its work '
            "cannot be committed. Wrap the statement that may fail in transaction.atomic()."
        ) from error


def is_closed(connection: BaseDatabaseWrapper) -> bool:
    """Whether the connection to the server is gone, as far as the driver knows."""
    return connection.connection is None or bool(getattr(connection.connection, "closed", False))


def is_busy(connection: BaseDatabaseWrapper) -> bool:
    """Whether the connection is still at a statement that an interruption broke off, and so takes no other.

    psycopg cancels such a statement, but not always.
    """
    return _transaction_status(connection) == _ACTIVE


def commits_nothing(connection: BaseDatabaseWrapper) -> bool:
    """Whether what is sent next becomes part of a transaction that nobody commits."""
    if connection.in_atomic_block or connection.connection is None:
        return False
    return not connection.autocommit or is_in_transaction(connection)


def is_in_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Whether the connection is in a transaction, by what its driver knows; Django does not notice a raw BEGIN."""
    in_sqlite_transaction: bool = getattr(connection.connection, "in_transaction", False)
    return in_sqlite_transaction or _transaction_status(connection) in _IN_A_TRANSACTION


def _transaction_status(connection: BaseDatabaseWrapper) -> int | None:
    """Return what the server last said; None where there is no connection to one."""
    info = getattr(connection.connection, "info", None)
    status: int | None = getattr(info, "transaction_status", None)
    return status


def set_savepoint(connection: BaseDatabaseWrapper) -> None:
    """Set a run's savepoint, where no lock comes before it."""
    with connection.cursor() as cursor:
        cursor.execute(connection.ops.savepoint_create_sql(SAVEPOINT))


def renew_savepoint(connection: BaseDatabaseWrapper) -> None:
    """Release a run's savepoint and set it again. Raises `DatabaseError` when it is gone with its transaction."""
    transaction.savepoint_commit(SAVEPOINT, using=connection.alias)
    set_savepoint(connection)


def roll_back_to_savepoint(connection: BaseDatabaseWrapper) -> bool:
    """Take back all that was done since a run's savepoint; False when there is none any more."""
    if not connection.in_atomic_block:
        return False
    transaction.set_rollback(False, using=connection.alias)
    try:
        transaction.savepoint_rollback(SAVEPOINT, using=connection.alias)
    except Error:
        return False
    finally:
        transaction.set_rollback(True, using=connection.alias)
    return True


class OpenBlocks:
    """The `atomic()` blocks that a connection is in."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._connection = connection
        self._blocks, self._savepoints = len(connection.atomic_blocks), len(connection.savepoint_ids)

    def has_more(self) -> bool:
        """Whether more are open now."""
        return len(self._connection.atomic_blocks) > self._blocks

    def are_as_before(self) -> bool:
        """Whether none was left open, and none ended."""
        return len(self._connection.atomic_blocks) == self._blocks

    def forget_more(self) -> None:
        """Let Django take the run's own block for the innermost again: it would else leave the transaction open."""
        del self._connection.atomic_blocks[self._blocks :], self._connection.savepoint_ids[self._savepoints :]


def block_left_open(run: Run) -> TransactionBroken:
    """Return the error of a run that did not come to the end of an `atomic()` block of its own."""
    return TransactionBroken(
        f'The job "{run.name}" left a transaction.atomic() block open, as a generator does that is not used up, so its '
        "work cannot be committed. Close such a generator, or let it return a list."
    )


def statement_left_open(run: Run) -> TransactionBroken:
    """Return the error of a run whose connection is still in the middle of a statement."""
    return TransactionBroken(
        f'The job "{run.name}" left a statement open, as a stream or a COPY that is not read or written to its end, so '
        "its work cannot be committed. Use it in a with block, or to its end."
    )


def lock_lost(run: Run, how: str) -> LockLost:
    """Return the error of a run that lost its lock; `how` says by what it did."""
    return LockLost(
        f'The job "{run.name}" {how}, and with that lost its lock before it was done. Another replica may have run '
        "it meanwhile, and what this run wrote may be committed. Inside a job use transaction.atomic(), which becomes "
        "a savepoint."
    )


def history_out_of_sight(run: Run) -> TransactionBroken:
    """Return the error of a run that left another table where its history was."""
    return TransactionBroken(
        f'The job "{run.name}" left search_path changed, so that its success cannot be recorded where it began. Its '
        "work was rolled back. Set search_path back before the job ends."
    )


def in_test_case(connection: BaseDatabaseWrapper) -> bool:
    """Whether the connection is in the transaction that a TestCase wraps round its test, and in no other."""
    # The mark by which Django lets a durable block be a savepoint of its TestCase.
    return bool(connection.atomic_blocks) and getattr(connection.atomic_blocks[-1], "_from_testcase", False)
