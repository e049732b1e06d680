"""`manage.py singlecron status`: each job, what it did last and when it is due, for people and as JSON."""

from __future__ import annotations

import argparse
import json
import shutil
import unicodedata
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.core.management.color import Style

from django_singlecron import registry
from django_singlecron.models import JobRun
from django_singlecron.overview import RECENT, CannotTell, Job, databases, overview

# Two spaces between each; the job's name has what is left.
MOMENT, RESULT, DURATION = 16, 9, 8
NARROWEST = 80


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `status` takes."""
    parser.add_argument("--job", metavar="NAME", help="Show one job alone.")
    parser.add_argument("--database", metavar="ALIAS", help="Show one database alone; by default all that have jobs.")
    parser.add_argument("--json", action="store_true", help="Print JSON.")


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    """Print each job."""
    registry.autodiscover()
    shown: list[tuple[str, Job, datetime]] = []
    for using in [options["database"]] if options["database"] else databases():
        try:
            seen = overview(using)
        except CannotTell as error:
            raise CommandError(str(error)) from error
        shown += [(using, job, seen.live.at) for job in seen.jobs if options["job"] in (None, job.name)]
    if options["job"] and not shown:
        raise CommandError(f'There is no job "{options["job"]}".')
    if options["json"]:
        command.stdout.write(json.dumps([_as_dict(*job) for job in shown], indent=2))
        return
    if not shown:
        command.stdout.write("There are no jobs.")
        return
    width = max(NARROWEST, shutil.get_terminal_size().columns) if command.stdout.isatty() else NARROWEST
    aliases = {using for using, _, _ in shown}
    for line in _lines(shown, command.style, width, name_databases=len(aliases) > 1):
        command.stdout.write(line)


def _lines(shown: list[tuple[str, Job, datetime]], style: Style, width: int, *, name_databases: bool) -> Iterator[str]:
    paint: dict[str, Callable[[str], str]] = {
        JobRun.Status.SUCCEEDED: style.SUCCESS,
        JobRun.Status.FAILED: style.ERROR,
        JobRun.Status.LOST: style.ERROR,
    }
    columns = (width - 2 * MOMENT - RESULT - DURATION - 8, MOMENT, RESULT, DURATION, MOMENT)
    header = ("JOB", "LAST RUN", "RESULT", "TOOK", "NEXT DUE")
    yield style.MIGRATE_HEADING(_row(header, columns).rstrip())
    for using, job, now in shown:
        last, due = job.last, _next_due(job, now)
        cells = [
            fit(job.name, columns[0]),
            fit(f"{last.started_at.astimezone(job.zone):%Y-%m-%d %H:%M}" if last else "never", columns[1]),
            fit(last.status if last else "", columns[2]),
            fit(_duration(last.duration) if last and last.duration is not None else "", columns[3]),
            f"{due.astimezone(job.zone):%Y-%m-%d %H:%M}" if due else "",
        ]
        if last:
            cells[2] = paint[last.status](cells[2])
        yield "  ".join(cells).rstrip()
        for note in _notes(using if name_databases else "", job):
            yield fit(f"  {note}", width).rstrip()


def _notes(using: str, job: Job) -> Iterator[str]:
    if job.plan is not None:
        yield f"{job.plan.describe()} ({job.zone})"
    if job.running is not None:
        since = job.running.started_at.astimezone(job.zone)
        yield f"running on {job.running.host} (pid {job.running.pid}) since {since:%Y-%m-%d %H:%M:%S}"
    if job.failures > 1:
        yield f"{_failures(job)} runs in a row did not succeed"
    if using:
        yield f'in the database "{using}"'


def _as_dict(using: str, job: Job, now: datetime) -> dict[str, Any]:
    last, running, due = job.last, job.running, _next_due(job, now)
    return {
        "job": job.name,
        "database": using,
        "schedule": job.schedule.expression if job.schedule else None,
        "schedule_in_words": job.plan.describe() if job.plan else None,
        "timezone": str(job.zone),
        "last_run": last
        and {
            "id": last.id,
            "host": last.host,
            "started_at": last.started_at.isoformat(),
            "result": last.status,
            "error": last.error,
            "seconds": last.duration.total_seconds() if last.duration is not None else None,
        },
        "next_due": due and due.astimezone(job.zone).isoformat(),
        "running": running
        and {
            "id": running.pk,
            "host": running.host,
            "pid": running.pid,
            "started_at": running.started_at.isoformat(),
        },
        "consecutive_failures": job.failures,
    }


def _next_due(job: Job, now: datetime) -> datetime | None:
    if job.schedule is None:
        return None
    slots = job.schedule.since(now)
    next(slots)
    return next(slots)


def _failures(job: Job) -> str:
    return f"{job.failures}{'+' if job.failures == RECENT else ''}"


def _duration(duration: timedelta) -> str:
    seconds = duration.total_seconds()
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes:02}" if hours else f"{minutes} m {seconds:02}"


def _row(cells: tuple[str, ...], columns: tuple[int, ...]) -> str:
    return "  ".join(fit(cell, column) for cell, column in zip(cells, columns, strict=True))


def fit(text: str, width: int) -> str:
    """Return the text in exactly `width` cells of a terminal: padded, or cut and ended with an ellipsis."""
    if sum(map(_cells, text)) > width:
        ends = accumulate(map(_cells, text))
        text = "".join(character for character, end in zip(text, ends, strict=True) if end < width) + "…"
    return text + " " * (width - sum(map(_cells, text)))


def _cells(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Cf", "Me", "Mn"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
