"""What the tests of the doctor share: the command, and what it found."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections

from django_singlecron.doctor.examine import EXAMINATIONS, examine
from django_singlecron.doctor.report import Report, Verdict
from django_singlecron.models import JobRun
from tests.support_core import database_alias, session

IDS = [each.id for each in EXAMINATIONS]

KEEPALIVES = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 25_000}

# The number that the next row gets, and how many there are.
STATE = "SELECT last_value, is_called, (SELECT count(*) FROM django_singlecron_jobrun) FROM {}_id_seq"


def doctor(*options: str, **more: Any) -> tuple[int, str]:
    """The exit code of the command, and what it printed."""
    out, code = io.StringIO(), 0
    try:
        call_command("singlecron", "doctor", *options, stdout=out, **more)
    except SystemExit as exit_:
        code = int(str(exit_.code))
    return code, out.getvalue()


def as_json(*options: str) -> tuple[int, Any]:
    code, text = doctor("--json", *options)
    return code, json.loads(text)


def look(alias: str = "default") -> Mapping[str, Verdict]:
    """The verdicts of a database by the ids of their examinations."""
    return verdicts_of(examine(alias))


def verdicts_of(report: Report) -> Mapping[str, Verdict]:
    found = {line.id: line.verdict for line in report.lines}
    assert list(found) == IDS
    for verdict in found.values():
        assert bool(verdict.advice) == (verdict.status.value in ("warning", "failed")), verdict
    return found


def not_passed(found: Mapping[str, Verdict]) -> dict[str, str]:
    """What is not passed, but for the keepalives where the tests reach their server by TCP."""
    is_local = connections["default"].settings_dict["HOST"].startswith("/")
    return {
        id_: verdict.status.value
        for id_, verdict in found.items()
        if verdict.status.value != "passed" and (is_local or not id_.startswith("keepalive."))
    }


@pytest.fixture(name="keepalives")
def keepalives_fixture(monkeypatch: pytest.MonkeyPatch, transactional_db: None) -> None:
    """Let new connections to the test database watch over its server, in case they are by TCP."""
    monkeypatch.setitem(connections["default"].settings_dict, "OPTIONS", KEEPALIVES)


def check(verdict: Verdict, status: str, says: str, advises: str = "") -> None:
    assert (verdict.status.value, bool(re.search(says, verdict.text))) == (status, True), verdict
    assert re.search(advises, verdict.advice), verdict


def options(*settings: str) -> dict[str, str]:
    """`OPTIONS` whose sessions begin with these settings."""
    return {"options": " ".join(f"-c {setting}" for setting in settings)}


@contextmanager
def nothing_used(alias: str = "default") -> Iterator[None]:
    """Fail when the block left a row, or took a number of the sequence."""

    def state() -> Any:
        with connections[alias].cursor() as cursor:
            cursor.execute(STATE.format(JobRun._meta.db_table))
            return cursor.fetchone()

    before = state()
    yield
    assert state() == before


@contextmanager
def shadow(*statements: str, name: str = "shadow") -> Iterator[str]:
    """Make a schema by `statements`, and give an alias whose sessions look there first, before all of PostgreSQL's."""
    with session() as owner:
        owner.execute(f"CREATE SCHEMA {name}")
        owner.execute(f"SET search_path = {name}, public")
        try:
            for statement in statements:
                owner.execute(statement)
            with database_alias(name, OPTIONS=options(f"search_path={name},pg_catalog,public")) as alias:
                yield alias
        finally:
            owner.execute(f"DROP SCHEMA {name} CASCADE")
