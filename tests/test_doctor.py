"""`manage.py singlecron doctor` and what it proves of the lock and of the connection."""

from __future__ import annotations

import io
import re
import socket
import time
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection, connections
from django.db.backends.signals import connection_created
from django.test import override_settings

from django_singlecron import registry
from django_singlecron.doctor import examine as examining
from django_singlecron.doctor import locks, server, stack
from django_singlecron.doctor.report import Verdict
from django_singlecron.doctor.stack import NoAnswer, Session, Stack
from tests.support_core import changed, database_alias, real_database, session
from tests.support_doctor import (
    IDS,
    as_json,
    check,
    doctor,
    keepalives_fixture,
    look,
    not_passed,
    nothing_used,
    options,
    shadow,
)
from tests.support_watch import AddTask, add_task_fixture

__all__ = ["add_task_fixture", "keepalives_fixture"]

pytestmark = real_database

STUB = """
CREATE FUNCTION {name}({arguments}) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RETURN {body}; END $$
"""
LOCK, PROBE = "pg_try_advisory_xact_lock", "pg_try_advisory_xact_lock_shared"
ALWAYS = [
    STUB.format(name=name, arguments=arguments, body="true")
    for name in (LOCK, PROBE)
    for arguments in ("bigint", "integer, integer")
]


@pytest.mark.usefixtures("keepalives")
class TestHealthy:
    def test_everything_is_passed_in_time_and_nothing_is_left(self, add_task: AddTask) -> None:
        add_task(key=4242)
        add_task("short", key="hashtext")
        with nothing_used():
            began = time.monotonic()
            code, out = doctor()
            seconds = time.monotonic() - began
        assert code == 0, out
        # 0.2 s where nothing else runs.
        assert seconds < 5
        heading, *lines, summary = out.splitlines()
        assert heading == 'Database "default"'
        assert [line.split()[:2] for line in lines] == [["passed", id_] for id_ in IDS]
        assert re.fullmatch(r"PASSED: 20 passed, 0 warned, 0 failed or not made, in \d+\.\d s", summary)
        assert not connection.in_atomic_block

    def test_json(self, add_task: AddTask) -> None:
        add_task(key=4242)
        code, found = as_json("--database", "default")
        assert (code, found["status"]) == (0, "passed")
        (report,) = found["databases"]
        assert (report["database"], report["status"]) == ("default", "passed")
        assert report["seconds"] > 0
        assert [each["id"] for each in report["examinations"]] == IDS
        by_id = {each["id"]: each for each in report["examinations"]}
        assert by_id["lock.excludes"] == {
            "id": "lock.excludes",
            "status": "passed",
            "text": "A second connection is refused while the first holds.",
            "advice": "",
            "figures": {"keys": ["hashtextextended", "integer", "pair"]},
        }
        assert by_id["pooler"]["figures"] == {"mode": "direct"}
        assert by_id["tasks"]["figures"] == {"tasks": 1}
        assert by_id["lock.killed"]["figures"]["by"] == "pg_terminate_backend"

    def test_each_database_that_has_jobs(self, add_task: AddTask) -> None:
        with database_alias("other"):
            add_task(using="other")
            assert [report["database"] for report in as_json()[1]["databases"]] == ["default", "other"]

    def test_while_others_do_it_too(self, add_task: AddTask) -> None:
        with session() as other:
            other.execute("BEGIN; SELECT pg_advisory_xact_lock(1)")
            assert doctor()[0] == 0


