"""Runs for the slots of a range that have none, oldest first, each in a run of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime, tzinfo
from itertools import islice
from typing import Any

from django.core.management.base import CommandError, OutputWrapper
from django.db import Error

from . import database, launch
from .calls import Outcome
from .exceptions import InvalidSlot
from .interrupts import Terminated
from .models import JobRun
from .slots import FIRST_YEAR, LAST_YEAR, UTC, slots_between
from .task import Request, SingletonTask

MOST_SLOTS = 100_000

BAR_WIDTH = 24


def slots_of_range(task: SingletonTask[Any, Any], since: datetime, until: datetime | None) -> list[datetime]:
    """Return the slots of a task from `since` to `until`, both included, by default to now.

    Moments without a time zone are in the task's. Now is by the database's clock.

    Raises `InvalidSlot` when the task has no slots, or the range is upside down, too long, or holds a slot that is
    still to come; `RunRefused` when the database cannot be asked.
    """
    plan = task.options.plan()
    if plan is None:
        raise InvalidSlot(f'The job "{task.name}" has no slots: it has neither once_per= nor schedule=.')
    first, now = _in_zone(since, plan.zone), _now(task)
    last = now if until is None else _in_zone(until, plan.zone)
    if last < first:
        raise InvalidSlot(f"The range ends at {last.isoformat()}, before it begins at {first.isoformat()}.")
    slots = list(islice(slots_between(plan, first, last), MOST_SLOTS + 1))
    if len(slots) > MOST_SLOTS:
        raise InvalidSlot(f"There are more than {MOST_SLOTS:,} slots in that range; ask for a part of it.")
    if slots and slots[-1] > now:
        to_come = next(slot for slot in slots if slot > now).astimezone(plan.zone).isoformat()
        raise InvalidSlot(f"The slot {to_come} is still to come. Without an end, the range ends now.")
    return [slot.astimezone(plan.zone) for slot in slots]


def _in_zone(moment: datetime, zone: tzinfo) -> datetime:
    if not FIRST_YEAR <= moment.year <= LAST_YEAR:
        raise InvalidSlot(f"{moment.isoformat()}: years are {FIRST_YEAR} to {LAST_YEAR}.")
    return moment if moment.tzinfo else moment.replace(tzinfo=zone)


def _now(task: SingletonTask[Any, Any]) -> datetime:
    try:
        return database.clock(launch.connection_for(task.name, task.using))
    except Error as error:
        raise database.refusal(error, task.name, task.using) from error


def succeeded_slots(job: str, using: str, slots: Sequence[datetime]) -> set[datetime]:
    """Return which of the slots, in order, have a success of the job, in UTC.

    Of a name that holds arguments, none has: its runs find out one by one.
    """
    if not slots:
        return set()
    runs = JobRun.objects.using(using).filter(job=job, slot__range=(slots[0], slots[-1])).succeeded()
    try:
        return {
            database.aware(slot).astimezone(UTC) for slot in runs.values_list("slot", flat=True) if slot is not None
        }
    except Error as error:
        raise database.refusal(error, job, using) from error


class Progress:
    """What a backfill says: a bar on a terminal, elsewhere a line for each slot; nothing at verbosity 0."""

    def __init__(self, stream: OutputWrapper, verbosity: int, total: int) -> None:
        self.stream = stream
        self.total = total
        self.quiet = verbosity < 1
        self.bar = not self.quiet and stream.isatty()
        self.position = 0
        self.counts: dict[str, int] = {}

    def begins(self, slot: datetime) -> None:
        """Show where it is, before the slot's run."""
        if self.bar:
            filled = "#" * (BAR_WIDTH * self.position // self.total)
            self._write(f"\r\x1b[K[{filled:.<{BAR_WIDTH}}] {self.position + 1}/{self.total} {slot.isoformat()} ", "")

    def ends(self, slot: datetime, how: str) -> None:
        """Note how a slot ended."""
        self.position += 1
        self.counts[how] = self.counts.get(how, 0) + 1
        if not self.bar:
            self._write(f"{slot.isoformat()}: {how}")

    def stopped(self) -> None:
        """Say how much is left."""
        self._close()
        left = self.total - self.position
        if left:
            self._write(f"Stopped: {left} more of {self.total} slots not tried. The same command goes on from here.")

    def finished(self) -> None:
        """Sum up."""
        self._close()
        counts = ", ".join(f"{count} {how}" for how, count in self.counts.items())
        self._write(f"{self.total} slots: {counts}." if self.total else "No slot lies in that range.")

    def _close(self) -> None:
        if self.bar and self.total:
            self._write("\r\x1b[K", "")

    def _write(self, text: str, ending: str = "\n") -> None:
        if not self.quiet:
            self.stream.write(text, style_func=str, ending=ending)
            self.stream.flush()


def fill(
    slots: Sequence[datetime],
    done: Collection[datetime],
    run: Callable[[Request], Outcome],
    progress: Progress,
    *,
    force: bool = False,
    keep_going: bool = False,
    skip_exit_code: int = 0,
) -> None:
    """Run each slot that is not `done`, until one fails.

    `keep_going` goes on after one that failed or was skipped because of another run; not when the job could not even
    start, or the process is asked to end.

    Raises what the first failed run raised, or `CommandError` with the slots that were not filled.
    """
    not_filled = []
    for slot in slots:
        how = "done already"
        if slot.astimezone(UTC) not in done:
            progress.begins(slot)
            how = _run_slot(slot, run, progress, force=force, keep_going=keep_going)
        progress.ends(slot, how)
        if how not in ("ran", "done already"):
            not_filled.append(slot)
            if not keep_going:
                progress.stopped()
                raise CommandError(f"The slot {slot.isoformat()} was {how}.", returncode=skip_exit_code or 1)
    progress.finished()
    if not_filled:
        listed = ", ".join(slot.isoformat() for slot in not_filled)
        raise CommandError(f"{len(not_filled)} of {len(slots)} slots were not filled: {listed}.")


def _run_slot(
    slot: datetime, run: Callable[[Request], Outcome], progress: Progress, *, force: bool, keep_going: bool
) -> str:
    started: list[int] = []
    try:
        result = run(Request(force, slot, started.append)).result
    except BaseException as error:
        if started and isinstance(error, SystemExit) and error.code in (None, 0):
            return "ran"
        if started and keep_going and isinstance(error, Exception | SystemExit) and not isinstance(error, Terminated):
            code = f" with exit code {error.code}" if isinstance(error, SystemExit) else f": {type(error).__name__}"
            return f"failed{code}"
        progress.ends(slot, "failed" if started else "not run")
        progress.stopped()
        raise
    if result.ran:
        return "ran"
    return "done already" if result.skip_reason == JobRun.SkipReason.ALREADY_RAN else f"skipped ({result.skip_reason})"
