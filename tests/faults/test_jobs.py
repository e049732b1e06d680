"""The job itself misbehaves: what becomes of its lock, its work and its record."""

from __future__ import annotations

from typing import Any

import pytest

from django_singlecron.capture import MAX_ERROR_MESSAGE, MAX_TRACEBACK
from django_singlecron.models import JobRun
from testproject.billing.models import Tenant
from tests.faults.jobs import BETWEEN, FIRST, LAST
from tests.faults.marks import MOMENTS, at_each_moment
from tests.faults.misdeeds import STRANGE, WAITS
from tests.faults.replicas import Attempt, Case
from tests.faults.steps import AFTER_WRITE, LAST_IN_BODY, ON_COMMIT
from tests.faults.witness import GO, RESULT
from tests.support_core import is_free, real_database, session

pytestmark = real_database

# The moments at which a body misbehaves, as the table names them.
at_the_end = pytest.mark.parametrize("point", [LAST_IN_BODY])


def deed(label: str, *act: Any, **ends: Any) -> Any:
    """Parameters of a test: what a job does, and how it ends."""
    return pytest.param([f"misdeeds.{act[0]}", *act[1:]], *ends.values(), id=label, marks=pytest.mark.fault(label))


def sql(*statements: str, **ends: Any) -> Any:
    return deed("; ".join(statements), "sql", *statements, **ends)


def ending(*statements: str, **ends: Any) -> Any:
    return deed("; ".join(statements), "end_the_transaction", *statements, **ends)


def start(case: Case, point: str, act: list[Any], **arguments: Any) -> Attempt:
    return case.attempt(acts={MOMENTS[point]: ["do", *act]}, **arguments)


def assert_failed(attempt: Attempt, error: str | tuple[str, ...]) -> JobRun:
    """The caller saw this error, and the history says so."""
    result = attempt.result()
    assert result.outcome == "raised"
    assert result.error in (error if isinstance(error, tuple) else (error,)), dict(result)
    row = attempt.row
    assert row.error_class.rpartition(".")[2] == result.error
    assert row.traceback
    return row


GONE = ("OperationalError", "InterfaceError")


class TestErrorsOfTheDatabase:
    @at_each_moment
    @pytest.mark.parametrize(
        "act",
        [
            deed("catches a database error and goes on", "swallow_an_error"),
            deed("catches a violation and goes on", "swallow_a_violation"),
            deed("asks for a rollback", "ask_for_a_rollback"),
        ],
    )
    def test_one_that_is_caught_fails_the_run(self, case: Case, point: str, act: list[Any]) -> None:
        attempt = start(case, point, act)
        expected = "TransactionBroken" if point == LAST_IN_BODY else ("InternalError", "TransactionManagementError")
        assert assert_failed(attempt, expected).status == "failed"
        case.check()

    @at_each_moment
    @pytest.mark.parametrize(
        ("act", "error"),
        [
            deed("cancels its own statement", "cancel_itself", error="OperationalError"),
            deed("ends its own session", "end_its_own_session", error=GONE),
            deed("is idle for longer than it may", "be_idle_for_too_long", error=(*GONE, "InternalError")),
            deed("raises a database error", "ask_in_vain", error="DataError"),
        ],
    )
    def test_one_that_comes_out_fails_the_run(
        self, case: Case, point: str, act: list[Any], error: str | tuple[str, ...]
    ) -> None:
        assert assert_failed(start(case, point, act), error).status == "failed"
        case.check()

    @at_each_moment
    @pytest.mark.parametrize("act", [deed("ends its own session and goes on", "end_its_own_session_and_go_on")])
    def test_a_session_that_is_gone_fails_the_run(self, case: Case, point: str, act: list[Any]) -> None:
        assert assert_failed(start(case, point, act), GONE).status == "failed"
        case.check()

    @at_each_moment
    @pytest.mark.parametrize("act", [deed("breaks a deferred constraint", "break_a_deferred_constraint")])
    def test_a_commit_that_fails_fails_the_run(self, case: Case, point: str, act: list[Any]) -> None:
        assert assert_failed(start(case, point, act), "IntegrityError").status == "failed"
        case.check()

    @at_each_moment
    @pytest.mark.parametrize(
        "act", [deed("catches a database error outside its atomic()", "swallow_an_error_in_a_block")]
    )
    def test_one_of_a_savepoint_is_no_matter(self, case: Case, point: str, act: list[Any]) -> None:
        assert start(case, point, act).result().outcome == "acquired"
        case.check()


