"""Slots: which period a moment belongs to, so that a job can happen once in each. Pure: no database, no clock.

A slot is named by the instant at which it begins or, for a schedule, at which it is due.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone, tzinfo
from itertools import takewhile
from typing import Literal, NamedTuple, Protocol, get_args

from cronsim import CronSim, CronSimError

from .exceptions import InvalidTask
from .shown import shown

UTC = timezone.utc

CalendarUnit = Literal["minute", "hour", "day", "week", "month"]

MIN_PERIOD = timedelta(seconds=1)
MAX_PERIOD = timedelta(days=366)

# A replica's cron that fires this early belongs to the coming slot; in short periods less, so that a late one does not.
TOLERANCE = timedelta(seconds=30)
TOLERANCE_SHARE = 4

# As crontab(5) has them, less @reboot, which is no time.
NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

# Of the slots that somebody may ask for: further away a schedule is not followed in reasonable time.
FIRST_YEAR, LAST_YEAR = 1970, 2199

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Steps by which no period of a unit can be jumped over, whatever a change of the clocks makes of it.
_STEPS = {
    "minute": timedelta(seconds=30),
    "hour": timedelta(minutes=15),
    "day": timedelta(hours=12),
    "week": timedelta(days=3),
    "month": timedelta(days=14),
}

_FOLD_AND_MORE = timedelta(hours=3)


class Plan(Protocol):
    """A division of time into slots."""

    @property
    def zone(self) -> tzinfo:
        """The time zone in which people read its slots."""
        ...

    def since(self, moment: datetime) -> Iterator[datetime]:
        """Yield the slot that `moment` lies in, then each that follows, in UTC."""
        ...

    def describe(self) -> str:
        """Say it in words."""
        ...


def slot_at(plan: Plan, moment: datetime) -> datetime:
    """Return the slot of a firing at `moment`: the current one, or the coming one when it is about to begin.

    The tolerance for early firings is 30 seconds, and never more than a quarter of the period.
    """
    slots = plan.since(moment)
    current, coming = next(slots), next(slots)
    tolerance = min(TOLERANCE, (coming - current) / TOLERANCE_SHARE)
    return coming if coming - moment <= tolerance else current


def slots_between(plan: Plan, since: datetime, until: datetime) -> Iterator[datetime]:
    """Yield the slots from `since` to `until`, both included, in order."""
    return (slot for slot in takewhile(lambda slot: slot <= until, plan.since(since)) if slot >= since)


class Calendar(NamedTuple):
    """Minutes, hours, days, weeks from Monday, or months, in a time zone."""

    unit: CalendarUnit
    zone: tzinfo

    def since(self, moment: datetime) -> Iterator[datetime]:
        slot = self._floor(moment)
        while True:
            yield slot
            later = slot
            while self._floor(later) == slot:
                later += _STEPS[self.unit]
            slot = self._floor(later)

    def describe(self) -> str:
        return f"once per {self.unit}"

    def _floor(self, moment: datetime) -> datetime:
        local = moment.astimezone(self.zone).replace(second=0, microsecond=0)
        if self.unit == "minute":
            return local.astimezone(UTC)
        if self.unit == "hour":
            return local.replace(minute=0).astimezone(UTC)
        # The day begins at the first of two midnights.
        day = local.replace(hour=0, minute=0, fold=0)
        if self.unit == "week":
            day -= timedelta(days=day.weekday())
        if self.unit == "month":
            day = day.replace(day=1)
        return day.astimezone(UTC)


class Fixed(NamedTuple):
    """Periods of one length, counted from 1970-01-01 UTC."""

    length: timedelta
    zone: tzinfo

    def since(self, moment: datetime) -> Iterator[datetime]:
        slot = moment.astimezone(UTC) - (moment - _EPOCH) % self.length
        while True:
            yield slot
            slot += self.length

    def describe(self) -> str:
        return f"once per {self.length}"


class Schedule(NamedTuple):
    """The times at which a cron expression is due in a time zone, by the rules of Debian's cron.

    Daylight saving time: a job at a fixed time that a change skips or repeats runs once; see cron(8).
    """

    expression: str
    zone: tzinfo

    def since(self, moment: datetime) -> Iterator[datetime]:
        slot, dues = self._from_before(moment)
        following = next(dues)
        while following <= moment:
            slot, following = following, next(dues)
        yield slot
        yield following
        yield from dues

    def describe(self) -> str:
        return CronSim(self.expression, _EPOCH).explain()

    def _from_before(self, moment: datetime) -> tuple[datetime, Iterator[datetime]]:
        """Return a due time that is not after `moment`, and all that follow it.

        cronsim is asked forward, and from a local time that happens once: in the hour that a change of the clocks
        repeats, what it gives depends on where it starts.
        """
        start = moment
        while True:
            start = self._once(
                next(CronSim(self.expression, start.astimezone(self.zone), reverse=True)) - _FOLD_AND_MORE
            )
            dues = (due.astimezone(UTC) for due in CronSim(self.expression, start.astimezone(self.zone)))
            first = next(dues)
            if first <= moment:
                return first, dues

    def _once(self, moment: datetime) -> datetime:
        moment = moment.astimezone(UTC)
        while self._is_repeated(moment):
            moment -= _FOLD_AND_MORE
        return moment

    def _is_repeated(self, moment: datetime) -> bool:
        local = moment.astimezone(self.zone)
        return local.replace(fold=0).utcoffset() != local.replace(fold=1).utcoffset()


def make_schedule(expression: object, zone: tzinfo) -> Schedule:
    """Return the schedule of a cron expression: five fields, or a nickname such as `@daily`.

    Raises `InvalidTask` when it is neither, has a field for seconds, or is never due.
    """
    if not isinstance(expression, str):
        raise InvalidTask(f"schedule={shown(expression)} is no cron expression, which is text such as '0 2 * * *'.")
    fields = NICKNAMES.get(expression.strip().lower(), expression).split()
    if len(fields) == 1 and fields[0].startswith("@"):
        raise InvalidTask(f"schedule={shown(expression)} is no nickname of cron's. There are: {', '.join(NICKNAMES)}.")
    if len(fields) == 6:
        raise InvalidTask(f"schedule={shown(expression)} has a field for seconds; cron's least unit is the minute.")
    if len(fields) != 5:
        raise InvalidTask(
            f"schedule={shown(expression)} has {len(fields)} fields. A cron expression has five: minute, hour, day of "
            "month, month, day of week."
        )
    normal = " ".join(fields)
    try:
        next(CronSim(normal, _EPOCH))
    except (CronSimError, StopIteration) as error:
        raise InvalidTask(f"schedule={shown(expression)} is no cron expression that is ever due: {error}.") from error
    return Schedule(normal, zone)


def make_period(period: object, zone: tzinfo) -> Calendar | Fixed:
    """Return the slots of `once_per=`: a calendar unit in a time zone, or a timedelta.

    Raises `InvalidTask` for any other value, and for a timedelta shorter than a second or longer than 366 days.
    """
    if isinstance(period, str) and period in get_args(CalendarUnit):
        unit: CalendarUnit = period  # type: ignore[assignment]  # mypy does not narrow a str to a Literal by `in`
        return Calendar(unit, zone)
    if isinstance(period, timedelta) and MIN_PERIOD <= period <= MAX_PERIOD:
        return Fixed(period, zone)
    raise InvalidTask(
        f"once_per={shown(period)} is neither one of {', '.join(get_args(CalendarUnit))}, nor a timedelta of a second "
        "to 366 days."
    )
