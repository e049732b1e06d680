"""The ledger: each expected slot ends as one of a few things, whatever the history holds."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from django_singlecron import ledger
from django_singlecron.ledger import Due, Entry, Expectation, Fate, Found
from django_singlecron.models import JobRun
from django_singlecron.slots import make_schedule
from tests.support_watch import DAY, HOUR, daily, minute, record
from tests.support_watch import now as database_now

UTC = timezone.utc
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
EXPRESSIONS = ["* * * * *", "*/15 * * * *", "30 2 * * *", "0 9,17 * * 1-5", "0 0 1 * *", "17 * * * *"]
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]

moments = st.timedeltas(timedelta(days=70), timedelta(days=4 * 366)).map(lambda later: BEGIN + later)
graces = st.none() | st.timedeltas(timedelta(seconds=1), timedelta(days=3))


def expected(
    expression: str = "30 2 * * *", grace: timedelta | None = None, since: datetime = BEGIN, zone: str = "UTC"
) -> Expectation:
    return Expectation("job", make_schedule(expression, ZoneInfo(zone)), grace, since)


# When a slot is late, and when it is missed


def test_grace_is_an_hour_or_half_the_period() -> None:
    slot = datetime(2026, 3, 1, 2, 30, tzinfo=UTC)
    assert expected().newest(slot) == Due(slot, slot + timedelta(seconds=30), slot + HOUR)
    assert expected("*/15 * * * *").newest(slot) == Due(
        slot, slot + timedelta(seconds=30), slot + timedelta(minutes=7.5)
    )
    assert expected("* * * * *").newest(slot) == Due(slot, slot + timedelta(seconds=15), slot + timedelta(seconds=30))
    assert expected(grace=timedelta(minutes=5)).newest(slot) == Due(
        slot, slot + timedelta(seconds=30), slot + timedelta(minutes=5)
    )


@given(st.sampled_from(EXPRESSIONS), st.sampled_from(ZONES), moments, graces)
def test_the_slots_that_are_judged(expression: str, zone: str, now: datetime, grace: timedelta | None) -> None:
    one = expected(expression, grace, zone=zone)
    newest, over = one.newest(now), one.newest_over(now)
    assert newest is not None
    assert over is not None
    assert over.missed_from <= now
    assert over.slot <= newest.slot <= now
    # Between the two lie only slots within their grace.
    assert all(due.missed_from > now for due in one.dues(over.slot + timedelta(seconds=1), min(now, over.slot + DAY)))
    assert [*one.dues(newest.slot, now)] == [newest]


@given(st.sampled_from(EXPRESSIONS), moments, st.timedeltas(timedelta(0), timedelta(days=2)))
def test_nothing_is_expected_before_a_job_is_known(expression: str, since: datetime, later: timedelta) -> None:
    one, now = expected(expression, since=since), since + later
    dues = [*one.dues(since - DAY, now)]
    assert all(since <= due.slot <= now for due in dues)
    assert one.newest(now) == (dues[-1] if dues else None)
    over = one.newest_over(now)
    assert over is None or over in dues


# What becomes of a slot


@given(
    moments,
    st.sampled_from(["", "succeeded", "failed", "lost", "running"]),
    st.none() | st.sampled_from(JobRun.SkipReason.values),
    st.booleans(),
    st.booleans(),
    st.timedeltas(timedelta(0), timedelta(days=2)),
)
def test_each_slot_ends_as_one_thing(
    slot: datetime, status: str, skip_reason: str | None, busy: bool, killed: bool, later: timedelta
) -> None:
    due = Due(slot, slot + timedelta(seconds=30), slot + HOUR)
    found = Found(7 if status else None, status, int(status == "succeeded"), skip_reason, 6 if busy else None)
    lost = ({7} if status == "running" else {6}) if killed else set()
    fate = ledger.settle(due, found, slot + later, lost).fate
    if status:
        assert fate.value == ("lost" if killed and status == "running" else status)
    elif skip_reason is not None or (busy and not killed):
        assert fate is Fate.SKIPPED
    else:
        assert fate is (Fate.DUE if later < HOUR else Fate.MISSED)


def test_two_successes_of_a_slot_are_told() -> None:
    due = Due(BEGIN, BEGIN, BEGIN)
    assert ledger.settle(due, Found(8, "succeeded", 2), BEGIN) == Entry(due, Fate.REPEATED, 8)


# From the history


@pytest.mark.django_db
def test_the_ledger_of_several_jobs_takes_one_query() -> None:
    now = database_now()
    last = minute(2 * HOUR)
    slots = [last - days * DAY for days in range(8)]
    expectations = [
        Expectation(job, make_schedule(daily(last), UTC), None, slots[-1]) for job in ("job", "idle", "new")
    ]
    record(status="failed", slot=slots[1])
    succeeded = record(status="succeeded", slot=slots[1])
    record(status="failed", slot=slots[1])
    record(status="skipped", slot=slots[1], skip_reason="already_ran")
    failed = record(status="failed", slot=slots[2])
    lost = record(status="lost", slot=slots[3])
    running = record(status="running", slot=slots[4])
    killed = record(status="running", slot=slots[5])
    record(status="skipped", slot=slots[6], skip_reason="locked")
    record(status="skipped", slot=slots[6], skip_reason="too_soon")
    # Its attempts that the run of another slot kept from running are not recorded.
    record(job="idle", status="succeeded", started_at=slots[1] - HOUR, finished_at=slots[1] + HOUR)
    with CaptureQueriesContext(
        connection,
    ) as queries:
        ledgers = ledger.read("default", expectations, now - 30 * DAY, now, {killed.pk})
    assert len(queries) == 1
    assert [(entry.fate, entry.run_id, entry.reason) for entry in reversed(ledgers["job"])] == [
        (Fate.MISSED, None, ""),
        (Fate.SUCCEEDED, succeeded.pk, ""),
        (Fate.FAILED, failed.pk, ""),
        (Fate.LOST, lost.pk, ""),
        (Fate.RUNNING, running.pk, ""),
        (Fate.LOST, killed.pk, ""),
        (Fate.SKIPPED, None, "too_soon"),
        (Fate.MISSED, None, ""),
    ]
    assert [entry.fate for entry in reversed(ledgers["idle"])] == [Fate.MISSED, Fate.SKIPPED] + 6 * [Fate.MISSED]
    assert [entry.due.slot for entry in ledgers["new"]] == slots[::-1]


@pytest.mark.django_db
def test_without_slots_nothing_is_asked() -> None:
    with CaptureQueriesContext(connection) as queries:
        assert ledger.read("default", [expected(since=datetime(2100, 1, 1, tzinfo=UTC))], BEGIN, BEGIN) == {"job": []}
    assert len(queries) == 0


@pytest.mark.django_db
def test_successes_that_the_index_should_have_kept_out_are_found() -> None:
    with connection.cursor() as cursor:
        cursor.execute("DROP INDEX singlecron_slot")
    slot = minute(2 * HOUR)
    record(slot=slot)
    second = record(slot=slot)
    assert ledger.find("default", [("job", slot)]) == {("job", slot): Found(second.pk, "succeeded", 2)}
