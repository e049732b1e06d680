"""Runs without a lock of their own: with locking off, on SQLite, and inside a TestCase."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, connection, connections, transaction
from django.db.backends.postgresql.psycopg_any import is_psycopg3

from django_singlecron import (
    HistoryNotMigrated,
    LockLost,
    OuterTransaction,
    RunRefused,
    RunTimedOut,
    TransactionBroken,
    current_run,
)
from django_singlecron.models import JobRun
from django_singlecron.testing import hold_lock, without_locking

from .support_core import (
    before_statement,
    is_free,
    job,
    real_database,
    session,
    sql,
    sqlite,
    the_run,
    trigger,
    write,
    written,
)

WARNING = 'Job "job" runs without a lock, since SINGLECRON["LOCKING"] is False.'


@pytest.fixture
def _off() -> Iterator[None]:
    with without_locking():
        yield


@pytest.mark.usefixtures("_off")
@real_database
class TestWithoutLocking:
    def test_it_runs_though_the_lock_is_held_and_says_so(self, caplog: pytest.LogCaptureFixture) -> None:
        runs: list[Any] = []

        def work() -> None:
            write()
            runs.append(current_run())

        with hold_lock("job"):
            assert job(work)()
        row = the_run()
        assert (row.lock, row.key, row.token, row.status) == ("none", None, None, "succeeded")
        assert (runs[0].key, runs[0].token) == (None, None)
        assert WARNING in caplog.text
        assert written() == ["written"]

    def test_a_failure_is_recorded_and_undone(self) -> None:
        def fail() -> None:
            write()
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            job(fail)()
        assert (the_run().status, the_run().error_message) == ("failed", "no")
        assert written() == []

    def test_a_caught_database_error_fails_the_run(self) -> None:
        def carry_on() -> None:
            write()
            with pytest.raises(IntegrityError):
                write()

        with pytest.raises(TransactionBroken):
            job(carry_on)()
        assert the_run().status == "failed"

    @pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK", "COMMIT AND CHAIN"])
    def test_a_transaction_that_the_job_ended_is_never_green(self, statement: str) -> None:
        def end() -> None:
            write("before")
            sql(statement)
            write("after")

        with pytest.raises(LockLost, match="sent a raw COMMIT or ROLLBACK"):
            job(end)()
        assert the_run().status == "lost"
        before = ["before"] if statement.startswith("COMMIT") else []
        # psycopg2 does not notice that the transaction ended, and begins no other.
        after = [] if is_psycopg3 or statement.endswith("CHAIN") else ["after"]
        assert sorted(written()) == after + before

    def test_a_mark_that_cannot_be_written_fails_the_run(self) -> None:
        body = "IF new.status = 'succeeded' THEN RAISE 'disk full'; END IF; RETURN new;"
        with trigger("BEFORE UPDATE", body), pytest.raises(Exception, match="disk full"):
            job(write)()
        assert the_run().status == "failed"
        assert written() == []

    def test_a_timeout_interrupts_it(self) -> None:
        def sleep() -> None:
            write()
            time.sleep(10)

        with pytest.raises(RunTimedOut):
            job(sleep, timeout=0.1)()
        assert the_run().status == "failed"
        assert written() == []

    def test_a_job_inside_itself_is_skipped(self) -> None:
        inner: list[Any] = []
        task = job(lambda: inner.append(task()))
        assert task()
        assert not inner[0].ran
        assert sorted(run.status for run in JobRun.objects.all()) == ["skipped", "succeeded"]

    def test_inside_a_transaction_it_is_refused_all_the_same(self) -> None:
        with transaction.atomic(), pytest.raises(OuterTransaction):
            job(write)()

    def test_a_kept_connection_that_died_is_replaced(self) -> None:
        written()
        with session() as other:
            assert other.one("SELECT pg_terminate_backend(%s, 5000)", connection.connection.info.backend_pid)
        assert job(write)()
        assert written() == ["written"]


@pytest.mark.usefixtures("_off")
@real_database
class TestOnSQLite:
    def test_it_runs_and_is_recorded(self, tmp_path: Path) -> None:
        with sqlite(tmp_path) as alias:
            assert job(lambda: write(using=alias), using=alias)()
            with pytest.raises(ZeroDivisionError):
                job(lambda: 1 / 0, using=alias)()
            rows = list(JobRun.objects.using(alias).order_by("id").values_list("lock", "status"))
            assert rows == [("none", "succeeded"), ("none", "failed")]
            assert written(alias) == ["written"]
            assert [run.status for run in JobRun.objects.using(alias).latest_per_job()] == ["failed"]

    def test_a_transaction_that_the_job_ended_is_never_green(self, tmp_path: Path) -> None:
        def end() -> None:
            write(using=alias)
            with connections[alias].cursor() as cursor:
                cursor.execute("ROLLBACK")

        with sqlite(tmp_path) as alias:
            with pytest.raises(LockLost):
                job(end, using=alias)()
            assert written(alias) == []
            assert [run.status for run in JobRun.objects.using(alias)] == ["lost"]

    def test_a_failing_runs_row_that_was_deleted_meanwhile_is_written_anew(self, tmp_path: Path) -> None:
        def work() -> None:
            with connections[alias].cursor() as cursor:
                cursor.execute("COMMIT")
                cursor.execute("DELETE FROM django_singlecron_jobrun")

        with sqlite(tmp_path) as alias:
            with pytest.raises(LockLost):
                job(work, using=alias)()
            [row] = JobRun.objects.using(alias)
            assert (row.job, row.outcome, row.status, row.lock) == ("job", "acquired", "lost", "none")

    def test_a_raw_begin_is_refused(self, tmp_path: Path) -> None:
        with sqlite(tmp_path) as alias, connections[alias].cursor() as cursor:
            cursor.execute("BEGIN")
            with pytest.raises(OuterTransaction, match="a raw BEGIN left"):
                job(write, using=alias)()
            cursor.execute("COMMIT")
            assert not JobRun.objects.using(alias).exists()

    def test_a_history_that_is_not_migrated(self, tmp_path: Path) -> None:
        with sqlite(tmp_path, migrated=False) as alias, pytest.raises(HistoryNotMigrated, match="--database lite"):
            job(write, using=alias)()


@pytest.mark.django_db
class TestInATestCase:
    @pytest.mark.skipif(not is_psycopg3, reason="psycopg2 has no stream(); with psycopg 3 this runs")
    def test_a_stream_that_is_left_open_costs_the_test_its_connection_and_does_not_hang(self) -> None:
        def work() -> None:
            rows = connection.cursor().stream("SELECT generate_series(1, 100000)")
            next(rows)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            job(work)()
        assert connection.closed_in_transaction

    def test_it_runs_and_is_recorded_in_the_tests_transaction(self) -> None:
        seen: list[Any] = []

        def work() -> str:
            write()
            seen.append(current_run())
            return "value"

        assert job(work)().value == "value"
        row = the_run()
        assert (row.lock, row.status, row.token) == ("transaction", "succeeded", seen[0].token)
        assert row.key == seen[0].key != 0
        assert written() == ["written"]
        with session() as other:
            assert other.one("SELECT count(*) FROM django_singlecron_jobrun") == 0
        assert is_free()

    def test_its_limits_do_not_reach_the_test(self) -> None:
        assert job(write, timeout=30)()
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('statement_timeout'), current_setting('singlecron.run', true)")
            assert cursor.fetchone()[0] == "0"
            cursor.execute("SELECT current_setting('application_name')")
            assert "singlecron" not in cursor.fetchone()[0]

    def test_a_failure_is_recorded_and_undone_and_the_test_goes_on(self) -> None:
        def fail() -> None:
            write()
            write()

        write("before")
        with pytest.raises(IntegrityError):
            job(fail)()
        assert the_run().status == "failed"
        assert written() == ["before"]
        assert job(write)()

    @pytest.mark.parametrize("recorded", [True, False])
    def test_a_lock_that_another_replica_holds_skips_it(self, recorded: bool) -> None:
        with hold_lock("job"):
            result = job(write, record_skips=recorded)()
        assert (result.ran, result.skip_reason) == (False, "locked")
        assert JobRun.objects.skipped().count() == int(recorded)
        assert written() == []
        assert job(write)()

    @pytest.mark.parametrize("recorded", [True, False])
    def test_a_lock_that_is_taken_after_the_probe_skips_it(self, recorded: bool) -> None:
        with (
            ExitStack() as stack,
            before_statement("SELECT pg_try_advisory_xact_lock(", lambda: stack.enter_context(hold_lock("job"))),
        ):
            result = job(write, record_skips=recorded)()
        assert not result.ran
        assert JobRun.objects.skipped().count() == int(recorded)
        assert written() == []

    def test_a_job_inside_itself_is_skipped(self) -> None:
        inner: list[Any] = []
        task = job(lambda: inner.append(task()))
        assert task()
        assert not inner[0].ran
        assert inner[0].held_by == JobRun.objects.acquired().get().pk

    def test_another_job_inside_a_job_is_refused(self) -> None:
        with pytest.raises(OuterTransaction):
            job(lambda: job(write, "inner")(), "outer")()

    def test_a_transaction_of_the_tests_own_is_refused(self) -> None:
        with transaction.atomic(), pytest.raises(OuterTransaction):
            job(write)()

    def test_hooks_wait_for_the_commit_that_never_comes(self, django_capture_on_commit_callbacks: Any) -> None:
        called: list[int] = []
        with django_capture_on_commit_callbacks(execute=True) as callbacks:
            assert job(lambda: transaction.on_commit(lambda: called.append(1)))()
            assert called == []
        assert called == [1]
        assert len(callbacks) == 1

    def test_a_timeout_interrupts_it_and_leaves_the_tests_connection_alone(self) -> None:
        def sleep() -> None:
            write()
            time.sleep(10)

        with pytest.raises(RunTimedOut):
            job(sleep, timeout=0.1)()
        assert the_run().status == "failed"
        assert written() == []

    def test_without_locking(self) -> None:
        with without_locking():
            assert job(write)()
        assert the_run().lock == "none"

    def test_what_the_database_refuses_is_told(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE django_singlecron_jobrun RENAME TO away")
        with pytest.raises(HistoryNotMigrated):
            job(write)()

    def test_a_broken_transaction_of_the_test_is_told(self) -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            with pytest.raises(Exception, match="no_such_column"):
                cursor.execute("SELECT no_such_column")
            with pytest.raises((RunRefused, Exception)):
                job(write)()
            transaction.set_rollback(True)
        assert written() == []
        assert connections["default"].is_usable()
