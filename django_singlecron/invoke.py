"""A job that is started by something else than a call in Python: a command line, a request."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from . import calling
from .calls import Outcome
from .context import RunResult
from .exceptions import InvalidName
from .task import Request, SingletonTask


class WrongArguments(Exception):
    """The job cannot be called with these arguments; nothing ran. The message says why."""


@dataclass
class Handled:
    """What became of the `handle()` of a command that was put under its lock."""

    command: str
    called: bool = False
    # So it stays where the command keeps the job's error to itself.
    _outcome: Outcome = field(default_factory=lambda: Outcome(RunResult("acquired")))

    def outcome(self) -> Outcome:
        """Return the outcome of a command that has ended.

        Raises `CommandError` when it overrides `execute()` and never called its `handle()`.
        """
        if not self.called:
            raise CommandError(
                f"{self.command} did its work without calling handle(), so under no lock. Decorate the function that "
                "does it with @singleton_task."
            )
        return self._outcome


def put_under_lock(command: BaseCommand, name: str, task: SingletonTask[Any, Any], request: Request) -> Handled:
    """Put the `handle()` of one command object, and of no other, under the lock of its task."""
    handled = Handled(name)

    def handle(*args: Any, **options: Any) -> Any:
        handled.called = True
        handled._outcome = calling.run_command(task, command, args, options, request)
        return handled._outcome.result.value

    command.handle = handle  # type: ignore[method-assign]  # this object's alone
    return handled


def start(
    task: SingletonTask[Any, Any], request: Request, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> Outcome:
    """Run a task, a command through `call_command` with its output recorded only.

    Raises `WrongArguments` for what does not fit it; else as a call of the task.
    """
    named = dict(kwargs or {})
    if task.command_class is not None:
        return _start_command(task, task.command_class(), request, args, named)
    try:
        task.check_arguments(tuple(args), named)
    except (TypeError, InvalidName) as error:
        raise WrongArguments(str(error)) from error
    return calling.run_function(task, tuple(args), named, request)


def _start_command(
    task: SingletonTask[Any, Any], command: BaseCommand, request: Request, args: Sequence[Any], kwargs: dict[str, Any]
) -> Outcome:
    handled = put_under_lock(command, cast("str", task.command_name), task, request)
    with open(os.devnull, "w") as nowhere:
        try:
            call_command(command, *args, **{"stdout": nowhere, "stderr": nowhere, **kwargs})
        except (CommandError, TypeError, ValueError) as error:
            if handled.called and not isinstance(error.__cause__, InvalidName):
                raise
            raise WrongArguments(str(error)) from error
    return handled.outcome()
