"""The options of slots: what is taken, what is refused with which words, and which plan comes of them."""

from __future__ import annotations

from datetime import timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from django_singlecron import InvalidTask
from django_singlecron.options import TaskOptions, check_options
from django_singlecron.slots import Calendar, Fixed, Schedule

BERLIN = ZoneInfo("Europe/Berlin")


def test_nothing_but_the_lock_is_asked_for_by_default() -> None:
    assert check_options() == TaskOptions()
    assert check_options().plan() is None


@pytest.mark.parametrize(
    ("options", "plan"),
    [
        ({"once_per": "day", "timezone": "Europe/Berlin"}, Calendar("day", BERLIN)),
        ({"once_per": "month", "timezone": BERLIN}, Calendar("month", BERLIN)),
        ({"once_per": "hour", "timezone": timezone.utc}, Calendar("hour", timezone.utc)),
        ({"once_per": timedelta(minutes=90), "timezone": timezone.utc}, Fixed(timedelta(minutes=90), timezone.utc)),
        ({"schedule": "0 2 * * *", "timezone": BERLIN}, Schedule("0 2 * * *", BERLIN)),
        ({"schedule": "@daily", "timezone": BERLIN, "grace": 60}, Schedule("0 0 * * *", BERLIN)),
    ],
)
def test_plans(options: dict[str, Any], plan: object) -> None:
    assert check_options(**options).plan() == plan


def test_without_a_time_zone_the_projects_counts_when_it_is_asked_for(settings: Any) -> None:
    options = [check_options(once_per="day"), check_options(schedule="0 2 * * *")]
    settings.TIME_ZONE = "Asia/Kolkata"
    assert [str(task.plan().zone) for task in options] == ["Asia/Kolkata", "Asia/Kolkata"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"once_per": "day", "schedule": "0 2 * * *"}, "both name the slots; use one of them"),
        ({"once_per": "fortnight"}, "once_per='fortnight' is neither one of minute, hour, day, week, month"),
        ({"once_per": timedelta(milliseconds=999)}, "a second to 366 days"),
        ({"schedule": "0 2 * *"}, "has 4 fields"),
        ({"schedule": ""}, "has 0 fields"),
        ({"schedule": "0 0 2 * * *"}, "has a field for seconds"),
        ({"once_per": "day", "retry": None}, "retry=None is neither True nor False"),
        ({"http": 1}, "http=1 is neither True nor False"),
        ({"retry": False}, "timezone= and retry= say how slots are used, and need once_per= or schedule="),
        ({"timezone": "UTC"}, "timezone= and retry= say how slots are used"),
        ({"grace": 60}, "grace= says how late a scheduled run may be, and needs schedule="),
        ({"once_per": "day", "grace": 60}, "needs schedule="),
        ({"once_per": "day", "timezone": "Mars/Olympus"}, "timezone='Mars/Olympus' is no time zone"),
        ({"once_per": "day", "timezone": ""}, "timezone='' is no time zone"),
        ({"once_per": "day", "timezone": "../etc/passwd"}, "is no time zone"),
        ({"once_per": "day", "timezone": 1}, "timezone=1 is no time zone"),
    ],
)
def test_what_is_wrong_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidTask, match=says.replace("(", r"\(")):
        check_options(**options)


@pytest.mark.parametrize("option", ["min_interval", "max_duration", "grace"])
@pytest.mark.parametrize("value", [0, -1, True, "1", float("nan"), float("inf"), timedelta(0), timedelta(days=3661)])
def test_what_is_no_duration_is_refused(option: str, value: Any) -> None:
    with pytest.raises(InvalidTask, match=rf"^{option}= is a timedelta or a number of seconds, .* at most 3,660 days"):
        check_options(schedule="@daily", **{option: value})


@pytest.mark.parametrize("option", ["min_interval", "max_duration", "grace"])
@pytest.mark.parametrize(
    ("value", "duration"),
    [(None, None), (90, timedelta(seconds=90)), (0.5, timedelta(seconds=0.5)), (timedelta(1),) * 2],
)
def test_durations(option: str, value: Any, duration: timedelta | None) -> None:
    assert getattr(check_options(schedule="@daily", **{option: value}), option) == duration
