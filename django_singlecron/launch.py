"""The way into a run: which runner a call needs, or why it is refused."""

from __future__ import annotations

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.connection import ConnectionDoesNotExist

from .calls import Call, Outcome
from .conf import get_settings
from .exceptions import NotPostgreSQL, RunRefused
from .runner import Runner
from .transactions import in_test_case


def run(call: Call) -> Outcome:
    """Run the job unless another run of it is going on anywhere; record the attempt in either case.

    Raises a `RunRefused` when nothing could run; whatever the job raised, after its work is rolled back and the
    failure recorded; `RunTimedOut`, `LockLost` and `TransactionBroken` as they say.
    """
    return _runner_for(call).run()


def connection_for(job: str, using: str) -> BaseDatabaseWrapper:
    """Return the connection of a job's database.

    Raises `RunRefused` when there is no such database.
    """
    try:
        return connections[using]
    except ConnectionDoesNotExist as error:
        raise RunRefused(f'The job "{job}" did not run: there is no database "{using}" in DATABASES.') from error


def _runner_for(call: Call) -> Runner:
    connection, locking = connection_for(call.job, call.using), get_settings().locking
    if locking and connection.vendor != "postgresql":
        raise NotPostgreSQL(
            f'The job "{call.job}" did not run: its database "{call.using}" is {connection.vendor}, not PostgreSQL, '
            'and has no advisory locks. Name another with using=; for development, set SINGLECRON = {"LOCKING": False}.'
        )
    if locking and not in_test_case(connection):
        return Runner(call, connection)
    # Not in production, whose processes do not pay for its import.
    from .unlocked import TestCaseRunner, UnlockedRunner

    return TestCaseRunner(call, connection) if locking else UnlockedRunner(call, connection)
