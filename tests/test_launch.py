"""Which runner a call gets, and where it is refused at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.db import connections
from django.db.backends.dummy.base import DatabaseWrapper as Dummy

from django_singlecron import NotPostgreSQL, RunRefused

from .support_core import database_alias, job, real_database, write, written

pytestmark = real_database


def test_an_alias_that_does_not_exist() -> None:
    with pytest.raises(RunRefused, match='there is no database "elsewhere" in DATABASES'):
        job(write, using="elsewhere")()


def test_a_database_without_advisory_locks(tmp_path: Path) -> None:
    lite = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "lite"), "OPTIONS": {}}
    with (
        database_alias("lite", **lite) as alias,
        pytest.raises(NotPostgreSQL, match=r'its database "lite" is sqlite.*"LOCKING": False'),
    ):
        job(write, using=alias)()
    assert not (tmp_path / "lite").exists()
    assert written() == []


def test_no_database_at_all() -> None:
    connections["none"] = Dummy({**connections["default"].settings_dict}, "none")
    try:
        with pytest.raises(NotPostgreSQL, match="is unknown"):
            job(write, using="none")()
    finally:
        del connections["none"]


def test_the_projects_database_is_the_default(settings: pytest.FixtureRequest) -> None:
    settings.SINGLECRON = {"DATABASE": "jobs"}  # type: ignore[attr-defined]
    with database_alias("jobs"):
        assert job(lambda: write(using="jobs"))()
    assert written() == ["written"]