class TestTheTransaction:
    @at_each_moment
    @pytest.mark.parametrize("act", [deed("leaves a block open", "leave_a_block_open")])
    def test_a_block_that_is_left_open_fails_the_run(self, case: Case, point: str, act: list[Any]) -> None:
        assert assert_failed(start(case, point, act), "TransactionBroken").status == "failed"
        assert case.attempt(direct=True).result().outcome == "acquired"
        case.check()

    @at_each_moment
    @pytest.mark.parametrize(
        "act",
        [
            ending("COMMIT"),
            ending("ROLLBACK"),
            ending("COMMIT AND CHAIN"),
            ending("ROLLBACK AND CHAIN"),
            ending("COMMIT", "BEGIN"),
            ending("COMMIT", "BEGIN", "SET LOCAL singlecron.run = '1'"),
            ending("ABORT"),
            deed("commits by the driver", "commit_by_the_driver"),
            deed("rolls back by the driver", "roll_back_by_the_driver"),
        ],
    )
    def test_one_that_the_job_ends_loses_the_lock(self, case: Case, point: str, act: list[Any]) -> None:
        assert assert_failed(start(case, point, act), "LockLost").status == "lost"
        case.check()

    @at_the_end
    @pytest.mark.parametrize("act", [ending("COMMIT"), ending("ROLLBACK")])
    def test_the_lock_is_free_while_its_body_goes_on(self, case: Case, point: str, act: list[Any]) -> None:
        first = start(case, point, ["misdeeds.then_wait", act[0].rpartition(".")[2], *act[1:]])
        run = case.witness.wait_for(WAITS).run
        assert case.attempt(direct=True).result().outcome == "acquired"
        case.witness.note(GO, run=run)
        assert assert_failed(first, "LockLost").status == "lost"
        case.check()

    @at_each_moment
    @pytest.mark.parametrize(
        ("act", "error"),
        [
            deed("transaction.commit()", "django_commit", error="TransactionManagementError"),
            deed("transaction.rollback()", "django_rollback", error="TransactionManagementError"),
            deed("set_autocommit(True)", "set_autocommit", True, error="TransactionManagementError"),
            deed("set_autocommit(False)", "set_autocommit", False, error="TransactionManagementError"),
            sql("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", error="InternalError"),
            sql("DISCARD ALL", error="InternalError"),
            sql("VACUUM", error="InternalError"),
            sql("RELEASE SAVEPOINT nobodys", error="OperationalError"),
            sql("SET statement_timeout = 20", "SELECT pg_sleep(30)", error="OperationalError"),
            sql("SET lock_timeout = 20", "LOCK TABLE nowhere", error="ProgrammingError"),
        ],
    )
    def test_what_django_or_the_server_refuses_fails_the_run(
        self, case: Case, point: str, act: list[Any], error: str
    ) -> None:
        assert assert_failed(start(case, point, act), error).status == "failed"
        case.check()

    @at_each_moment
    @pytest.mark.parametrize("act", [ending("PREPARE TRANSACTION 'faults'")])
    def test_a_preparation_that_the_server_does_not_allow_ends_the_transaction(
        self, case: Case, point: str, act: list[Any]
    ) -> None:
        assert assert_failed(start(case, point, act), "OperationalError").status == "lost"
        case.check()

    @at_each_moment
    @pytest.mark.parametrize("act", [deed("releases the run's savepoint", "release_the_runs_savepoint")])
    def test_without_its_savepoint_it_keeps_its_lock(self, case: Case, point: str, act: list[Any]) -> None:
        assert start(case, point, act).result().outcome == "acquired"
        case.check()


