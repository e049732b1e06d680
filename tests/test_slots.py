"""Slots: each due time has one, each of them is due once, and replicas whose clocks differ agree on it."""

from __future__ import annotations

from bisect import bisect_right
from datetime import datetime, timedelta, timezone
from functools import cache
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from django_singlecron.exceptions import InvalidTask
from django_singlecron.slots import (
    TOLERANCE,
    Calendar,
    Fixed,
    Plan,
    Schedule,
    make_period,
    make_schedule,
    slot_at,
    slots_between,
)

UTC = timezone.utc
FIRST, LAST = datetime(2024, 1, 1, tzinfo=UTC), datetime(2029, 1, 1, tzinfo=UTC)

# Changes by an hour and by half of one, at midnight and later, by northern, southern and moving calendars, and none.
ZONES = [
    "UTC",
    "Europe/Berlin",
    "Europe/London",
    "America/New_York",
    "America/Havana",
    "America/Santiago",
    "Australia/Lord_Howe",
    "Asia/Beirut",
    "Africa/Cairo",
    "Africa/Casablanca",
    "Pacific/Auckland",
    "Asia/Kolkata",
]
# Each with a time in which it is due at least once.
EXPRESSIONS = {
    "30 2 * * *": timedelta(days=2),
    "0 2 * * *": timedelta(days=2),
    "30 0 * * *": timedelta(days=2),
    "0 0 * * *": timedelta(days=2),
    "30 1 * * *": timedelta(days=2),
    "15 1-3 * * *": timedelta(days=2),
    "10,50 1,2,3 * * *": timedelta(days=2),
    "*/20 2 * * *": timedelta(days=2),
    "0 3 * * SUN": timedelta(days=8),
    "0 */2 * * *": timedelta(hours=4),
    "7 * * * *": timedelta(hours=4),
    "*/15 * * * *": timedelta(hours=4),
    "0 0 1 * *": timedelta(days=33),
    "0 9 1-7 * MON": timedelta(days=33),
    "59 23 L * *": timedelta(days=33),
}

zones = st.sampled_from(ZONES).map(ZoneInfo)
seconds = st.integers(0, int((LAST - FIRST).total_seconds()) * 10)
moments = seconds.map(lambda tenths: FIRST + timedelta(seconds=tenths / 10))
expressions = st.builds(
    "{} {} {} {} {}".format,
    st.sampled_from(["0", "30", "59", "*", "*/5", "*/7", "3,33", "10-20/5"]),
    st.sampled_from(["0", "1", "2", "3", "23", "*", "*/2", "*/6", "1-3", "0,12"]),
    st.sampled_from(["*", "*", "1", "15", "28", "*/10", "L", "1-7"]),
    st.sampled_from(["*", "*", "1", "3", "3,10", "*/3"]),
    st.sampled_from(["*", "*", "0", "1-5", "SUN", "MON#1"]),
)
plans = st.one_of(
    st.builds(Schedule, expressions, zones),
    st.builds(Calendar, st.sampled_from(["minute", "hour", "day", "week", "month"]), zones),
    st.builds(Fixed, st.timedeltas(timedelta(seconds=1), timedelta(days=366)), zones),
)


@cache
def changes(zone: str) -> list[datetime]:
    """The hours of a zone's changes of the clock."""
    tz, hour = ZoneInfo(zone), timedelta(hours=1)
    days = (FIRST + timedelta(days=n) for n in range((LAST - FIRST).days))
    return [
        day + n * hour
        for day in days
        if day.astimezone(tz).utcoffset() != (day + 24 * hour).astimezone(tz).utcoffset()
        for n in range(24)
        if (day + n * hour).astimezone(tz).utcoffset() != (day + (n + 1) * hour).astimezone(tz).utcoffset()
    ]


def by_cronsim(expression: str, zone: str, since: datetime, until: datetime) -> list[datetime]:
    dues = (due.astimezone(UTC) for due in CronSim(expression, since.astimezone(ZoneInfo(zone))))
    return list(takewhile(lambda due: due <= until, dues))


