"""`manage.py singlecron doctor`: the history, and the limits that the longest runs come up against."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.test import override_settings

from tests.support_core import changed, database_alias, real_database, role, trigger
from tests.support_doctor import check, doctor, look, not_passed, nothing_used, options, shadow
from tests.support_watch import AddTask, add_task_fixture, now, record

__all__ = ["add_task_fixture"]

pytestmark = real_database

TABLE = "django_singlecron_jobrun"
ALL = f"GRANT SELECT, INSERT, UPDATE, DELETE ON {TABLE}, django_singlecron_jobwatch TO clerk"
MIGRATIONS = "GRANT SELECT ON django_migrations TO clerk"
SEQUENCE = f"GRANT USAGE ON SEQUENCE {TABLE}_id_seq TO clerk"


class TestMigrated:
    def test_one_that_is_missing(self) -> None:
        undo = "UPDATE django_migrations SET app = 'django_singlecron' WHERE app = 'elsewhere'"
        with changed("UPDATE django_migrations SET app = 'elsewhere' WHERE name = '0003_watch'", undo):
            check(look()["history.migrated"], "failed", "0003_watch not applied", "--database default$")

    def test_tables_that_are_not_as_their_migrations_leave_them(self) -> None:
        with shadow(f"CREATE TABLE shadow.{TABLE} (id bigint)") as alias:
            check(look(alias)["history.migrated"], "failed", 'column "job" does not exist', "search_path")

    @override_settings(MIGRATION_MODULES={"django_singlecron": None})
    def test_a_project_that_makes_its_tables_otherwise(self) -> None:
        check(look()["history.migrated"], "passed", "0 migrations")

    def test_a_role_that_may_not_see_what_is_applied(self) -> None:
        with role("clerk", ALL, SEQUENCE) as alias:
            found = look(alias)
        check(found["history.migrated"], "warning", "may not read which migrations", "GRANT SELECT")
        assert found["history.slots"].status.value == "passed"

    def test_a_role_that_may_not_see_the_history(self) -> None:
        with role("clerk", MIGRATIONS) as alias:
            check(look(alias)["history.migrated"], "failed", f"permission denied for table {TABLE}")

    def test_a_role_that_may_do_its_work_and_no_more(self) -> None:
        with role("clerk", ALL, SEQUENCE, MIGRATIONS) as alias:
            assert not_passed(look(alias)) == {}


class TestDatabase:
    @pytest.mark.parametrize(
        "statement",
        [f"CREATE VIEW shadow.{TABLE} AS SELECT * FROM public.{TABLE}"],
    )
    def test_no_table_of_the_database(self, statement: str) -> None:
        with shadow(statement) as alias:
            check(look(alias)["history.database"], "failed", "a view, a foreign or a temporary table", "one database")

    def test_a_table_that_a_crash_empties(self) -> None:
        with shadow(f"CREATE UNLOGGED TABLE shadow.{TABLE} (LIKE public.{TABLE} INCLUDING ALL)") as alias:
            check(look(alias)["history.database"], "warning", "unlogged", "SET LOGGED")


class TestWritable:
    def test_nothing_is_left(self) -> None:
        record()
        with nothing_used():
            assert doctor()[0] == 0

    def test_a_role_that_may_only_read(self) -> None:
        may_read = f"GRANT SELECT ON {TABLE}, django_singlecron_jobwatch TO clerk"
        with role("clerk", may_read, MIGRATIONS) as alias, nothing_used():
            code, out = doctor("--database", alias)
        assert code == 1
        assert (
            f"\nfailed    history.writable   The history cannot be written: permission denied for table {TABLE}.\n"
            in out
        )
        assert (
            "\nnot made  history.slots      It needs history.writable, which is not proved: mend that first.\n" in out
        )

    def test_a_table_that_swallows_rows(self) -> None:
        with trigger("BEFORE INSERT", "RETURN NULL;"):
            check(look()["history.writable"], "failed", "swallows what is written", "rule")

    def test_a_role_that_may_not_use_the_sequence(self) -> None:
        with role("clerk", ALL, MIGRATIONS) as alias:
            check(look(alias)["history.writable"], "warning", "runs have no tokens", "^GRANT USAGE ON SEQUENCE django")

    def test_a_sequence_that_a_restore_left_behind(self) -> None:
        newest = record().pk
        with changed(f"SELECT setval('{TABLE}_id_seq', 1, false)", f"SELECT setval('{TABLE}_id_seq', {newest})"):
            check(look()["history.writable"], "failed", f"is at 0, behind its newest row, {newest}", r"setval\(")

    def test_a_sequence_that_is_missing(self) -> None:
        with changed(
            f"ALTER SEQUENCE {TABLE}_id_seq RENAME TO other", f"ALTER SEQUENCE other RENAME TO {TABLE}_id_seq"
        ):
            check(look()["history.writable"], "failed", "sequence .* is missing", "Restore")

    def test_the_index_of_the_slots_is_missing(self) -> None:
        statement = f"CREATE TABLE shadow.{TABLE} (LIKE public.{TABLE} INCLUDING DEFAULTS)"
        with shadow(statement) as alias, nothing_used():
            verdict = look(alias)["history.slots"]
        check(verdict, "failed", "two successes of one slot", "CREATE UNIQUE INDEX singlecron_slot")


class TestTimeouts:
    @pytest.fixture(autouse=True)
    def _runs(self, transactional_db: None) -> None:
        """Of four jobs, the longest runs took a minute, and 40, 30 and 20 seconds."""
        for seconds, job in ((60, "a"), (40, "b"), (30, "c"), (20, "d"), (5, "d")):
            began = now()
            record(job, started_at=began, finished_at=began + timedelta(seconds=seconds))
        record("e", status="running")
        record("f", status="skipped")

    def timeouts(self, *settings: str) -> tuple[str, str]:
        with database_alias("limited", OPTIONS=options(*settings)):
            verdict = look("limited")["timeouts"]
        return verdict.status.value, verdict.text

    def test_none(self) -> None:
        verdict = look()["timeouts"]
        check(verdict, "passed", r"\(none is set\)")
        assert verdict.figures == {"limits": {}, "longest_runs": {"a": 60.0, "b": 40.0, "c": 30.0}}

    def test_wide_ones(self) -> None:
        settings = ("statement_timeout=61s", "lock_timeout=1s", "idle_session_timeout=1s")
        status, text = self.timeouts(*settings, "idle_in_transaction_session_timeout=1s")
        assert status == "passed"
        for name, seconds in (("statement_timeout", 61), ("lock_timeout", 1), ("idle_session_timeout", 1)):
            assert f"{name} = {seconds} s of OPTIONS in DATABASES" in text

    def test_a_statement_may_take_less_than_runs_took(self) -> None:
        status, text = self.timeouts("statement_timeout=15s")
        assert status == "warning"
        assert text == (
            "statement_timeout = 15 s of OPTIONS in DATABASES ends a single statement, and runs have taken longer: "
            '"a" (60 s), "b" (40 s), "c" (30 s) and 1 more.'
        )

    def test_of_the_role_or_the_database(self) -> None:
        name = connection.settings_dict["NAME"]
        with changed(
            f'ALTER DATABASE "{name}" SET statement_timeout = 1000', f'ALTER DATABASE "{name}" RESET statement_timeout'
        ):
            check(
                look()["timeouts"],
                "warning",
                "statement_timeout = 1 s of the database ends",
                r"Raise it for .*ALTER ROLE",
            )

    @pytest.mark.parametrize("is_of_session", [False, True])
    def test_of_what_overrules_the_role(self, is_of_session: bool) -> None:
        def limit(connection: BaseDatabaseWrapper, **_: Any) -> None:
            with connection.cursor() as cursor:
                cursor.execute("SET statement_timeout = 1000")

        if is_of_session:
            connection_created.connect(limit)
        try:
            with database_alias("limited", OPTIONS=options(*([] if is_of_session else ["statement_timeout=1000"]))):
                verdict = look("limited")["timeouts"]
        finally:
            connection_created.disconnect(limit)
        whose = "of the session" if is_of_session else "of OPTIONS in DATABASES"
        check(verdict, "warning", f"statement_timeout = 1 s {whose} ends", "Raise it where it is set, or make the jobs")

    def test_a_transaction_may_take_less_than_runs_took(self) -> None:
        needs_transaction_timeout()
        status, text = self.timeouts("transaction_timeout=50s")
        assert (status, text.partition(" ends each run ")[2]) == (
            "failed",
            'that takes longer, and there were: "a" (60 s).',
        )
        status, text = self.timeouts("transaction_timeout=70s")
        assert (status, text.partition(" ends a run")[2]) == (
            "warning",
            ', and there were some nearly as long: "a" (60 s).',
        )

    def test_a_transaction_may_take_less_than_its_job(self, add_task: AddTask) -> None:
        needs_transaction_timeout()
        add_task("slow", timeout=timedelta(hours=1), using="limited")
        add_task("slow elsewhere", timeout=timedelta(hours=1))
        add_task("quick", timeout=timedelta(seconds=1), using="limited")
        add_task("free", using="limited")
        status, text = self.timeouts("transaction_timeout=100s")
        assert (status, text.partition(" ends a run ")[2]) == ("warning", 'before its own timeout= would: "slow".')
        assert self.timeouts("transaction_timeout=2h")[0] == "passed"

    def test_a_guard_that_does_not_take_effect(self) -> None:
        stub = """
        CREATE FUNCTION set_config(name text, value text, local boolean) RETURNS text LANGUAGE plpgsql AS $$ BEGIN
            RETURN CASE WHEN name NOT LIKE 'idle%%' THEN pg_catalog.set_config(name, value, local) END;
        END $$
        """
        setting = "idle_in_transaction_session_timeout = '30s'"
        name = connection.settings_dict["NAME"]
        undo = f'ALTER DATABASE "{name}" RESET idle_in_transaction_session_timeout'
        with shadow(stub) as alias, changed(f'ALTER DATABASE "{name}" SET {setting}', undo):
            check(look(alias)["timeouts"], "failed", "could not switch idle_in_transaction_session_timeout = 30 s")


def needs_transaction_timeout() -> None:
    connection.ensure_connection()
    connection.pg_version >= 170000 or pytest.skip("transaction_timeout came with PostgreSQL 17")
