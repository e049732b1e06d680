"""Settings and options: whatever is written there is taken, or refused in words."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

from django_singlecron.checks import check_databases, check_locking, check_setting, check_tokens
from django_singlecron.conf import Settings, get_settings
from django_singlecron.exceptions import InvalidSlot, InvalidTask
from django_singlecron.options import MAX_DURATION, MAX_TIMEOUT, TaskOptions, check_options
from django_singlecron.shown import MAX_LENGTH, shown
from django_singlecron.slots import FIRST_YEAR, LAST_YEAR
from tests.properties.values import HUGE, Hostile, Timeless, anything, huge, refusal, scalars
from tests.support_core import job

KEYS = [name.upper() for name in Settings._fields]
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "LOCKING": st.booleans(),
    "DATABASE": st.text(),
    "RECORD_SKIPS": st.booleans(),
    "OUTPUT_LIMIT": st.integers(0),
    "TOKENS": st.lists(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1)),
}

dicts = st.one_of(
    st.dictionaries(st.sampled_from(KEYS), anything),
    st.dictionaries(st.one_of(st.sampled_from(KEYS), scalars), anything, max_size=3),
)
OPTIONS = [*TaskOptions._fields]

# Whole days, among which there are slots, and any; not the first, which in UTC belongs to the year before the first.
days = st.integers(1, (LAST_YEAR - FIRST_YEAR) * 365)
first = datetime.fromisoformat(f"{FIRST_YEAR}-01-01")
moments = st.builds(lambda days, hours: first + timedelta(days, hours=hours), days, st.sampled_from([0, 2]))


@given(value=st.one_of(anything, dicts))
def test_any_setting_is_taken_or_a_system_check_says_what_is_wrong(value: Any) -> None:
    found = list(check_setting(value))
    for error in found:
        assert error.id in ("django_singlecron.E001", "django_singlecron.E002")
        assert str(error)
        assert len(error.msg) < 200
    with override_settings(SINGLECRON=value):
        try:
            settings = get_settings()
        except ImproperlyConfigured:
            assert found
            return
    assert not found
    others = check_databases([job(lambda: None, using=settings.database or "default")], {}, locking=settings.locking)
    assert [error.id for error in others] == ["django_singlecron.E004"]
    assert list(check_locking(settings, debug=False)) == [] or not settings.locking
    assert list(check_tokens(settings.tokens)) == [] or settings.tokens


@given(value=st.fixed_dictionaries({}, optional=VALUES))
def test_values_of_the_right_type_are_taken_and_are_the_settings(value: dict[str, Any]) -> None:
    assert list(check_setting(value)) == []
    with override_settings(SINGLECRON=value):
        settings = get_settings()
    assert settings == Settings(**{key.lower(): given for key, given in value.items()})


@given(option=st.sampled_from(OPTIONS), value=anything)
def test_any_option_is_taken_and_can_be_used_or_refused(option: str, value: Any) -> None:
    base = {} if option in ("once_per", "schedule") else {"schedule": "@daily"}
    given_options = {**base, option: value}
    refused = refusal(InvalidTask, lambda: check_options(**given_options))
    if refused is not None:
        assert f"{option}=" in refused or option == "name"
        assert len(refused) < 400
        return
    plan = check_options(**given_options).plan()
    if plan is not None:
        now = datetime.now(plan.zone)
        assert next(plan.since(now)) <= now


@given(seconds=st.one_of(st.floats(), st.integers(), st.timedeltas(), huge))
def test_durations_are_positive_and_bounded_or_refused(seconds: Any) -> None:
    for option, limit in (("timeout", MAX_TIMEOUT), ("min_interval", MAX_DURATION), ("max_duration", MAX_DURATION)):
        refused = refusal(InvalidTask, lambda option=option: check_options(**{option: seconds}))
        assert refused is None or f"{option}= is a timedelta or a number of seconds" in refused
        if refused is None:
            assert timedelta(0) < getattr(check_options(**{option: seconds}), option) <= limit


@given(
    options=st.one_of(
        st.fixed_dictionaries({"once_per": st.sampled_from(["minute", "hour", "day", "week", "month"])}),
        st.fixed_dictionaries({"once_per": st.timedeltas(timedelta(seconds=1), timedelta(days=366))}),
        st.fixed_dictionaries({"schedule": st.sampled_from(["0 2 * * *", "@yearly", "30 2 29 2 *"])}),
    ),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/Havana", "Pacific/Apia"]),
    moment=st.one_of(st.datetimes(), moments),
)
def test_any_moment_is_a_slot_or_refused_with_the_nearest(options: dict[str, Any], zone: str, moment: datetime) -> None:
    task = job(lambda: None, **options, timezone=zone)
    refused = refusal(InvalidSlot, lambda: task.check_slot(moment))
    if refused is None:
        assert task.check_slot(task.check_slot(moment)) == task.check_slot(moment)
    else:
        assert "The nearest are" in refused or f"years are {FIRST_YEAR} to {LAST_YEAR}" in refused


@given(value=anything)
def test_any_value_can_be_shown(value: Any) -> None:
    assert 0 < len(shown(value)) <= MAX_LENGTH


def test_values_without_a_text_are_refused_all_the_same() -> None:
    # Hypothesis could not show them as examples.
    for value, type_name in ((Hostile(), "Hostile"), (HUGE, "int"), (-HUGE, "int")):
        assert shown(value) == f"<{type_name}, whose repr failed>"
        for setting in ({"LOCKING": value}, {"OUTPUT_LIMIT": value}, {value: 1}):
            found = [error.msg for error in check_setting(setting)]
            assert len(found) == (setting.get("OUTPUT_LIMIT") is not HUGE)
        for option in ("key", "using", "record_skips", "once_per", "schedule", "http", "name"):
            with pytest.raises(InvalidTask, match="whose repr failed"):
                check_options(**{option: value})
        for option in ("timezone", "retry"):
            with pytest.raises(InvalidTask, match=f"{option}=<{type_name}, whose repr failed> is"):
                check_options(schedule="@daily", **{option: value})


def test_a_time_zone_that_cannot_tell_the_time_is_refused() -> None:
    with pytest.raises(InvalidTask, match=r"timezone=.*Timeless object .* is no time zone"):
        check_options(schedule="@daily", timezone=Timeless())