HARMLESS = [
    sql("SAVEPOINT mine", "RELEASE SAVEPOINT mine"),
    sql("SAVEPOINT mine"),
    sql("SAVEPOINT mine", "ROLLBACK TO SAVEPOINT mine"),
    sql("SELECT pg_advisory_unlock_all()"),
    sql("SELECT pg_advisory_unlock(hashtextextended('faults-a', 0))"),
    sql("SELECT pg_advisory_lock(hashtextextended('faults-a', 0))", "SELECT pg_advisory_unlock_all()"),
    sql("SET session_replication_role = replica"),
    sql("SET application_name = 'something else'"),
    sql("SET application_name = 'singlecron/1 another'"),
    sql("SET search_path = public, pg_temp"),
    sql("SET timezone = 'Asia/Kolkata'", "SET datestyle = 'German'"),
    sql("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE"),
    sql("SET client_encoding = 'LATIN1'"),
    sql("DECLARE kept CURSOR WITH HOLD FOR SELECT 1", "LISTEN faults", "NOTIFY faults"),
    sql("CREATE TEMPORARY TABLE django_singlecron_jobrun_copy AS SELECT * FROM django_singlecron_jobrun"),
    sql("DISCARD PLANS"),
    deed("catches a database error", "swallow_an_error"),
]


class TestTheSession:
    @at_each_moment
    @pytest.mark.parametrize("act", HARMLESS[:-1])
    def test_what_is_harmless(self, case: Case, point: str, act: list[Any]) -> None:
        assert start(case, point, act).result().outcome == "acquired"
        case.check()

    @at_the_end
    @pytest.mark.parametrize("act", HARMLESS)
    def test_the_lock_is_held_meanwhile_and_its_holder_known(self, case: Case, point: str, act: list[Any]) -> None:
        first = start(case, point, ["misdeeds.then_wait", act[0].rpartition(".")[2], *act[1:]])
        run = case.witness.wait_for(WAITS).run
        second = case.attempt(direct=True)
        assert second.result().outcome == "skipped"
        # A job that calls its session by another run's name is not found out.
        if "singlecron/1" not in str(act):
            assert second.row.held_by_id == run
        case.witness.note(GO, run=run)
        first.result()
        case.check()

    @at_the_end
    @pytest.mark.parametrize(
        ("act", "error"),
        [
            sql("SET search_path = pg_catalog", error="ProgrammingError"),
            sql("SET TRANSACTION READ ONLY", error="InternalError"),
            sql("DROP TABLE django_singlecron_jobrun CASCADE", error="ProgrammingError"),
            sql("ALTER TABLE django_singlecron_jobrun RENAME TO elsewhere", error="ProgrammingError"),
            sql("ALTER TABLE django_singlecron_jobrun DROP COLUMN output", error="ProgrammingError"),
            sql(
                "ALTER TABLE django_singlecron_jobrun ADD CHECK (status <> 'succeeded') NOT VALID",
                error="IntegrityError",
            ),
        ],
    )
    def test_what_keeps_the_success_from_being_recorded_fails_the_run(
        self, case: Case, point: str, act: list[Any], error: str
    ) -> None:
        assert assert_failed(start(case, point, act), error).status == "failed"
        case.check()

    @at_the_end
    @pytest.mark.parametrize("act", [sql("SET ROLE faults_nobody"), sql("SET SESSION AUTHORIZATION faults_nobody")])
    def test_a_role_that_may_not_write_the_history(self, case: Case, point: str, act: list[Any]) -> None:
        with session() as owner:
            owner.execute("CREATE ROLE faults_nobody")
            try:
                assert assert_failed(start(case, point, act), "ProgrammingError").status == "failed"
            finally:
                owner.execute("DROP ROLE faults_nobody")
        case.check()

    @at_the_end
    @pytest.mark.parametrize(
        "act",
        [
            sql("DELETE FROM django_singlecron_jobrun"),
            sql("TRUNCATE django_singlecron_jobrun"),
            sql("LOCK TABLE django_singlecron_jobrun IN ACCESS EXCLUSIVE MODE"),
        ],
    )
    def test_what_it_does_to_the_history_in_its_own_transaction(self, case: Case, point: str, act: list[Any]) -> None:
        attempt = start(case, point, act)
        assert attempt.result().outcome == "acquired"
        assert attempt.row.status == "succeeded"
        case.check()

    @pytest.mark.fault("leaves its session serializable", step="after the run")
    def test_what_it_leaves_to_the_next_run_of_its_session(self, case: Case) -> None:
        stricter = "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE"
        asked = ["do", "misdeeds.expect", "SHOW transaction_isolation", "read committed"]
        first, second = case.attempts(2, acts={FIRST: asked, LAST: ["do", "misdeeds.sql", stricter]})
        assert first.result().outcome == "acquired"
        second.go()
        assert second.result().outcome == "acquired"
        case.check()