def test_the_zones_change_their_clocks() -> None:
    assert {zone: len(changes(zone)) for zone in ZONES} == {
        "UTC": 0,
        "Europe/Berlin": 10,
        "Europe/London": 10,
        "America/New_York": 10,
        "America/Havana": 10,
        "America/Santiago": 10,
        "Australia/Lord_Howe": 10,
        "Asia/Beirut": 10,
        "Africa/Cairo": 10,
        "Africa/Casablanca": 10,
        "Pacific/Auckland": 10,
        "Asia/Kolkata": 0,
    }


@pytest.mark.parametrize("zone", [zone for zone in ZONES if changes(zone)])
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_slots_are_the_due_times_of_cronsim_round_every_change_of_the_clock(expression: str, zone: str) -> None:
    plan = make_schedule(expression, ZoneInfo(zone))
    # Far enough for a due time on either side of each moment, and so that cronsim starts in no repeated hour.
    margin = timedelta(hours=3) + EXPRESSIONS[expression]
    for change in changes(zone):
        dues = by_cronsim(expression, zone, change - margin, change + margin)
        for minutes in (-95, -35, 5, 35, 95):
            moment = change + timedelta(minutes=minutes, seconds=13)
            position = bisect_right(dues, moment)
            assert 0 < position < len(dues), moment
            assert list(islice(plan.since(moment), 2)) == dues[position - 1 : position + 1], moment


@given(plan=plans, moment=moments)
@settings(deadline=None, max_examples=200)
def test_slots_follow_one_another_and_the_first_holds_the_moment(plan: Plan, moment: datetime) -> None:
    slots = list(islice(plan.since(moment), 5))
    assert slots[0] <= moment < slots[1]
    assert all(earlier < later for earlier, later in pairwise(slots))
    assert all(slot.tzinfo is UTC for slot in slots)


@given(plan=plans, moment=moments)
@settings(deadline=None, max_examples=200)
def test_each_due_time_has_one_slot_and_each_slot_one_due_time(plan: Plan, moment: datetime) -> None:
    for slot, following in pairwise(islice(plan.since(moment), 4)):
        assert slot_at(plan, slot) == slot
        assert next(plan.since(slot)) == slot
        just_before = following - timedelta(microseconds=1)
        assert next(plan.since(just_before)) == slot


@given(plan=plans, moment=moments, early=st.floats(0, 1), late=st.floats(0, 1))
@settings(deadline=None, max_examples=200)
def test_replicas_that_are_a_little_early_and_late_agree(
    plan: Plan, moment: datetime, early: float, late: float
) -> None:
    before, slot, after = islice(plan.since(moment), 3)
    assert slot_at(plan, slot - early * min(TOLERANCE, (slot - before) / 4)) == slot
    end = after - min(TOLERANCE, (after - slot) / 4)
    assert slot_at(plan, slot + late * (end - slot - timedelta(microseconds=1))) == slot


@given(expression=expressions, zone=zones, moment=moments)
@settings(deadline=None, max_examples=200)
def test_25_seconds_early_and_40_late_are_the_same_slot(expression: str, zone: ZoneInfo, moment: datetime) -> None:
    plan = make_schedule(expression, zone)
    before, slot, after = islice(plan.since(moment), 3)
    if min(slot - before, after - slot) >= timedelta(minutes=2):
        assert slot_at(plan, slot - timedelta(seconds=25)) == slot
        assert slot_at(plan, slot + timedelta(seconds=40)) == slot


@given(plan=plans, moment=moments, count=st.integers(0, 20))
@settings(deadline=None, max_examples=100)
def test_slots_between_two_moments(plan: Plan, moment: datetime, count: int) -> None:
    slots = list(islice(plan.since(moment), count + 2))
    assert list(slots_between(plan, slots[1], slots[-1])) == slots[1:]
    second = timedelta(microseconds=1)
    assert list(slots_between(plan, slots[0] + second, slots[-1] - second)) == slots[1:-1]


