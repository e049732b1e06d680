"""What keeps a run from starting: one clear error for each cause, and nothing ran."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.db import DatabaseError, OperationalError, connection, connections

from django_singlecron import (
    DatabaseUnavailable,
    HistoryNotMigrated,
    PermissionRefused,
    ReadOnlyDatabase,
    RunRefused,
)
from django_singlecron.database import reconnecting, refusal, sqlstate, try_again
from django_singlecron.models import JobRun

from .support_core import (
    TAKES_LOCK,
    before_statement,
    changed,
    database_alias,
    is_free,
    job,
    real_database,
    role,
    session,
    trigger,
    write,
    written,
)

pytestmark = real_database


def refused(kind: type[RunRefused], match: str, using: str = "default") -> None:
    ran: list[int] = []
    with pytest.raises(kind, match=match) as error:
        job(lambda: ran.append(1), using=using)()
    assert str(error.value).startswith('The job "job" did not run: ')
    assert "\n" not in str(error.value)
    assert error.value.__cause__ is not None
    assert ran == []


def test_a_history_that_is_not_migrated() -> None:
    with changed(
        "ALTER TABLE django_singlecron_jobrun RENAME TO away", "ALTER TABLE away RENAME TO django_singlecron_jobrun"
    ):
        refused(HistoryNotMigrated, "manage.py migrate django_singlecron --database default")


def test_a_history_of_an_older_version() -> None:
    with changed(
        "ALTER TABLE django_singlecron_jobrun RENAME trigger TO away",
        "ALTER TABLE django_singlecron_jobrun RENAME away TO trigger",
    ):
        refused(HistoryNotMigrated, "is not migrated")


def test_a_database_that_takes_no_writes() -> None:
    with database_alias("readonly", OPTIONS={"options": "-c default_transaction_read_only=on"}) as alias:
        refused(ReadOnlyDatabase, "a standby, or read-only mode", alias)
    assert JobRun.objects.count() == 0


def test_a_role_that_may_not_write() -> None:
    with role("reader", "GRANT SELECT ON django_singlecron_jobrun TO reader") as alias:
        refused(PermissionRefused, r"permission denied.*Grant it SELECT, INSERT, UPDATE, DELETE", alias)
    assert JobRun.objects.count() == 0


def test_a_role_that_may_not_draw_tokens_runs_without_them() -> None:
    # The identity column needs no grant on its sequence; the token, drawn from the same, does.
    with role("writer", "GRANT SELECT, INSERT, UPDATE ON django_singlecron_jobrun TO writer") as alias:
        assert job(lambda: None, using=alias)().ran
    run = JobRun.objects.get()
    assert (run.status, run.token) == ("succeeded", None)


def test_a_connection_that_goes_before_the_lock() -> None:
    def cut() -> None:
        with session() as other:
            other.execute("SELECT pg_terminate_backend(%s)", backend)

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        backend = cursor.fetchone()[0]
    with before_statement(TAKES_LOCK, cut):
        refused(DatabaseUnavailable, "cannot be reached or used")
    assert (JobRun.objects.get().status, JobRun.objects.get().error_class) == (
        "failed",
        "django_singlecron.exceptions.DatabaseUnavailable",
    )


@pytest.mark.parametrize(
    "settings",
    [{"HOST": "127.0.0.1", "PORT": "1"}, {"NAME": "no_such_database"}, {"USER": "nobody_here"}],
    ids=["no server", "no database", "no role"],
)
def test_a_database_that_cannot_be_reached(settings: dict[str, Any]) -> None:
    with database_alias("down", **settings) as alias:
        refused(DatabaseUnavailable, "cannot be reached or used", alias)


def test_a_history_that_is_locked() -> None:
    with session() as other, database_alias("patient", OPTIONS={"options": "-c lock_timeout=50"}) as alias:
        other.connection.set_autocommit(False)
        other.execute("LOCK TABLE django_singlecron_jobrun IN ACCESS EXCLUSIVE MODE")
        refused(DatabaseUnavailable, "lock timeout", alias)
        other.connection.rollback()
    assert JobRun.objects.count() == 0


def test_a_role_whose_statements_time_out() -> None:
    with (
        trigger("BEFORE INSERT", "PERFORM pg_sleep(5); RETURN new;"),
        database_alias("hasty", OPTIONS={"options": "-c statement_timeout=50"}) as alias,
    ):
        refused(DatabaseUnavailable, "statement timeout", alias)


def test_any_other_reason_is_passed_on() -> None:
    with trigger("BEFORE INSERT", "RAISE 'an auditor forbids it';"):
        refused(RunRefused, "refused the attempt: an auditor forbids it")


def test_nothing_is_left_after_a_refusal() -> None:
    with trigger("BEFORE INSERT", "RAISE 'no';"), pytest.raises(RunRefused):
        job(write)()
    assert is_free()
    assert job(write)()
    assert written() == ["written"]


def kept(alias: str) -> Any:
    """Open an alias's connection and let it be kept over runs, as a scheduler's thread does."""
    wrapper = connections[alias]
    wrapper.ensure_connection()
    return wrapper


def terminate(alias: str) -> None:
    pid = connections[alias].connection.info.backend_pid
    with session() as other:
        assert other.one("SELECT pg_terminate_backend(%s, 5000)", pid)


def test_a_kept_connection_that_died_is_replaced() -> None:
    with database_alias("kept", CONN_MAX_AGE=None) as alias:
        kept(alias)
        terminate(alias)
        assert job(lambda: write(using=alias), using=alias)()
    assert written() == ["written"]


def test_a_kept_connection_that_died_with_its_server_is_told() -> None:
    with database_alias("kept", CONN_MAX_AGE=None) as alias:
        wrapper = kept(alias)
        terminate(alias)
        wrapper.settings_dict["HOST"] = "127.0.0.1"
        wrapper.settings_dict["PORT"] = "1"
        refused(DatabaseUnavailable, "cannot be reached", alias)


def test_an_error_on_a_connection_that_works_is_not_tried_again() -> None:
    calls: list[int] = []

    def operation() -> None:
        calls.append(1)
        with connection.cursor() as cursor:
            cursor.execute("DO $$ BEGIN RAISE 'no' USING ERRCODE = 'query_canceled'; END $$")

    with pytest.raises(OperationalError):
        reconnecting(connection, operation)
    assert calls == [1]


def test_a_database_that_is_not_postgresql_is_asked_again_in_its_own_terms(tmp_path: Path) -> None:
    calls: list[int] = []

    class Conflict(Exception):
        sqlstate = "40001"

    def operation() -> str:
        calls.append(1)
        if len(calls) < 5:
            raise OperationalError("again") from Conflict()
        return "done"

    lite = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "lite"), "OPTIONS": {}}
    with database_alias("lite", **lite) as alias:
        assert try_again(connections[alias], operation) == "done"
    assert len(calls) == 5


def test_codes_of_both_drivers_are_read() -> None:
    class Psycopg2(Exception):
        pgcode = "42P01"

    error = DatabaseError("no table")
    assert sqlstate(error) is None
    error.__cause__ = Psycopg2()
    assert sqlstate(error) == "42P01"
    assert isinstance(refusal(error, "job", "default"), HistoryNotMigrated)
