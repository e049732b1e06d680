"""Makes a run of a task's call: of its arguments, its job's name and its task's options."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from . import commands, launch
from .calls import Call, Outcome
from .capture import OutputTail, describe_arguments
from .conf import get_settings
from .context import RunResult, current_run
from .keys import make_key
from .models import JobRun

if TYPE_CHECKING:
    from django.core.management.base import BaseCommand

    from .task import Request, SingletonTask

# The command whose handle() runs as a job here, and which task that is.
_handling: ContextVar[tuple[BaseCommand, SingletonTask[Any, Any]] | None] = ContextVar(
    "django_singlecron_handling", default=None
)


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

    Called through `super()` by a handle that runs as the same job, it is part of that run.

    Raises `CommandError` in place of what refused the run.
    """
    if _is_called_by_own_run(task, command, args, options):
        return Outcome(RunResult("acquired", task.func(command, *args, **options)))

    def handle() -> Any:
        outside = _handling.set((command, task))
        try:
            return task.func(command, *args, **options)
        finally:
            _handling.reset(outside)

    def make_call(body: Callable[[OutputTail], Any]) -> Call:
        # Raises what a call of handle() would, before anything is recorded.
        task.arguments_of_call((command, *args), options)
        name = task.name_of_command(command, args, options)
        arguments = commands.job_arguments(args, options)
        return _make_call(task, name, arguments, commands.trigger_of(command), body, request)

    return commands.run_handle(command, handle, options, make_call)


def _is_called_by_own_run(
    task: SingletonTask[Any, Any], command: BaseCommand, args: tuple[Any, ...], options: dict[str, Any]
) -> bool:
    """Whether the run that is going on is of this command object and this job, by another handle of the command."""
    run, handling = current_run(), _handling.get()
    if run is None or handling is None:
        return False
    at_work, by = handling
    if at_work is not command or by is task:
        return False
    return (run.name, run.using) == (task.name_of_command(command, args, options), task.using)


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