@pytest.mark.parametrize(
    ("day", "expected"),
    [
        ("2025-03-30", "2025-03-30T01:00:00+00:00"),  # 02:30 does not happen: the job runs as the clock jumps
        ("2025-10-26", "2025-10-26T00:30:00+00:00"),  # 02:30 happens twice: the job runs at the first
    ],
)
def test_half_past_two_happens_once_on_the_days_of_change(day: str, expected: str) -> None:
    berlin = ZoneInfo("Europe/Berlin")
    plan = make_schedule("30 2 * * *", berlin)
    start = datetime.fromisoformat(day).replace(tzinfo=berlin)
    slots = list(slots_between(plan, start, start + timedelta(days=1)))
    assert [slot.isoformat() for slot in slots] == [expected]


def test_a_due_time_whose_day_has_an_hour_twice_before_it_has_the_slot_of_its_day() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    plan = make_schedule("30 5 * * *", berlin)
    noon = datetime(2025, 10, 26, 12, tzinfo=berlin)
    assert [slot.isoformat() for slot in islice(plan.since(noon), 2)] == [
        "2025-10-26T04:30:00+00:00",
        "2025-10-27T04:30:00+00:00",
    ]


def test_a_day_begins_where_midnight_does_not_happen_and_at_the_first_of_two() -> None:
    havana = ZoneInfo("America/Havana")
    plan = make_period("day", havana)
    jump = datetime(2025, 3, 9, 12, tzinfo=havana)
    assert next(plan.since(jump)) == datetime(2025, 3, 9, 5, tzinfo=UTC)
    assert next(plan.since(jump)).astimezone(havana).hour == 1
    second_midnight = datetime(2025, 11, 2, 0, 30, fold=1, tzinfo=havana)
    assert next(plan.since(second_midnight)) == datetime(2025, 11, 2, 0, 0, fold=0, tzinfo=havana).astimezone(UTC)


def test_weeks_begin_on_monday_and_months_on_the_first() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    moment = datetime(2026, 11, 29, 14, 30, tzinfo=berlin)
    week, month = make_period("week", berlin), make_period("month", berlin)
    assert next(week.since(moment)).astimezone(berlin).isoformat() == "2026-11-23T00:00:00+01:00"
    assert next(month.since(moment)).astimezone(berlin).isoformat() == "2026-11-01T00:00:00+01:00"


@pytest.mark.parametrize(
    ("nickname", "same_as"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("@DAILY", "0 0 * * *"),
        ("  0   0 * * *  ", "0 0 * * *"),
    ],
)
def test_nicknames_are_expressions(nickname: str, same_as: str) -> None:
    assert make_schedule(nickname, UTC) == make_schedule(same_as, UTC)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("0 0 2 * * *", "seconds"),
        ("@reboot", "nickname"),
        ("@often", "nickname"),
        ("", "0 fields"),
        ("* * * *", "4 fields"),
        ("* * * * * * *", "7 fields"),
        ("61 * * * *", "Bad minute"),
        ("0 25 * * *", "Bad hour"),
        ("0 0 31 2 *", "Bad day-of-month"),
        ("a b c d e", "Bad minute"),
        (5, "is no cron expression"),
        (None, "is no cron expression"),
    ],
)
def test_what_is_no_schedule_is_refused(expression: object, reason: str) -> None:
    with pytest.raises(InvalidTask, match=reason):
        make_schedule(expression, UTC)


@pytest.mark.parametrize(
    "period", ["year", "", "Day", 5, None, timedelta(0), timedelta(seconds=-1), timedelta(days=367), ["day"]]
)
def test_what_is_no_period_is_refused(period: object) -> None:
    with pytest.raises(InvalidTask, match="once_per="):
        make_period(period, UTC)


def test_plans_say_what_they_are_in_words() -> None:
    assert make_period("day", UTC).describe() == "once per day"
    assert make_period(timedelta(minutes=90), UTC).describe() == "once per 1:30:00"
    assert make_schedule("0 2 * * *", UTC).describe() == "At 02:00 every day"