class TestThreads:
    @at_each_moment
    @pytest.mark.parametrize(
        "act",
        [
            deed("computes in threads", "work_in_threads", 4),
            deed("writes in threads, by their own connections", "query_in_threads", 4),
            deed("leaves a thread in a transaction behind", "leave_a_thread_behind"),
            deed("raises in a thread", "raise_in_a_thread_alone"),
        ],
    )
    def test_of_its_own(self, case: Case, point: str, act: list[Any]) -> None:
        assert start(case, point, act).result().outcome == "acquired"
        case.check()

    @at_each_moment
    @pytest.mark.parametrize(
        "act", [deed("uses the run's connection in a thread", "use_the_runs_connection_in_a_thread")]
    )
    def test_that_use_its_connection_are_refused_by_django(self, case: Case, point: str, act: list[Any]) -> None:
        assert assert_failed(start(case, point, act), "DatabaseError").status == "failed"
        case.check()

    @pytest.mark.fault("writes in a thread, then fails", step=LAST_IN_BODY)
    def test_what_they_wrote_stays_when_the_job_fails(self, case: Case) -> None:
        attempt = case.attempt(acts={BETWEEN: ["do", "misdeeds.query_in_threads", 2], LAST: ["raise"]})
        assert assert_failed(attempt, "JobFailed").status == "failed"
        assert Tenant.objects.count() == 2
        case.check()


class TestMuch:
    @pytest.mark.fault("logs 200 MB", step=AFTER_WRITE.name)
    def test_output(self, case: Case) -> None:
        attempt = case.attempt(acts={BETWEEN: ["do", "misdeeds.log_much", 200]})
        assert attempt.result().outcome == "acquired"
        output = attempt.row.output
        assert 65_536 < len(output) < 65_600
        assert output.startswith("[… 209,")
        assert output.endswith("xx\n")
        case.check()

    @at_each_moment
    @pytest.mark.parametrize(
        ("act", "error"),
        [
            deed("recurses for ever", "recurse", error="RecursionError"),
            deed("raises an error of 50 MB", "fail_with_much", 50, error="JobFailed"),
            deed("raises below 2,000 different calls", "fail_deep_down", 2000, error="JobFailed"),
            deed("raises for 2,000 reasons", "fail_for_many_reasons", 2000, error="JobFailed"),
        ],
    )
    def test_of_an_error(self, case: Case, point: str, act: list[Any], error: str) -> None:
        row = assert_failed(start(case, point, act), error)
        assert row.status == "failed"
        assert len(row.error_message) <= MAX_ERROR_MESSAGE
        assert len(row.traceback) <= MAX_TRACEBACK
        case.check()


@at_each_moment
@pytest.mark.fault("raises a strange error")
@pytest.mark.parametrize("how", STRANGE)
def test_strange_errors(case: Case, point: str, how: str) -> None:
    attempt = start(case, point, ["misdeeds.fail_strangely", how])
    assert attempt.result().outcome == "raised"
    assert attempt.row.status == "failed"
    assert attempt.row.error_class
    case.check()


