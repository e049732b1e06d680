"""What is particular to a management command that runs as a job: its name, its output, its words to the user."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import IO, Any, cast

from django.core.management.base import BaseCommand, CommandError

from . import launch
from .calls import Call, Outcome
from .capture import OutputTail, TeeOutput, TeeStream, clean
from .exceptions import InvalidName, RunRefused
from .models import JobRun

# What BaseCommand.create_parser adds to every command: no part of what the job was asked to do.
_OPTIONS_OF_EVERY_COMMAND = {
    "verbosity",
    "settings",
    "pythonpath",
    "traceback",
    "no_color",
    "force_color",
    "skip_checks",
    "stdout",
    "stderr",
}


def job_arguments(args: tuple[Any, ...], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what distinguishes this call of a command from others."""
    named = {name: value for name, value in options.items() if name not in _OPTIONS_OF_EVERY_COMMAND}
    return {"args": args, **named} if args else named


def trigger_of(command: BaseCommand) -> JobRun.Trigger:
    """Return how a command was started."""
    from_command_line = getattr(command, "_called_from_command_line", False)
    return JobRun.Trigger.COMMAND_LINE if from_command_line else JobRun.Trigger.FUNCTION


@lru_cache(maxsize=1)
def describe_process(argv: tuple[str, ...]) -> str:
    """Return which command a process is by its `sys.argv`, such as `manage.py nightly_billing`, without arguments.

    Arguments may hold secrets; those of the job are recorded by themselves, masked.
    """
    program = os.path.basename(argv[0]) if argv else ""
    if program == "__main__.py":
        program = f"python -m {os.path.basename(os.path.dirname(argv[0]))}"
    words = [program]
    if program in ("manage.py", "django-admin", "python -m django"):
        words += [word for word in argv[1:2] if not word.startswith("-")]
        if words[1:] == ["singlecron"]:
            words += [word for word in argv[2:3] if not word.startswith("-")]
    return clean(" ".join(words))[:255]


def run_handle(
    command: BaseCommand,
    handle: Callable[[], Any],
    options: Mapping[str, Any],
    make_call: Callable[[Callable[[OutputTail], Any]], Call],
) -> Outcome:
    """Run a command's `handle` as a job; when it was skipped, say so on the command's stderr.

    Raises `CommandError` in place of what refused the run, so that `manage.py` prints one line and exits with 1.
    """

    def body(tail: OutputTail) -> Any:
        with _teed(command, tail):
            value = handle()
        if isinstance(value, str) and value:
            # Django writes it to the command's output once handle() is back.
            tail.append(value if value.endswith("\n") else value + "\n")
        return value

    try:
        outcome = launch.run(make_call(body))
    except (RunRefused, InvalidName) as error:
        raise CommandError(str(error)) from error
    tell_skipped(command, outcome, options.get("verbosity"))
    return outcome


def tell_skipped(command: BaseCommand, outcome: Outcome, verbosity: object) -> None:
    """Say on a command's stderr that a job was skipped, unless its verbosity is 0.

    That nobody can be told, on a stream that is closed or full, is not the job's failure.
    """
    # call_command() passes on what it is given as it is.
    if outcome.result.ran or verbosity in (0, "0"):
        return
    notice = f"Skipped: {outcome.explain()}."
    with suppress(OSError, ValueError, AttributeError):
        command.stderr.write(notice, command.style.NOTICE)


@contextmanager
def _teed(command: BaseCommand, tail: OutputTail) -> Iterator[None]:
    """Keep what the command writes in `tail` too.

    The process's own streams are teed only when the process is the command's: elsewhere they carry other output too.
    """
    stdout, stderr, sys_stdout, sys_stderr = command.stdout, command.stderr, sys.stdout, sys.stderr
    command.stdout, command.stderr = TeeOutput(stdout, tail), TeeOutput(stderr, tail)
    if trigger_of(command) == JobRun.Trigger.COMMAND_LINE:
        # A process that was started with one of them closed has None in its place.
        sys.stdout = cast("IO[str]", sys_stdout and TeeStream(sys_stdout, tail))
        sys.stderr = cast("IO[str]", sys_stderr and TeeStream(sys_stderr, tail))
    try:
        yield
    finally:
        command.stdout, command.stderr, sys.stdout, sys.stderr = stdout, stderr, sys_stdout, sys_stderr
