"""The options of `singlecron run`, and what they ask for."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta
from typing import Any, get_args

from django.core.management.base import BaseCommand, CommandError
from django.utils.dateparse import parse_date, parse_datetime

from django_singlecron.exceptions import InvalidSlot, InvalidTask, RunRefused
from django_singlecron.options import check_options
from django_singlecron.slots import CalendarUnit
from django_singlecron.task import SingletonTask

# As argparse has it, for what it cannot find out.
WRONG_ARGUMENTS = 2

# What a decorated job says at its decorator, and any other on the command line.
_OF_THE_TASK = ("name", "once_per", "schedule", "timezone", "min_interval", "timeout")

_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)", re.ASCII)
_UNITS = {"": "seconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all that stands before the job's name."""
    parser.add_argument("--name", help="The job's name; by default the command's. May hold options: sync:{tenant}.")
    parser.add_argument(
        "--once-per",
        type=_period,
        metavar="PERIOD",
        help="minute, hour, day, week, month, or a duration such as 6h: succeed at most once in each.",
    )
    parser.add_argument("--schedule", metavar="CRON", help='As --once-per, at the times of "0 2 * * *" or @daily.')
    parser.add_argument("--timezone", metavar="ZONE", help="Of --once-per and --schedule; by default the project's.")
    parser.add_argument(
        "--min-interval", type=_duration, metavar="DURATION", help="What must have passed since the last start."
    )
    parser.add_argument(
        "--timeout", type=_duration, metavar="DURATION", help="End the run and roll it back after this: 90, 15m, 1h."
    )
    parser.add_argument(
        "--skip-exit-code",
        type=_exit_code,
        default=0,
        metavar="N",
        help="The exit code when the job was skipped; by default 0, since a skip is no failure.",
    )
    parser.add_argument("--force", action="store_true", help="Run though the slot is taken or the last run is recent.")
    parser.add_argument("--slot", type=_moment, metavar="TIME", help="Run for this slot: 2026-10-01T02:00.")
    parser.add_argument(
        "--since", type=_moment, metavar="TIME", help="Run for each slot from here that has no success, oldest first."
    )
    parser.add_argument("--until", type=_last_moment, metavar="TIME", help="The end of --since; by default now.")
    parser.add_argument("--keep-going", action="store_true", help="With --since: go on after a slot that failed.")


@contextmanager
def wrong_arguments() -> Iterator[None]:
    """Turn what is wrong with the options into a `CommandError` with the exit code for that, a refusal into another."""
    try:
        yield
    except (InvalidTask, InvalidSlot) as error:
        raise CommandError(_as_on_the_command_line(str(error)), returncode=WRONG_ARGUMENTS) from error
    except RunRefused as error:
        raise CommandError(str(error)) from error


def check_combination(options: Mapping[str, Any]) -> None:
    """Raise `InvalidSlot` for options that do not go together."""
    if options["since"] is None and (options["until"] is not None or options["keep_going"]):
        raise InvalidSlot("--until and --keep-going belong to a range of slots, and need --since.")
    if options["since"] is not None and options["slot"] is not None:
        raise InvalidSlot("--slot is for one slot and --since for a range; use one of them.")


def task_of_command(command: type[BaseCommand], name: str, options: Mapping[str, Any]) -> SingletonTask[Any, Any]:
    """Return the task of a command: its own, or one with the options given.

    Raises `InvalidTask` for options that are wrong, or that a decorated command has at its decorator.
    """
    if isinstance(command.handle, SingletonTask):
        refuse_task_options(name, options)
        return command.handle
    given = _task_options(options)
    return SingletonTask(command.handle, check_options(**{"name": name, **given}))


def refuse_task_options(name: str, options: Mapping[str, Any]) -> None:
    """Raise `InvalidTask` for options that a decorated job has at its decorator."""
    for option in _task_options(options):
        what = "which names itself" if option == "name" else "whose options stand at its decorator"
        raise InvalidTask(f"{name} is a singleton task, {what}: leave --{option.replace('_', '-')} out.")


def _task_options(options: Mapping[str, Any]) -> dict[str, Any]:
    return {option: options[option] for option in _OF_THE_TASK if options[option] is not None}


def _as_on_the_command_line(message: str) -> str:
    """Spell the decorator's options in a message as those of the command."""
    names = "|".join(_OF_THE_TASK)
    spelt = re.sub(rf"\b({names})=(?=\S*['\"\d@(])", lambda found: f"--{found[1]} ", message)
    spelt = re.sub(rf"\b({names})=", lambda found: f"--{found[1]}", spelt)
    return re.sub(r"--\w+", lambda found: found[0].replace("_", "-"), spelt)


def _exit_code(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= 255):
        raise argparse.ArgumentTypeError(f"{text!r} is no exit code: 0 to 255.")
    return int(text)


def _duration(text: str) -> timedelta:
    match = _DURATION.fullmatch(text)
    try:
        duration = timedelta(**{_UNITS[match[2]]: float(match[1])}) if match else timedelta(0)
    except OverflowError:
        duration = timedelta(0)
    if not duration:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: seconds, or 90s, 15m, 1h, 1d.")
    return duration


def _period(text: str) -> str | timedelta:
    if text in get_args(CalendarUnit):
        return text
    try:
        return _duration(text)
    except argparse.ArgumentTypeError as error:
        units = ", ".join(get_args(CalendarUnit))
        raise argparse.ArgumentTypeError(
            f"{text!r} is none of {units}, and no duration such as 90s, 15m, 6h."
        ) from error


def _moment(text: str) -> datetime:
    return _date_or_time(text, time.min)


def _last_moment(text: str) -> datetime:
    """A date's last moment, so that a range includes the day."""
    return _date_or_time(text, time.max)


def _date_or_time(text: str, time_of_dates: time) -> datetime:
    try:
        day: date | None = parse_date(text)
        if day is not None:
            return datetime.combine(day, time_of_dates)
        moment = parse_datetime(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} does not exist: {error}.") from error
    if moment is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no date and no time, such as 2026-10-01T02:00.")
    return moment
