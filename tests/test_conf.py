"""The setting SINGLECRON: typed, lazy, and plain about what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_singlecron.conf import Settings, find_problems, get_settings


def test_without_the_setting_the_defaults_hold() -> None:
    assert get_settings() == Settings(locking=True, database="default", record_skips=True, output_limit=65_536)


def test_an_overridden_setting_is_read_again_and_forgotten_after() -> None:
    with override_settings(SINGLECRON={"DATABASE": "jobs", "OUTPUT_LIMIT": 0}):
        assert get_settings() == Settings(database="jobs", output_limit=0)
    assert get_settings() == Settings()


def test_another_setting_leaves_it_alone() -> None:
    before = get_settings()
    with override_settings(TIME_ZONE="Europe/Berlin"):
        assert get_settings() is before


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "SINGLECRON is a NoneType, not a dict"),
        ([("DATABASE", "default")], "SINGLECRON is a list"),
        ({"DATABSE": "default"}, "unknown key: 'DATABSE'. It may hold: LOCKING, DATABASE"),
        ({"locking": False}, "unknown key: 'locking'"),
        ({1: 2}, "unknown key: 1"),
        ({"LOCKING": 0}, "SINGLECRON['LOCKING'] is 0, a int. It must be of type bool"),
        ({"OUTPUT_LIMIT": True}, "must be of type int"),
        ({"OUTPUT_LIMIT": -1}, "0 or more"),
        ({"DATABASE": None}, "must be of type str"),
        ({"DATABASE": {"PASSWORD": "hunter2"}}, "SINGLECRON['DATABASE'] is a dict. It must be of type str"),
        ({"TOKENS": "secret"}, "SINGLECRON['TOKENS'] is no list of tokens. Each is text of printable ASCII"),
        ({"TOKENS": ["good", "two words"]}, "is no list of tokens"),
        ({"TOKENS": [""]}, "is no list of tokens"),
        ({"TOKENS": [1]}, "is no list of tokens"),
    ],
)
def test_what_is_wrong_is_said_when_it_is_read(value: Any, message: str) -> None:
    with override_settings(SINGLECRON=value), pytest.raises(ImproperlyConfigured) as wrong:
        get_settings()
    assert message in str(wrong.value)
    assert len(list(find_problems(value))) == 1
