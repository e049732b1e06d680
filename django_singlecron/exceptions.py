"""Every error that django-singlecron raises, under one base class.

A `RunRefused` means that nothing ran. Everything else is about a run that had begun.
"""

from __future__ import annotations


class SinglecronError(Exception):
    """The base of all errors below; catch it to catch them all."""


class InvalidTask(SinglecronError, TypeError):
    """What was decorated cannot run under a lock, or an option has the wrong type.

    Raised while the module is imported, so that it cannot be overlooked. The message says what to change.
    """


class InvalidName(InvalidTask, ValueError):
    """A job's name, or the value of one of its placeholders, cannot name a lock.

    Raised when decorated where that is possible, else by the call, before anything ran.
    """


class RunRefused(SinglecronError):
    """The run was refused before the job started; nothing ran and nothing was written by it.

    Management commands turn it into a `CommandError`, so the exit code is not 0.
    """


class OuterTransaction(RunRefused):
    """A job was called inside a transaction that is not its own.

    The lock would outlive the job, and the record of a failure would roll back with the caller's work.
    Call the job outside `transaction.atomic()`, through `transaction.on_commit`, or call its `.func` for
    the bare function.
    """


class NotPostgreSQL(RunRefused):
    """The job's database is not PostgreSQL, so there is no advisory lock to hold.

    Name a PostgreSQL database with `using=`, or, for development, set `SINGLECRON = {"LOCKING": False}`.
    """


class HistoryNotMigrated(RunRefused):
    """The history's table is missing or older than this version: run `manage.py migrate`."""


class ReadOnlyDatabase(RunRefused):
    """The database refuses writes: a hot standby, or read-only mode. Name the primary with `using=`."""


class PermissionRefused(RunRefused):
    """The database role may not write the history. The message names the grant that is missing."""


class DatabaseUnavailable(RunRefused):
    """The database could not be reached, so whether another replica runs the job is unknown."""


class InvalidSlot(RunRefused, ValueError):
    """A run was asked for a slot that the job does not have, or not yet. The message names the nearest ones."""


class LockLost(SinglecronError):
    """The job ended the transaction that held its lock, by a raw COMMIT or ROLLBACK or by closing its connection.

    The run is recorded as `lost`: another replica may have started meanwhile, and what the job wrote, before that point
    or with psycopg2 after it, may be committed. Use `transaction.atomic()` inside a job; it becomes a savepoint.
    """


class TransactionBroken(SinglecronError):
    """The job caught a database error and went on, so PostgreSQL cannot commit its work.

    The run is recorded as `failed` and all its work is rolled back. Wrap the statement that may fail in
    `transaction.atomic()`, which becomes a savepoint. Raised as well when the job leaves `search_path` changed, so that
    its success would be written into another schema's history.
    """


class RunTimedOut(SinglecronError):
    """The run's `timeout=` passed: the work was rolled back, the lock is free, the run is `failed`."""


class ForkedRun(SinglecronError):
    """A process that the job forked came back out of the job; only the parent may finish the run.

    End a forked child with `os._exit()`, or use `subprocess` or `multiprocessing`.
    """
