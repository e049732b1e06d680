"""The options of a singleton task, checked when it is decorated."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from django.utils.timezone import get_default_timezone

from .exceptions import InvalidName, InvalidTask
from .keys import KeyOption, check_key_option
from .shown import shown
from .slots import Plan, make_period, make_schedule

# Longer, and PostgreSQL's timeouts, which are 32-bit numbers of milliseconds, could not express it.
MAX_TIMEOUT = timedelta(days=24)
MAX_DURATION = timedelta(days=3660)


class TaskOptions(NamedTuple):
    """What `singleton_task` and the `singlecron run` command take; `singleton_task` says what each means."""

    name: str | None = None
    key: KeyOption = "hashtextextended"
    using: str | None = None
    timeout: timedelta | None = None
    record_skips: bool | None = None
    once_per: str | timedelta | None = None
    schedule: str | None = None
    timezone: tzinfo | None = None
    retry: bool = True
    min_interval: timedelta | None = None
    grace: timedelta | None = None
    max_duration: timedelta | None = None
    http: bool = False

    def plan(self) -> Plan | None:
        """Return the task's slots, in its own time zone or else the project's; None when it has none."""
        if self.schedule is None and self.once_per is None:
            return None
        zone = self.timezone or get_default_timezone()
        return make_period(self.once_per, zone) if self.once_per else make_schedule(str(self.schedule), zone)


def check_options(
    *,
    name: Any = None,
    key: Any = "hashtextextended",
    using: Any = None,
    timeout: Any = None,
    record_skips: Any = None,
    once_per: Any = None,
    schedule: Any = None,
    timezone: Any = None,
    retry: Any = True,
    min_interval: Any = None,
    grace: Any = None,
    max_duration: Any = None,
    http: Any = False,
) -> TaskOptions:
    """Return the options when they are right.

    Raises `InvalidTask`, or `InvalidName`, with what is wrong with the first that is not.
    """
    if name is not None and not isinstance(name, str):
        raise InvalidName(f"A job's name is text; {shown(name)} is a {type(name).__name__}.")
    if using is not None and not (isinstance(using, str) and using):
        raise InvalidTask(f"using={shown(using)} is not the alias of a database.")
    if record_skips is not None and not isinstance(record_skips, bool):
        raise InvalidTask(f"record_skips={shown(record_skips)} is neither True nor False.")
    if not isinstance(http, bool):
        raise InvalidTask(f"http={shown(http)} is neither True nor False.")
    _check_slots(once_per, schedule, timezone, retry, grace)
    return TaskOptions(
        name=name,
        key=check_key_option(key),
        using=using,
        timeout=_check_duration("timeout", timeout, MAX_TIMEOUT),
        record_skips=record_skips,
        once_per=once_per,
        schedule=schedule,
        timezone=_check_timezone(timezone),
        retry=retry,
        min_interval=_check_duration("min_interval", min_interval, MAX_DURATION),
        grace=_check_duration("grace", grace, MAX_DURATION),
        max_duration=_check_duration("max_duration", max_duration, MAX_DURATION),
        http=http,
    )


def _check_slots(once_per: Any, schedule: Any, timezone_option: Any, retry: Any, grace: Any) -> None:
    if once_per is not None and schedule is not None:
        raise InvalidTask("once_per= and schedule= both name the slots; use one of them.")
    if once_per is not None:
        make_period(once_per, timezone.utc)
    if schedule is not None:
        make_schedule(schedule, timezone.utc)
    if not isinstance(retry, bool):
        raise InvalidTask(f"retry={shown(retry)} is neither True nor False.")
    has_slots = once_per is not None or schedule is not None
    if not has_slots and (timezone_option is not None or not retry):
        raise InvalidTask("timezone= and retry= say how slots are used, and need once_per= or schedule=.")
    if grace is not None and schedule is None:
        raise InvalidTask("grace= says how late a scheduled run may be, and needs schedule=.")


def _check_timezone(zone: Any) -> tzinfo | None:
    if zone is None:
        return None
    try:
        found = zone if isinstance(zone, tzinfo) else ZoneInfo(zone)
        # A tzinfo that cannot be used would only be found out by the first call.
        datetime.now(found)
    except Exception as error:
        raise InvalidTask(f"timezone={shown(zone)} is no time zone, such as 'Europe/Berlin'.") from error
    return found


def _check_duration(option: str, duration: Any, limit: timedelta) -> timedelta | None:
    if duration is None:
        return None
    if isinstance(duration, int | float) and not isinstance(duration, bool):
        try:
            duration = timedelta(seconds=duration)
        except (OverflowError, ValueError):
            duration = None
    if not isinstance(duration, timedelta) or not timedelta(0) < duration <= limit:
        raise InvalidTask(
            f"{option}= is a timedelta or a number of seconds, more than 0 and at most {limit.days:,} days."
        )
    return duration
