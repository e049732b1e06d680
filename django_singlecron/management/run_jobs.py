"""What `singlecron run` runs: a management command, as it would run without, or a function that is a task."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from django.core.management import ManagementUtility, call_command, get_commands, load_command_class
from django.core.management.base import BaseCommand, CommandError

from django_singlecron import backfill, calling, registry
from django_singlecron.calls import Outcome
from django_singlecron.commands import tell_skipped
from django_singlecron.exceptions import InvalidName, RunRefused
from django_singlecron.invoke import put_under_lock
from django_singlecron.task import Request, SingletonTask

from . import run_arguments

_PASSED_ON = ("stdout", "stderr", "no_color", "force_color")


class FromWrapped(Exception):
    """Carries a `CommandError` that the wrapped command let out, because of `--traceback`, past this one's handling."""

    def __init__(self, error: CommandError) -> None:
        super().__init__(error)
        self.error = error


class Job(Protocol):
    """What can be run, once or for each of several slots."""

    task: SingletonTask[Any, Any]
    name: str
    """The job's name, with its placeholders."""
    value: Any
    """What the last run returned."""

    def run(self, request: Request) -> Outcome:
        """Run it, and say on stderr when it was skipped."""
        ...


def find(options: Mapping[str, Any], argv: list[str] | None, wrapper: BaseCommand) -> Job:
    """Return the job that the command line names: a management command, or else a task of that name.

    Arguments: the `options` of `singlecron run`; `argv`, the wrapped command's own command line, or None under
    `call_command`.

    Raises `InvalidTask` for options that do not go with it, `CommandError` when there is none of that name.
    """
    name = options["wrapped"]
    task = None if name in get_commands() else registry.find(name)
    if task is None:
        return CommandJob(name, options, argv)
    if task.command_name is not None:
        # The job's name is not the command's.
        return CommandJob(task.command_name, options, argv and [argv[0], task.command_name, *argv[2:]])
    run_arguments.refuse_task_options(name, options)
    return FunctionJob(task, options, argv[2:] if argv else options["wrapped_args"], wrapper)


def slots_to_fill(job: Job, options: Mapping[str, Any]) -> tuple[list[datetime], Collection[datetime]] | None:
    """Return the slots of a backfill and those of them that are done; None when none was asked for.

    Raises as `slots_of_range`.
    """
    if options["since"] is None:
        return None
    slots = backfill.slots_of_range(job.task, options["since"], options["until"])
    return slots, () if options["force"] else backfill.succeeded_slots(job.name, job.task.using, slots)


def fill(
    job: Job,
    slots: Sequence[datetime],
    done: Collection[datetime],
    options: Mapping[str, Any],
    wrapper: BaseCommand,
) -> None:
    """Run a job for each of the slots that is not done, and show on the wrapper's stderr how far it is."""

    def run(request: Request) -> Outcome:
        outcome = job.run(request)
        # Where both streams go to one file, what the job wrote stands before what is said of it.
        wrapper.stdout.flush()
        return outcome

    verbosity = 1 if options["verbosity"] is None else options["verbosity"]
    progress = backfill.Progress(wrapper.stderr, verbosity, len(slots))
    how = {name: options[name] for name in ("force", "keep_going", "skip_exit_code")}
    backfill.fill(slots, done, run, progress, **how)


class CommandJob:
    """A management command."""

    def __init__(self, command: str, options: Mapping[str, Any], argv: list[str] | None) -> None:
        self._command = command
        self._options = options
        self._argv = argv
        command_class = type(self._load())
        if not issubclass(command_class, BaseCommand):
            raise CommandError(
                f"{command} is no BaseCommand, so there is no handle() to put under a lock. Decorate the function that "
                "does its work with @singleton_task."
            )
        self.task = run_arguments.task_of_command(command_class, command, options)
        self.name = self.task.name_for(command_class)
        self.value: Any = None

    def run(self, request: Request) -> Outcome:
        """Run the command from the command line, or under `call_command`, as it was asked for."""
        command = self._load()
        handled = put_under_lock(command, self._command, self.task, request)
        if self._argv is None:
            self.value = call_command(command, *self._options["wrapped_args"], **self._passed_on())
            return handled.outcome()
        try:
            command.run_from_argv(self._argv)
        except CommandError as error:
            raise FromWrapped(error) from error
        return handled.outcome()

    def _load(self) -> BaseCommand:
        if self._argv is not None:
            return ManagementUtility(self._argv[:1]).fetch_command(self._command)
        try:
            app = get_commands()[self._command]
        except KeyError as error:
            raise CommandError(f"Unknown command: {self._command!r}") from error
        return app if isinstance(app, BaseCommand) else load_command_class(app, self._command)

    def _passed_on(self) -> dict[str, Any]:
        passed_on = {key: self._options[key] for key in _PASSED_ON if self._options.get(key)}
        if self._options["verbosity"] is not None:
            passed_on["verbosity"] = self._options["verbosity"]
        return passed_on


class FunctionJob:
    """A function that is a singleton task."""

    def __init__(
        self, task: SingletonTask[Any, Any], options: Mapping[str, Any], arguments: list[str], wrapper: BaseCommand
    ) -> None:
        self.task = task
        self.name = task.name
        self.value: Any = None
        self._wrapper = wrapper
        parser = BaseCommand().create_parser("manage.py", task.name)
        of_every_command, unknown = parser.parse_known_args(arguments)
        if unknown:
            self._refuse(f"it was given {' '.join(unknown)}")
        try:
            task.check_arguments((), {})
        except (TypeError, InvalidName) as error:
            self._refuse(str(error))
        self._verbosity = of_every_command.verbosity if options["verbosity"] is None else options["verbosity"]

    def _refuse(self, why: str) -> None:
        message = f"{self.name} is a function, which can be given no arguments here: {why}."
        raise CommandError(message, returncode=run_arguments.WRONG_ARGUMENTS)

    def run(self, request: Request) -> Outcome:
        """Run the function, and print what it returned unless that is None."""
        wrapper = self._wrapper
        try:
            outcome = calling.run_function(self.task, (), {}, request)
        except RunRefused as error:
            raise CommandError(str(error)) from error
        self.value = outcome.result.value
        tell_skipped(wrapper, outcome, self._verbosity)
        if self.value is not None:
            wrapper.stdout.write(str(self.value))
        return outcome
