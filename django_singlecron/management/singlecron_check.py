"""`manage.py singlecron check`: what is wrong, in words or as JSON, and an exit code for monitors."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from django.core.management.base import BaseCommand
from django.core.management.color import Style

from django_singlecron.overview import RECENT
from django_singlecron.problems import Severity
from django_singlecron.watch import Look, Report, check


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `check` takes."""
    parser.add_argument("--job", metavar="NAME", help="Check one job alone.")
    parser.add_argument("--database", metavar="ALIAS", help="Check one database alone; by default all that have jobs.")
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    parser.add_argument(
        "--failures",
        type=_count,
        default=1,
        metavar="N",
        help="How many runs in a row must have failed to be reported; by default 1.",
    )
    parser.add_argument("--no-mail", action="store_true", help="Log nothing, and do not note what is wrong.")


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    """Check, print, and exit with 0, 1, 2 or 3."""
    look = Look(options["job"], options["failures"], writes=True, tells=not options["no_mail"])
    report = check(look, options["database"])
    if options["json"]:
        command.stdout.write(json.dumps(report.as_dict(), indent=2))
    else:
        for line in lines(report, command.style):
            command.stdout.write(line)
    if report.severity:
        sys.exit(report.severity)


def lines(report: Report, style: Style) -> list[str]:
    """Say it in words: a line for the whole, which is all that some monitors show, and one for each problem."""
    paint: dict[Severity, Callable[[str], str]] = {
        Severity.OK: style.SUCCESS,
        Severity.WARNING: style.WARNING,
        Severity.CRITICAL: style.ERROR,
        Severity.UNKNOWN: style.ERROR,
    }
    state, problems = report.severity, report.problems
    jobs = f"{report.jobs} job{'' if report.jobs == 1 else 's'}"
    what = f"{len(problems)} problem{'' if len(problems) == 1 else 's'} in {jobs}" if problems else f"{jobs} checked"
    return [
        paint[state](f"{state.name}: {what}"),
        *(paint[Severity.UNKNOWN](obstacle) for obstacle in report.obstacles),
        *(
            f"{paint[problem.severity](problem.kind.value)}  {problem.job} ({using}): {problem.text}"
            for using, problem in problems
        ),
    ]


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= RECENT):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to {RECENT}.")
    return int(text)
