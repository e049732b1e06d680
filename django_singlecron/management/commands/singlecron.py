"""`manage.py singlecron`: jobs on the command line."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from typing import Any

from django.core.management import ManagementUtility, call_command, get_commands, load_command_class
from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_singlecron import crontab
from django_singlecron.decorators import Request, SingletonTask
from django_singlecron.exceptions import InvalidName
from django_singlecron.management import singlecron_check, singlecron_status
from django_singlecron.options import TaskOptions

_OTHERS = {
    "check": (singlecron_check, "Say what is wrong with the jobs. Exits with 0, 1, 2 or 3, as a Nagios plugin."),
    "status": (singlecron_status, "Show each job: what it did last, when it is due, where it runs."),
}


class Command(BaseCommand):
    """Parses, calls, and passes the exit code on."""

    help = "Runs management commands as jobs that happen on one replica at a time."
    # The wrapped command runs the checks that it asks for.
    requires_system_checks: list[str] = []  # noqa: RUF012  # as BaseCommand declares it

    wrapped_argv: list[str] | None = None
    """The wrapped command's own command line; None under `call_command`."""
    value: Any = None
    """What the wrapped command returned, which it has written itself."""

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        """Return the parser; it takes no abbreviations, which could as well be meant for the wrapped command."""
        return super().create_parser(prog_name, subcommand, allow_abbrev=False, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the subcommands."""
        # None: not given, so the wrapped command's own default holds.
        parser.set_defaults(verbosity=None)
        subcommands = parser.add_subparsers(dest="subcommand", required=True, metavar="SUBCOMMAND")
        run = subcommands.add_parser(
            "run",
            help="Run a management command under its lock.",
            description="Run a management command unless another replica runs it at this moment; record the attempt.",
            allow_abbrev=False,
        )
        run.add_argument("--name", help="The job's name; by default the command's. May hold options: sync:{tenant}.")
        run.add_argument(
            "--skip-exit-code",
            type=_exit_code,
            default=0,
            metavar="N",
            help="The exit code when the job was skipped; by default 0, since a skip is no failure.",
        )
        run.add_argument("wrapped", metavar="COMMAND", help="The management command to run.")
        wrapped_args = run.add_argument("wrapped_args", metavar="ARGS", nargs=argparse.REMAINDER, help="Its arguments.")
        wrapped_args.required = False
        for name, (module, purpose) in _OTHERS.items():
            module.add_arguments(subcommands.add_parser(name, help=purpose, description=purpose, allow_abbrev=False))

    def run_from_argv(self, argv: list[str]) -> None:
        """Run a subcommand; `run` gives the wrapped command its arguments untouched, `--help` among them."""
        own, wrapped = _split(self.create_parser(argv[0], argv[1]), argv[2:])
        self.wrapped_argv = [argv[0], *wrapped] if wrapped else None
        try:
            super().run_from_argv([*argv[:2], *own])
        except _FromWrapped as escaped:
            raise escaped.error from escaped.error.__cause__

    def execute(self, *args: Any, **options: Any) -> Any:
        """Return what the wrapped command returned, as `call_command` on that command would."""
        super().execute(*args, **options)
        return self.value

    def handle(self, *args: Any, **options: Any) -> None:
        """Do the subcommand; `run` exits as the wrapped command does, with the code asked for when it was skipped."""
        if options["subcommand"] in _OTHERS:
            _OTHERS[options["subcommand"]][0].run(self, options)
            return
        with crontab.exit_code_kept():
            locked = self._run_argv(self.wrapped_argv, options) if self.wrapped_argv else self._run_parsed(options)
            if not locked.called:
                raise CommandError(
                    f"{options['wrapped']} did its work without calling handle(), so under no lock. Decorate the "
                    "function that does it with @singleton_task."
                )
            if locked.skipped and options["skip_exit_code"]:
                sys.exit(options["skip_exit_code"])

    def _run_argv(self, argv: list[str], options: dict[str, Any]) -> _Locked:
        """Run the wrapped command as `manage.py` runs it."""
        name = argv[1]
        command = ManagementUtility(argv[:1]).fetch_command(name)
        locked = _lock(command, name, options["name"])
        try:
            command.run_from_argv(argv)
        except CommandError as error:
            raise _FromWrapped(error) from error
        return locked

    def _run_parsed(self, options: dict[str, Any]) -> _Locked:
        """Run the wrapped command as `call_command` runs it."""
        name = options["wrapped"]
        try:
            app = get_commands()[name]
        except KeyError as error:
            raise CommandError(f"Unknown command: {name!r}") from error
        command = app if isinstance(app, BaseCommand) else load_command_class(app, name)
        locked = _lock(command, name, options["name"])
        passed_on = {key: options[key] for key in ("stdout", "stderr", "no_color", "force_color") if options.get(key)}
        if options["verbosity"] is not None:
            passed_on["verbosity"] = options["verbosity"]
        self.value = call_command(command, *options["wrapped_args"], **passed_on)
        return locked


class _FromWrapped(Exception):
    """Carries a `CommandError` that the wrapped command let out, because of `--traceback`, past this one's handling."""

    def __init__(self, error: CommandError) -> None:
        super().__init__(error)
        self.error = error


@dataclass
class _Locked:
    """What became of the `handle()` of a command that was put under its lock."""

    called: bool = False
    skipped: bool = False


def _lock(command: BaseCommand, command_name: str, name: str | None) -> _Locked:
    """Put the `handle()` of one command object under its lock."""
    locked = _Locked()
    task = _task_of(type(command), command_name, name)

    def handle(*args: Any, **options: Any) -> Any:
        locked.called = True
        result = task.run_command(command, args, options, Request()).result
        locked.skipped = not result.ran
        return result.value

    command.handle = handle  # type: ignore[method-assign]  # this object's alone
    return locked


def _exit_code(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= 255):
        raise argparse.ArgumentTypeError(f"{text!r} is no exit code: 0 to 255.")
    return int(text)


def _task_of(command: type[BaseCommand], command_name: str, name: str | None) -> SingletonTask[Any, Any]:
    if not isinstance(command.handle, SingletonTask):
        try:
            return SingletonTask(command.handle, TaskOptions(name=command_name if name is None else name))
        except InvalidName as error:
            raise CommandError(str(error)) from error
    if name is not None:
        raise CommandError(f"{command_name} is a singleton task, which names itself: leave --name out.")
    return command.handle


def _split(parser: argparse.ArgumentParser, arguments: list[str]) -> tuple[list[str], list[str]]:
    """Split the command line of `run` into its own arguments and the wrapped command's command line.

    Options that every command has, such as `--verbosity`, are both's when they come before the wrapped command's name.
    argparse.REMAINDER would do nearly that, but treats `--` and options before the name differently from one Python
    to the next.
    """
    of_every_command = _options(parser) - {"-h", "--help"}
    take_value = _options(parser, with_value=True) | _options(_subparser(parser, "run"), with_value=True)
    own: list[str] = []
    shared: list[str] = []
    position = 0
    while position < len(arguments):
        word = arguments[position]
        is_name = not word.startswith("-")
        if own[:1] == ["run"] and (is_name or word == "--"):
            wrapped = arguments[position if is_name else position + 1 :]
            return [*shared, *own, *wrapped[:1]], [*wrapped[:1], *(shared if wrapped else []), *wrapped[1:]]
        if is_name and word != "run":
            break
        option = word.partition("=")[0] if word.startswith("--") else word[:2]
        end = position + (2 if word in take_value else 1)
        (shared if option in of_every_command else own).extend(arguments[position:end])
        position = end
    return arguments, []


def _options(parser: argparse.ArgumentParser, *, with_value: bool = False) -> set[str]:
    actions = [action for action in parser._actions if action.nargs != 0 or not with_value]
    return {option for action in actions for option in action.option_strings}


def _subparser(parser: argparse.ArgumentParser, name: str) -> argparse.ArgumentParser:
    action = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    subparser: argparse.ArgumentParser = action.choices[name]
    return subparser