class TestAfterTheCommit:
    @pytest.mark.parametrize("point", [ON_COMMIT])
    @pytest.mark.parametrize(
        ("act", "error"),
        [
            deed("raises", "after_commit", "fail", error="JobFailed"),
            deed("sys.exit(3)", "after_commit", "leave", 3, error="SystemExit"),
            deed("KeyboardInterrupt", "after_commit", "interrupt", error="KeyboardInterrupt"),
            deed("a database error", "after_commit", "ask_in_vain", error="DataError"),
            deed("ends its own session", "after_commit", "end_its_own_session", error=GONE),
            deed("raises a strange error", "after_commit", "fail_strangely", "unprintable", error="Unprintable"),
        ],
    )
    def test_an_error_stands_beside_the_success(
        self, case: Case, point: str, act: list[Any], error: str | tuple[str, ...]
    ) -> None:
        attempt = case.attempt(acts={BETWEEN: ["do", *act]})
        assert assert_failed(attempt, error).status == "succeeded"
        case.check()

    @pytest.mark.parametrize("point", [ON_COMMIT])
    @pytest.mark.parametrize(
        "act",
        [
            deed("closes the connection", "after_commit", "close"),
            deed("catches a database error", "after_commit", "swallow_an_error"),
            deed("writes more", "after_commit", "succeed_silently"),
        ],
    )
    def test_what_is_no_error_is_no_matter(self, case: Case, point: str, act: list[Any]) -> None:
        attempt = case.attempt(acts={BETWEEN: ["do", *act]})
        assert attempt.result().outcome == "acquired"
        case.check()

    @pytest.mark.parametrize("point", [ON_COMMIT])
    @pytest.mark.parametrize("lane", ["a", "b"])
    @pytest.mark.fault("calls the job of lane {lane}")
    def test_jobs_may_be_called(self, case: Case, point: str, lane: str) -> None:
        attempt = case.attempt(acts={BETWEEN: ["do", "misdeeds.after_commit", "call", "inner", lane]})
        assert attempt.result().outcome == "acquired"
        assert case.witness.wait_for(RESULT, attempt="inner").outcome == "acquired"
        case.check()


class TestJobsInJobs:
    @at_each_moment
    @pytest.mark.parametrize("then", ["return", "raise"])
    @pytest.mark.fault("calls itself")
    def test_a_job_in_itself_is_skipped(self, case: Case, point: str, then: str) -> None:
        acts = {MOMENTS[point]: ["do", "misdeeds.call", "inner"]}
        if then == "raise":
            acts = {FIRST: acts[MOMENTS[point]], LAST: ["raise"]}
        attempt = case.attempt(acts=acts)
        assert attempt.result().outcome == ("acquired" if then == "return" else "raised")
        assert case.witness.wait_for(RESULT, attempt="inner").outcome == "skipped"
        case.check()

    @at_each_moment
    @pytest.mark.fault("calls another job")
    def test_another_job_is_refused(self, case: Case, point: str) -> None:
        attempt = start(case, point, ["misdeeds.call", "inner", "b"])
        assert attempt.result().outcome == "acquired"
        assert case.witness.wait_for(RESULT, attempt="inner").error == "OuterTransaction"
        case.check()

    @at_each_moment
    @pytest.mark.parametrize(("lane", "outcome"), [("a", "skipped"), ("b", "acquired")])
    @pytest.mark.fault("calls the job of lane {lane} in a thread")
    def test_in_a_thread_the_lock_decides(self, case: Case, point: str, lane: str, outcome: str) -> None:
        attempt = start(case, point, ["misdeeds.call_in_a_thread", "inner", lane])
        assert attempt.result().outcome == "acquired"
        assert case.witness.wait_for(RESULT, attempt="inner").outcome == outcome
        case.check()
        assert is_free("faults-b")

    @at_each_moment
    @pytest.mark.fault("calls another job's bare function")
    def test_a_bare_function_is_a_part_of_the_job(self, case: Case, point: str) -> None:
        assert start(case, point, ["misdeeds.call_bare", "inner"]).result().outcome == "acquired"
        assert Tenant.objects.count() == 1
        case.check()
