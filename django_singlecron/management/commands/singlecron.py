"""`manage.py singlecron`: jobs on the command line."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_singlecron import crontab
from django_singlecron.management import run_arguments, run_jobs, singlecron_check, singlecron_doctor, singlecron_status
from django_singlecron.task import Request

_OTHERS = {
    "check": (singlecron_check, "Say what is wrong with the jobs. Exits with 0, 1, 2 or 3, as a Nagios plugin."),
    "doctor": (singlecron_doctor, "Prove on the project's own stack that the lock excludes. Exits with 0 or 1."),
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
        run_arguments.add_arguments(run)
        # After `run` too, as call_command() passes them on.
        run.add_argument(
            "-v", "--verbosity", type=int, choices=range(4), default=argparse.SUPPRESS, help=argparse.SUPPRESS
        )
        for option in ("--traceback", "--no-color", "--force-color"):
            run.add_argument(option, action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        run.add_argument("wrapped", metavar="COMMAND", help="The management command to run, or a task's name.")
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
        except run_jobs.FromWrapped as escaped:
            raise escaped.error from escaped.error.__cause__

    def execute(self, *args: Any, **options: Any) -> Any:
        """Return what the wrapped command returned, as `call_command` on that command would."""
        super().execute(*args, **options)
        return self.value

    def handle(self, *args: Any, **options: Any) -> None:
        """Do the subcommand; `run` exits as the job does, with the code asked for when it was skipped."""
        if options["subcommand"] in _OTHERS:
            _OTHERS[options["subcommand"]][0].run(self, options)
            return
        try:
            self._run(options)
        except BaseException as error:
            crontab.keep_exit_code(error)
            raise

    def _run(self, options: dict[str, Any]) -> None:
        with run_arguments.wrong_arguments():
            run_arguments.check_combination(options)
            job = run_jobs.find(options, self.wrapped_argv, self)
            slot = None if options["slot"] is None else job.task.check_slot(options["slot"])
            slots = run_jobs.slots_to_fill(job, options)
        if slots is not None:
            run_jobs.fill(job, *slots, options, self)
            return
        result = job.run(Request(options["force"], slot)).result
        self.value = job.value
        if not result.ran and options["skip_exit_code"]:
            sys.exit(options["skip_exit_code"])


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
