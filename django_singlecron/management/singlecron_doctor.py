"""`manage.py singlecron doctor`: what was proved of the stack, as a table or JSON, and an exit code for pipelines."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.core.management.color import Style

from django_singlecron import registry
from django_singlecron.doctor.report import Line, Report, Status
from django_singlecron.overview import databases

# Two spaces after each; the text has what is left.
STATUS, ID = 8, 17
NARROWEST = 80

_LEVELS = {"WARNING": (Status.WARNING, Status.FAILED), "FAILED": (Status.FAILED,)}
_WORST = (Status.PASSED, Status.WARNING, Status.FAILED)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `doctor` takes."""
    parser.add_argument("--database", metavar="ALIAS", help="Examine one database; by default all that have jobs.")
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    parser.add_argument(
        "--fail-level",
        choices=_LEVELS,
        default="FAILED",
        help="From what on the exit code is 1; by default FAILED.",
    )
    parser.add_argument(
        "--accept",
        action="append",
        default=[],
        metavar="ID",
        help="An examination whose warning does not count; may be repeated.",
    )


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    """Examine, print, and exit with 0 or 1."""
    # Here, since the other subcommands, which cron starts each minute, need none of it.
    from django_singlecron.doctor.examine import EXAMINATIONS, examine

    ids = [each.id for each in EXAMINATIONS]
    if unknown := sorted({*options["accept"]} - {*ids}):
        raise CommandError(f'There is no examination "{unknown[0]}". There are: {", ".join(ids)}.', returncode=2)
    registry.autodiscover()
    aliases = [options["database"]] if options["database"] else databases()
    reports = [examine(alias, options["accept"]) for alias in aliases]
    worst = max((report.status for report in reports), key=_WORST.index)
    if options["json"]:
        found = {"status": worst.value, "databases": [report.as_dict() for report in reports]}
        command.stdout.write(json.dumps(found, indent=2))
    else:
        width = max(NARROWEST, shutil.get_terminal_size().columns) if command.stdout.isatty() else None
        for line in _lines(reports, command.style, width):
            command.stdout.write(line)
    if worst in _LEVELS[options["fail_level"]]:
        sys.exit(1)


def _lines(reports: Sequence[Report], style: Style, width: int | None) -> Iterator[str]:
    paint: dict[Status, Callable[[str], str]] = {
        Status.PASSED: style.SUCCESS,
        Status.WARNING: style.WARNING,
        Status.FAILED: style.ERROR,
        Status.NOT_MADE: style.ERROR,
    }
    for report in reports:
        yield style.MIGRATE_HEADING(f'Database "{report.database}"')
        for line in report.lines:
            status = paint[line.verdict.status](line.verdict.status.value.ljust(STATUS))
            first, *others = _told(line, width)
            yield f"{status}  {line.id.ljust(ID)}  {first}"
            yield from (" " * (STATUS + ID + 4) + other for other in others)
        warnings, failures = report.count(Status.WARNING), report.count(Status.FAILED, Status.NOT_MADE)
        counts = f"{report.count(Status.PASSED)} passed, {warnings} warned, {failures} failed or not made"
        yield paint[report.status](f"{report.status.value.upper()}: {counts}, in {report.seconds:.1f} s")


def _told(line: Line, width: int | None) -> list[str]:
    """Return the verdict, and what to do on lines of its own; broken into lines on a terminal alone."""
    verdict = line.verdict
    told = [verdict.text, *([f"To do: {verdict.advice}"] if verdict.advice else [])]
    if width is None:
        return told
    room = width - STATUS - ID - 4
    return [part for text in told for part in textwrap.wrap(text, room, break_long_words=False)]