class TestCommand:
    @pytest.fixture(autouse=True)
    def _warns(self, monkeypatch: pytest.MonkeyPatch, keepalives: None) -> None:
        """A database whose clock is behind."""
        monkeypatch.setattr(server, "time", SimpleNamespace(time=lambda: time.time() + 60, monotonic=time.monotonic))

    def test_a_warning_does_not_stop_a_deploy_unless_it_is_asked_to(self) -> None:
        code, out = doctor()
        assert code == 0
        assert "\nwarning   clock              This replica's clock is 60.0 s ahead of the database's." in out
        assert "\n                             To do: Let both hosts keep their time by NTP.\n" in out
        assert out.splitlines()[-1].startswith("WARNING: 19 passed, 1 warned, ")
        assert as_json("--fail-level", "WARNING")[0] == 1
        assert as_json("--fail-level", "FAILED")[0] == 0

    def test_a_warning_that_is_accepted_does_not_count(self) -> None:
        code, found = as_json("--fail-level", "WARNING", "--accept", "pooler", "--accept", "clock")
        assert (code, found["status"]) == (0, "passed")
        assert '"status": "warning"' in doctor("--json", "--accept", "clock")[1]

    def test_what_it_does_not_know_is_refused(self) -> None:
        with pytest.raises(
            CommandError, match=r'There is no examination "dance"\. There are: locking, tasks'
        ) as refused:
            doctor("--accept", "clock", "--accept", "dance")
        assert refused.value.returncode == 2
        with pytest.raises(CommandError, match="argument --fail-level: invalid choice"):
            doctor("--fail-level", "NEVER")

    def test_on_a_terminal_lines_are_broken_and_coloured(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Terminal(io.StringIO):
            def isatty(self) -> bool:
                return True

        monkeypatch.setenv("COLUMNS", "40")
        out = Terminal()
        call_command("singlecron", "doctor", stdout=out, no_color=True)
        assert max(map(len, out.getvalue().splitlines())) == 80
        out = Terminal()
        call_command("singlecron", "doctor", stdout=out, force_color=True)
        assert re.search("\x1b\\[[0-9;]*mwarning *\x1b\\[0m  clock", out.getvalue())


class TestEachIsMadeByItself:
    def test_one_that_breaks_down_hides_no_other(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def crash(stack: Stack) -> Verdict:
            stack.first.begin()
            raise ZeroDivisionError("by\nzero.")

        made = [each._replace(make=crash) if each.id == "primary" else each for each in examining.EXAMINATIONS]
        monkeypatch.setattr(examining, "EXAMINATIONS", made)
        found = look()
        check(found["primary"], "failed", r"broke down: ZeroDivisionError: by zero\.$", "Report it")
        assert not_passed(found) == {"primary": "failed"}

    def test_what_needs_one_that_failed_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(locks, "excludes", None)
        made = [each._replace(make=None) if each.id == "pooler" else each for each in examining.EXAMINATIONS]
        monkeypatch.setattr(examining, "EXAMINATIONS", made)
        found = look()
        check(found["lock.excludes"], "not made", "It needs pooler, which is not proved: mend that first")
        check(found["lock.killed"], "not made", "It needs lock.excludes, which is not proved")
        assert found["clock"].status.value == "passed"

    def test_no_longer_than_there_is_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(examining, "TOTAL_SECONDS", -1)
        assert doctor()[0] == 1
        check(look()["locking"], "not made", "were over")


class TestSettings:
    @override_settings(SINGLECRON={"LOCKING": False})
    def test_locking_is_off(self) -> None:
        check(look()["locking"], "failed", "LOCKING.* is False", "Remove LOCKING")

    def test_a_module_of_tasks_cannot_be_imported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        broken = registry.ImportFailure("billing.cron", ImportError("no module"))
        monkeypatch.setattr(registry, "autodiscover", lambda: [broken])
        check(look()["tasks"], "failed", r"billing\.cron \(no module\)", "Mend it")

    def test_it_is_set_up_wrong(self) -> None:
        with database_alias("nameless", NAME=""):
            check(look("nameless")["connection"], "failed", "It cannot be reached: .* supply the NAME", "DATABASES")

    def test_there_is_no_such_database(self) -> None:
        code, out = doctor("--database", "absent")
        assert code == 1
        assert '\nfailed    connection         There is no database "absent" in DATABASES.\n' in out
        assert out.count("\nnot made  ") == len(IDS) - 3

    def test_it_is_not_postgresql(self) -> None:
        with database_alias("lite", ENGINE="django.db.backends.sqlite3", NAME=":memory:"):
            check(look("lite")["connection"], "failed", "It is sqlite, not PostgreSQL")

    def test_it_does_not_commit(self) -> None:
        with database_alias("manual", AUTOCOMMIT=False):
            check(look("manual")["connection"], "failed", "AUTOCOMMIT off")

    def test_connections_are_its_own_even_where_the_process_has_a_pool(self) -> None:
        settings = {"pool": {"max_size": 1}, "connect_timeout": 3, **options("statement_timeout=61000")}
        with database_alias("pooled", OPTIONS=settings, CONN_MAX_AGE=60):
            wrapper = stack._fresh("pooled")
            assert wrapper.settings_dict["OPTIONS"]["connect_timeout"] == 3
            assert connections["pooled"].settings_dict["OPTIONS"] == settings
            assert "statement_timeout = 61 s of OPTIONS in DATABASES" in look("pooled")["timeouts"].text


class TestConnection:
    def test_the_server_is_down(self) -> None:
        with database_alias("down", HOST="/nowhere"):
            code, out = doctor("--database", "down")
        assert code == 1
        assert re.search(r"\nfailed    connection         It cannot be reached: .*/nowhere", out)
        assert out.count("\nnot made  ") == len(IDS) - 3

    def test_a_server_that_does_not_answer_is_given_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            with database_alias("silent", HOST="127.0.0.1", PORT=str(port), OPTIONS={"connect_timeout": 2}):
                check(look("silent")["connection"], "failed", "It cannot be reached: .*time")
                # The driver waits longer than the doctor: how briefly it can wait differs.
                monkeypatch.setattr(stack, "CONNECT_SECONDS", 2)
                monkeypatch.setattr(stack, "ANSWER_SECONDS", -1.5)
                check(look("silent")["connection"], "failed", r"It cannot be reached: no answer within 0\.5 s")

    def test_one_that_answers_no_more_while_it_is_set_up_is_given_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def wait(connection: Any, **kwargs: Any) -> None:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_sleep(60)")

        monkeypatch.setattr(stack, "CONNECT_SECONDS", 0)
        monkeypatch.setattr(stack, "ANSWER_SECONDS", 0.5)
        connection_created.connect(wait)
        try:
            check(look()["connection"], "failed", r"no answer within 0\.5 s")
        finally:
            connection_created.disconnect(wait)
            end_sleepers()

    def test_a_statement_that_is_not_answered_is_given_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(stack, "ANSWER_SECONDS", 0.5)
        asked = Session("default")
        asked.open()
        try:
            with pytest.raises(NoAnswer, match=r"no answer within 0\.5 s"):
                asked.row("SELECT pg_sleep(60)")
        finally:
            asked.close()
            end_sleepers()

    @pytest.mark.parametrize("table", ["django_singlecron_jobrun", "django_migrations"])
    def test_reads_do_not_wait_for_a_migration(self, table: str) -> None:
        with session() as migration:
            migration.execute(f"BEGIN; LOCK TABLE {table}")
            found = look()
        check(found["history.migrated"], "failed", "lock timeout", "has the table locked")
        assert found["lock.transactions"].status.value == "passed"

    def test_clocks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(server, "time", SimpleNamespace(time=lambda: time.time() - 7200, monotonic=time.monotonic))
        verdict = look()["clock"]
        check(verdict, "warning", r"7200\.0 s behind the database's\. cron fires by the replica's", "NTP")
        assert verdict.figures["ahead_seconds"] == pytest.approx(-7200, abs=5)

    def test_few_connections_are_left(self) -> None:
        name = connection.settings_dict["NAME"]
        alter = f'ALTER DATABASE "{name}" CONNECTION LIMIT'
        with changed(f"{alter} 3", f"{alter} -1"):
            verdict = look()["connections"]
        check(verdict, "warning", r"0 of 3 connections are free \(CONNECTION LIMIT of the database\)", "Raise")

    def test_connections_that_reach_two_servers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(server, "_SERVER", server._SERVER.replace("pg_postmaster_start_time", "clock_timestamp"))
        check(look()["primary"], "failed", "two different servers")

    def test_read_only(self) -> None:
        with database_alias("reader", OPTIONS=options("default_transaction_read_only=on")):
            code, out = doctor("--database", "reader")
            found = look("reader")
        assert code == 1
        assert "failed    primary            Transactions are read-only" in out
        check(found["history.writable"], "failed", "read-only transaction")
        assert found["lock.transactions"].status.value == "passed"

    def test_a_pooler_that_changes_sessions_within_a_transaction(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pids = iter(range(100))
        monkeypatch.setattr(Session, "pid", lambda self: next(pids))
        check(look()["pooler"], "failed", "answered by several server sessions")


def end_sleepers() -> None:
    """End the server's side of a statement whose client is gone, which it notices when it is over."""
    with session() as owner:
        owner.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE query = 'SELECT pg_sleep(60)' AND datname = current_database()"
        )


class TestLocksThatDoNotExclude:
    def test_functions_that_always_return_true(self) -> None:
        with shadow(*ALWAYS) as alias, nothing_used():
            code, out = doctor("--database", alias)
            found = look(alias)
        assert code == 1
        assert (
            "\nfailed    lock.excludes      A second connection was granted the lock while the first held it: the "
            "functions that were called are not PostgreSQL's own but those of the schema shadow" in out
        )
        assert not_passed(found) == {
            "lock.excludes": "failed",
            **dict.fromkeys(["lock.commit", "lock.rollback", "lock.killed", "lock.transactions"], "not made"),
            "history.database": "not made",
        }

    def test_a_server_that_is_no_postgresql(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(locks, "_SCHEMAS", "SELECT no_such_catalogue")
        with shadow(*ALWAYS) as alias:
            check(look(alias)["lock.excludes"], "failed", "this server's advisory locks do not exclude", "PostgreSQL")

    @pytest.mark.parametrize(
        ("stubs", "says"),
        [
            ([(LOCK, "bigint", "false")], "first connection was refused a lock that nobody holds"),
            ([(PROBE, "integer, integer", "true")], "second connection was granted the lock while the first held it"),
            (
                [(LOCK, "bigint", "pg_catalog.pg_try_advisory_xact_lock(1)")],
                "second connection was granted the lock while the first held it",
            ),
            (
                [
                    (LOCK, "bigint", "pg_catalog.pg_try_advisory_xact_lock(1)"),
                    (PROBE, "bigint", "pg_catalog.pg_try_advisory_xact_lock_shared(1)"),
                ],
                "second connection was refused a lock that nobody holds",
            ),
        ],
    )
    def test_functions_that_lie_otherwise(self, stubs: list[tuple[str, str, str]], says: str) -> None:
        statements = [STUB.format(name=name, arguments=arguments, body=body) for name, arguments, body in stubs]
        with shadow(*statements) as alias:
            check(look(alias)["lock.excludes"], "failed", says)

    def test_locks_that_outlive_their_transactions(self) -> None:
        with shadow(STUB.format(name=LOCK, arguments="bigint", body="pg_try_advisory_lock($1)")) as alias:
            found = look(alias)
        refused = "second connection was refused the lock although its holder has"
        check(found["lock.commit"], "failed", f"{refused} committed")
        check(found["lock.rollback"], "failed", f"{refused} rolled back")
        check(found["lock.transactions"], "failed", f"{refused} committed")
        assert found["lock.killed"].status.value == "passed"

    @pytest.mark.parametrize("body", ["false", "1 / 0 > 1"])
    def test_where_sessions_may_not_be_ended_the_connection_is(self, body: str) -> None:
        stub = STUB.format(name="pg_terminate_backend", arguments="integer", body=body)
        with shadow(stub) as alias:
            verdict = look(alias)["lock.killed"]
        check(verdict, "passed", r"killed \(connection cut\)")

    def test_a_lock_that_outlives_its_session(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(locks, "FREE_WITHIN_SECONDS", 0.05)
        monkeypatch.setattr(locks, "_kill", lambda stack: "not at all")
        check(look()["lock.killed"], "failed", r"not free 0 s after .* \(not at all\)", "pg_locks")

    @pytest.mark.parametrize(
        ("body", "says"),
        [
            ("$2", "Transaction 1 lost what a run sets in it"),
            ("pg_catalog.set_config($1, $2, false)", "A session kept what transaction 1 had set for itself alone"),
        ],
    )
    def test_settings_that_do_not_end_with_their_transaction(self, body: str, says: str) -> None:
        with shadow(SET_CONFIG.format(body=body)) as alias:
            check(look(alias)["lock.transactions"], "failed", says)


SET_CONFIG = """
CREATE FUNCTION set_config(text, text, boolean) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RETURN {body}; END $$
"""
