"""`manage.py singlecron`: jobs on the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

from django.core.management import ManagementUtility, call_command, get_commands, load_command_class
from django.core.management.base import BaseCommand, CommandError, CommandParser, handle_default_options

from django_singlecron.decorators import SingletonTask, TaskOptions
from django_singlecron.runner import Outcome


class Command(BaseCommand):
    """Parses, calls, and passes the exit code on."""

    help = "Runs management commands as jobs that happen on one replica at a time."
    # The wrapped command runs the checks that it asks for.
    requires_system_checks: list[str] = []  # noqa: RUF012  # as BaseCommand declares it

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the subcommands."""
        subcommands = parser.add_subparsers(dest="subcommand", required=True, metavar="SUBCOMMAND")
        run = subcommands.add_parser(
            "run",
            help="Run a management command under its lock.",
            description="Run a management command unless another replica runs it at this moment; record the attempt.",
            allow_abbrev=False,
        )
        self.add_base_argument(
            run, "-v", "--verbosity", default=None, type=int, choices=[0, 1, 2, 3], help=argparse.SUPPRESS
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
        run.add_argument("wrapped_args", metavar="ARGS", nargs=argparse.REMAINDER, help="Its arguments.")

    def run_from_argv(self, argv: list[str]) -> None:
        """Run a subcommand; `run` gives the wrapped command its arguments untouched, `--help` among them."""
        parser = self.create_parser(argv[0], argv[1])
        own, wrapped = _split(parser, argv[2:])
        if not wrapped:
            super().run_from_argv(argv)
            return
        options = parser.parse_args([*own, wrapped[0]])
        handle_default_options(options)
        command = ManagementUtility(argv[:1]).fetch_command(wrapped[0])
        outcomes = self._lock(command, wrapped[0], options.name)
        verbosity = [] if options.verbosity is None else [f"--verbosity={options.verbosity}"]
        command.run_from_argv([argv[0], wrapped[0], *verbosity, *wrapped[1:]])
        _exit_if_skipped(outcomes, options.skip_exit_code)

    def handle(self, *args: Any, **options: Any) -> Any:
        """Run the wrapped command for `call_command`, which has parsed the arguments."""
        name = options["wrapped"]
        try:
            app = get_commands()[name]
        except KeyError as error:
            raise CommandError(f"Unknown command: {name!r}") from error
        command = app if isinstance(app, BaseCommand) else load_command_class(app, name)
        outcomes = self._lock(command, name, options["name"])
        passed_on = {key: options[key] for key in ("stdout", "stderr") if options.get(key)}
        if options["verbosity"] is not None:
            passed_on["verbosity"] = options["verbosity"]
        value = call_command(command, *options["wrapped_args"], **passed_on)
        _exit_if_skipped(outcomes, options["skip_exit_code"])
        return value

    def _lock(self, command: BaseCommand, command_name: str, name: str | None) -> list[Outcome[Any]]:
        """Put the `handle()` of one command object under its lock; return where the outcome will be noted."""
        outcomes: list[Outcome[Any]] = []
        decorated = type(command).handle
        if not isinstance(decorated, SingletonTask):
            task: SingletonTask[Any, Any] = SingletonTask(decorated, TaskOptions(name=name or command_name))
        elif name is None:
            task = decorated
        else:
            raise CommandError(f"{command_name} is a singleton task, which names itself: leave --name out.")

        def handle(*args: Any, **options: Any) -> Any:
            outcome = task.run_command(command, args, options)
            outcomes.append(outcome)
            return outcome.result.value

        command.handle = handle  # type: ignore[method-assign]  # this object's alone
        return outcomes


def _exit_code(text: str) -> int:
    code = int(text)
    if not 0 <= code <= 255:
        raise argparse.ArgumentTypeError(f"{code} is no exit code: 0 to 255.")
    return code


def _exit_if_skipped(outcomes: list[Outcome[Any]], code: int) -> None:
    if code and any(not outcome.result.ran for outcome in outcomes):
        sys.exit(code)


def _split(parser: argparse.ArgumentParser, arguments: list[str]) -> tuple[list[str], list[str]]:
    """Split the arguments of `run` into its own and, from the wrapped command's name on, those of the wrapped.

    argparse.REMAINDER would do nearly that, but treats `--` and options before the name differently from one Python
    to the next.
    """
    if arguments[:1] != ["run"]:
        return arguments, []
    takes_value: Callable[[str], bool] = {
        option
        for subparser in (parser, _subparser(parser, "run"))
        for action in subparser._actions
        if action.nargs != 0
        for option in action.option_strings
    }.__contains__
    position = 1
    while position < len(arguments) and arguments[position].startswith("-"):
        if arguments[position] == "--":
            return arguments[:position], arguments[position + 1 :]
        position += 2 if takes_value(arguments[position]) else 1
    return arguments[:position], arguments[position:]


def _subparser(parser: argparse.ArgumentParser, name: str) -> argparse.ArgumentParser:
    action = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    subparser: argparse.ArgumentParser = action.choices[name]
    return subparser
