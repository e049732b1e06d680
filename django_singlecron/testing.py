"""For the tests of projects that use singleton tasks.

Decorated tasks work as they are inside Django's `TestCase` and with pytest-django's `db`: the lock is tried and let go
at once, and the run and its record are rolled back with the test. With `TransactionTestCase` or
`db(transaction=True)` they run as in production.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import connections
from django.test import override_settings

from .conf import SETTING, get_settings
from .exceptions import InvalidTask, SinglecronError
from .keys import KeyOption, check_key_option, check_name, make_key
from .locks.postgres import PostgresLock
from .task import SingletonTask


class AlreadyHeld(SinglecronError):
    """The lock that a test wants to hold is held already, by another block or by a run that is going on."""


@contextmanager
def hold_lock(
    task: SingletonTask[Any, Any] | type[BaseCommand] | str,
    /,
    *args: Any,
    key: KeyOption | None = None,
    using: str | None = None,
    **kwargs: Any,
) -> Iterator[None]:
    """Hold a job's lock in the block, as another replica would: on a second connection to the same database.

    Arguments: `task`, the decorated function, the decorated command's class, or a job's name; what follows fills the
    placeholders of the task's name, as in a call of it. `key` and `using` are those of the task, or for a name the
    defaults.

    Raises `AlreadyHeld` when the lock is not free, `InvalidTask` for what is not a singleton task.
    """
    name, option, alias = _identify(task, args, kwargs)
    lock, lock_key = PostgresLock(), make_key(name, check_key_option(key) if key is not None else option)
    statement = lock.try_exclusive(lock_key)
    # A copy that the test's connection knows nothing of, as a connection of another process would be.
    connection = connections[using or alias].copy()
    try:
        connection.set_autocommit(False)
        with connection.cursor() as cursor:
            cursor.execute(statement.text, statement.parameters)
            if not cursor.fetchone()[0]:
                raise AlreadyHeld(f'The lock of the job "{name}" is held already.')
        try:
            yield
        finally:
            # Closing alone would free the lock a moment after the block.
            connection.rollback()
    finally:
        connection.close()


@contextmanager
def without_locking() -> Iterator[None]:
    """Let jobs run without a lock in the block, on whatever database: the run is recorded with `lock="none"`."""
    with override_settings(**{SETTING: {**getattr(settings, SETTING, {}), "LOCKING": False}}):
        yield


def _identify(task: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, KeyOption, str]:
    if isinstance(task, str):
        return check_name(task), "hashtextextended", get_settings().database
    if isinstance(task, type) and issubclass(task, BaseCommand):
        command_task = inspect.getattr_static(task, "handle")
        if isinstance(command_task, SingletonTask):
            return command_task.name_of_command(task(), args, kwargs), command_task.options.key, command_task.using
    if isinstance(task, SingletonTask):
        return task.name_of_call(args, kwargs), task.options.key, task.using
    raise InvalidTask(f"{task!r} is no singleton task, no command that is one, and no job's name.")
