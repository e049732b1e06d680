"""A call of a task made a run: its arguments, its job's name and its task's options put together."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import commands, launch
from .calls import Call, Outcome
from .capture import OutputTail, describe_arguments
from .conf import get_settings
from .keys import make_key
from .models import JobRun

if TYPE_CHECKING:
    from django.core.management.base import BaseCommand

    from .task import Request, SingletonTask


def run_function(
    task: SingletonTask[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any], request: Request
) -> Outcome:
    """Run a task's function as a job, and wait for it if it is a coroutine function. Raises as a call of the task."""
    name = task.name_of_call(args, kwargs)
    arguments = task.arguments_of_call(args, kwargs)
    return launch.run(
        _make_call(task, name, arguments, JobRun.Trigger.FUNCTION, lambda tail: task.func(*args, **kwargs), request)
    )


def run_command(
    task: SingletonTask[Any, Any],
    command: BaseCommand,
    args: tuple[Any, ...],
    options: dict[str, Any],
    request: Request,
) -> Outcome:
    """Run a command's `handle(*args, **options)` as a job, and say on its stderr when it was skipped.

    Raises `CommandError` in place of what refused the run.
    """

    def make_call(body: Callable[[OutputTail], Any]) -> Call:
        task.arguments_of_call((command, *args), options)
        name = task.name_of_command(command, args, options)
        arguments = commands.job_arguments(args, options)
        return _make_call(task, name, arguments, commands.trigger_of(command), body, request)

    return commands.run_handle(command, lambda: task.func(command, *args, **options), options, make_call)


def _make_call(
    task: SingletonTask[Any, Any],
    name: str,
    arguments: dict[str, Any],
    trigger: str,
    body: Callable[[OutputTail], Any],
    request: Request,
) -> Call:
    options, settings = task.options, get_settings()
    return Call(
        job=name,
        key=make_key(name, options.key),
        using=task.using,
        timeout=options.timeout,
        record_skips=settings.record_skips if options.record_skips is None else options.record_skips,
        arguments=describe_arguments(arguments),
        trigger=trigger,
        command=commands.describe_process(tuple(sys.argv)),
        body=body,
        plan=options.plan(),
        slot=request.slot,
        retry=options.retry,
        min_interval=options.min_interval,
        force=request.force,
        is_async=task.is_async,
        on_acquired=request.on_acquired,
    )
