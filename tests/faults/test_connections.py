"""The connection between replica and server is terminated, cancelled, reset, closed, stale or timed out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import connection

from tests.faults.jobs import FIRST, LAST
from tests.faults.marks import MOMENTS, at_each_moment, at_each_point, at_points
from tests.faults.replicas import Attempt, Case
from tests.faults.steps import (
    AFTER_ATTEMPT,
    AFTER_COMMIT,
    AFTER_RECORD,
    BEFORE_ATTEMPT,
    BEFORE_LOCK,
    BEFORE_MARK,
    BEFORE_RECORD,
    CONNECTING,
    LAST_IN_BODY,
    ON_COMMIT,
    POINTS,
    Point,
    Step,
)
from tests.support.deadlines import wait_until
from tests.support_core import real_database, session

pytestmark = real_database

at_each_point_with_a_session = at_points(*POINTS[1:])

# Where there is no row yet, and so none to say what came of the attempt.
BEFORE_THE_ROW = (CONNECTING, BEFORE_ATTEMPT)
REFUSED = (CONNECTING, BEFORE_ATTEMPT, AFTER_ATTEMPT, BEFORE_LOCK)


def ended(attempt: Attempt) -> list[tuple[str, str]]:
    return [(row.status, row.error_class.rpartition(".")[2]) for row in attempt.rows]


class TestSessionTerminated:
    """By pg_terminate_backend, as an administrator or a failing server does it."""

    @at_each_point_with_a_session
    @pytest.mark.fault("pg_terminate_backend")
    def test_in_a_run(self, case: Case, point: Point) -> None:
        attempt, at = case.stopped_at(point)
        if point != AFTER_COMMIT:
            attempt.cut()
        case.end_session(at.backend_pid)
        case.proxy.go_on()
        result = attempt.result()
        case.check()
        if point == AFTER_COMMIT:
            assert (result.outcome, ended(attempt)) == ("acquired", [("succeeded", "")])
        else:
            error = "DatabaseUnavailable" if point in REFUSED else "OperationalError"
            assert result.error == error
            assert ended(attempt) == ([] if point in BEFORE_THE_ROW else [("failed", error)])

    @pytest.mark.parametrize("point", [BEFORE_RECORD, AFTER_RECORD])
    @pytest.mark.fault("pg_terminate_backend")
    def test_while_a_failure_is_recorded(self, case: Case, point: Point) -> None:
        attempt, at = case.stopped_at(point, acts={LAST: ["raise"]})
        case.end_session(at.backend_pid)
        case.proxy.go_on()
        assert attempt.result().error == "JobFailed"
        case.check()
        assert ended(attempt) == [("failed", "JobFailed")]


class TestReset:
    """A TCP RST, by a firewall or a proxy that restarts: a request or an answer is lost."""

    @at_each_point
    @pytest.mark.fault("RST")
    def test_in_a_run(self, case: Case, point: Point) -> None:
        attempt, at = case.stopped_at(point)
        attempt.cut()
        case.proxy.reset(at.session)
        result = attempt.result()
        error = "DatabaseUnavailable" if point in REFUSED or point.step == Step.LOCK else "OperationalError"
        assert result.error == error
        case.check()
        if point in BEFORE_THE_ROW:
            assert attempt.rows == []
        elif point == AFTER_ATTEMPT:
            # The replica never knew its row.
            assert ended(attempt) == [("lost", "")]
        else:
            assert ended(attempt) == [("succeeded" if point == AFTER_COMMIT else "failed", error)]

    @pytest.mark.parametrize("point", [BEFORE_RECORD, AFTER_RECORD])
    @pytest.mark.fault("RST")
    def test_while_a_failure_is_recorded(self, case: Case, point: Point) -> None:
        attempt, at = case.stopped_at(point, acts={LAST: ["raise"]})
        case.proxy.reset(at.session)
        assert attempt.result().error == "JobFailed"
        case.check()
        assert ended(attempt) == [("failed", "JobFailed")]

    @pytest.mark.fault("RST, of who is skipped", step=AFTER_ATTEMPT.name)
    def test_of_a_process_that_is_skipped(self, case: Case) -> None:
        winner = case.attempt(direct=True, acts={FIRST: ["wait for", "reset"]})
        winner.body()
        attempt, at = case.stopped_at(AFTER_ATTEMPT)
        case.proxy.reset(at.session)
        assert attempt.result().error == "DatabaseUnavailable"
        case.witness.note("reset")
        case.check()
        assert (winner.row.status, attempt.row.status) == ("succeeded", "skipped")

    @at_each_point
    @pytest.mark.fault("RST, {job}")
    @pytest.mark.parametrize("job", ["monthly", "once"])
    def test_the_next_attempt_of_the_slot_runs_if_the_broken_one_did_not(
        self, case: Case, point: Point, job: str
    ) -> None:
        attempt, at = case.stopped_at(point, job)
        attempt.cut()
        case.proxy.reset(at.session)
        broken = attempt.result()
        result = case.attempt(job, direct=True).result()
        case.check()
        succeeded = "succeeded" in {status for status, _ in ended(attempt)}
        took_slot = succeeded or (job == "once" and point not in BEFORE_THE_ROW)
        assert (result.outcome, result.reason) == (("skipped", "already_ran") if took_slot else ("acquired", None))
        # The slot's statement before the attempt has opened the connection, so the attempt is sent again.
        assert succeeded == (point in (AFTER_COMMIT, BEFORE_ATTEMPT) or (point, job) == (AFTER_ATTEMPT, "monthly"))
        assert (broken.outcome == "acquired") == (succeeded and point != AFTER_COMMIT)

    @pytest.mark.fault("RST on a kept connection")
    @at_each_point_with_a_session
    def test_in_the_next_run_of_a_process(self, case: Case, point: Point) -> None:
        first, attempt = case.attempts(2)
        first.result()
        case.proxy.stop_at(point)
        attempt.go()
        at = case.proxy.wait_until_stopped()
        attempt.cut()
        case.proxy.reset(at.session)
        result = attempt.result()
        case.check()
        if point.step == Step.ATTEMPT:
            # It is sent again, since it may not have reached the server.
            assert result.outcome == "acquired"
            lost = [("lost", "")] if point == AFTER_ATTEMPT else []
            assert ended(attempt) == [*lost, ("succeeded", "")]
        else:
            assert result.outcome == "raised"
            assert [status for status, _ in ended(attempt)] == ["succeeded" if point == AFTER_COMMIT else "failed"]


class TestClosedByTheJob:
    @at_each_moment
    @pytest.mark.fault("connection.close()")
    def test_in_the_body(self, case: Case, point: str) -> None:
        attempt = case.attempt(acts={MOMENTS[point]: ["close"]})
        assert attempt.result().outcome == "raised"
        case.check()
        # Once all is written, nothing else goes wrong but the lock.
        assert attempt.row.status == ("lost" if point == LAST_IN_BODY else "failed")

    @pytest.mark.fault("connection.close()", step=ON_COMMIT)
    def test_once_committed(self, case: Case) -> None:
        attempt = case.attempt(acts={FIRST: ["on_commit", "close"]})
        assert attempt.result().outcome == "acquired"
        case.check()
        assert attempt.row.status == "succeeded"


@pytest.mark.fault("stale connection, {how}", step="before the attempt")
@pytest.mark.parametrize("max_age", [0, None], ids=["request", "kept"])
@pytest.mark.parametrize("how", ["terminated", "reset"])
def test_a_connection_that_went_stale_between_two_runs(case: Case, how: str, max_age: int | None) -> None:
    first, second = case.attempts(2, database={**case.through_proxy, "CONN_MAX_AGE": max_age})
    first.result()
    [at] = case.proxy.sessions
    if how == "terminated":
        case.end_session(at.backend_pid)
    else:
        case.proxy.reset()
    second.go()
    assert second.result().outcome == "acquired"
    case.check()
    assert ended(second) == [("succeeded", "")]


# Statements that wait, and so can be cancelled and timed out: with what they wait for.
BLOCKED = {
    Step.ATTEMPT: "LOCK TABLE django_singlecron_jobrun IN SHARE MODE",
    Step.WRITE_1: "LOCK TABLE faults_work IN SHARE MODE",
    Step.MARK: "LOCK TABLE django_singlecron_jobrun IN SHARE MODE",
}
at_each_blocked_step = pytest.mark.parametrize(
    "point", [Point(f"{step.name} waits", step, "before") for step in BLOCKED]
)


@contextmanager
def blocked(case: Case, attempt: Attempt, point: Point) -> Iterator[int]:
    """Let a statement wait for a lock in the block, for as long as it is not given up; give its server process."""
    at = case.proxy.wait_until_stopped()
    with session() as other:
        other.execute("BEGIN")
        other.execute(BLOCKED[point.step])
        # What follows needs the same table.
        case.proxy.stop_at(Point("given up", Step.ROLLBACK, "before"))
        case.proxy.go_on()
        yield at.backend_pid
        wait_until(
            lambda: case.proxy.stopped() or case.witness.find("result", attempt=attempt.name), what="it given up"
        )
        other.execute("ROLLBACK")
    case.proxy.go_on()


def wait_until_waiting(case: Case, backend_pid: int) -> None:
    query = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
    wait_until(lambda: case.watcher.fetch(query, [backend_pid]) == [(True,)], what="a statement that waits")


def assert_given_up(case: Case, attempt: Attempt, point: Point) -> None:
    result = attempt.result()
    error = "DatabaseUnavailable" if point.step == Step.ATTEMPT else "OperationalError"
    assert result.error == error
    case.check()
    assert ended(attempt) == ([] if point.step == Step.ATTEMPT else [("failed", error)])


class TestCancelled:
    """By pg_cancel_backend, as an administrator does it."""

    @at_each_point_with_a_session
    @pytest.mark.fault("pg_cancel_backend")
    def test_between_statements_it_does_nothing(self, case: Case, point: Point) -> None:
        attempt, at = case.stopped_at(point)
        assert case.watcher.fetch("SELECT pg_cancel_backend(%s)", [at.backend_pid]) == [(True,)]
        case.proxy.go_on()
        assert attempt.result().outcome == "acquired"
        case.check()
        assert ended(attempt) == [("succeeded", "")]

    @at_each_blocked_step
    @pytest.mark.fault("pg_cancel_backend")
    def test_while_a_statement_waits(self, case: Case, point: Point) -> None:
        case.proxy.stop_at(point)
        attempt = case.attempt()
        with blocked(case, attempt, point) as backend_pid:
            wait_until_waiting(case, backend_pid)
            case.watcher.fetch("SELECT pg_cancel_backend(%s)", [backend_pid])
        assert_given_up(case, attempt, point)

    @at_each_moment
    @pytest.mark.fault("pg_cancel_backend, long query")
    def test_while_a_statement_of_the_job_runs(self, case: Case, point: str) -> None:
        attempt = case.attempt(acts={MOMENTS[point]: ["pg_sleep", 60]})
        query = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
        [(backend_pid,)] = wait_until(lambda: case.watcher.fetch(query, []), what="the query")
        case.watcher.fetch("SELECT pg_cancel_backend(%s)", [backend_pid])
        assert attempt.result().error == "OperationalError"
        case.check()
        assert ended(attempt) == [("failed", "OperationalError")]


ROLE = "faults_role"
MAKE_ROLE = f"""
CREATE ROLE {ROLE} LOGIN;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {ROLE};
GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {ROLE}
"""
DROP_ROLE = f"DROP OWNED BY {ROLE}; DROP ROLE {ROLE}"


@contextmanager
def timeout(case: Case, scope: str, name: str, value: str) -> Iterator[dict[str, object]]:
    """Set a timeout for a role or for the database; give the settings by which new sessions get it."""
    database = connection.ops.quote_name(case.direct["NAME"])
    target = {"role": f"ROLE {ROLE}", "database": f"DATABASE {database}"}[scope]
    with connection.cursor() as cursor:
        cursor.execute(MAKE_ROLE)
        try:
            cursor.execute(f"ALTER {target} SET {name} = '{value}'")
            yield {**case.through_proxy, "USER": ROLE}
        finally:
            cursor.execute(f"ALTER {target} RESET {name}")
            cursor.execute(DROP_ROLE)


# What the server says of the timeout is an internal error to the drivers, unless they see first that it is gone.
ENDED_BY_TIMEOUT = ("InternalError", "OperationalError")
REFUSED_BY_TIMEOUT = ("RunRefused", "DatabaseUnavailable")

by_role_or_database = pytest.mark.parametrize("scope", ["role", "database"])


@by_role_or_database
class TestTimeouts:
    @pytest.mark.fault("idle_in_transaction_session_timeout")
    @at_each_point_with_a_session
    def test_idle_in_transaction(self, case: Case, point: Point, scope: str) -> None:
        with timeout(case, scope, "idle_in_transaction_session_timeout", "100ms") as database:
            case.proxy.stop_at(point)
            [attempt] = case.attempts(1, database=database)
            at = case.proxy.wait_until_stopped()
            if point == BEFORE_LOCK:
                # The transaction has begun, and the lock's statement is what lifts the limit for it.
                attempt.cut()
                wait_until(lambda: not case.has_session(at.backend_pid), what="the session ended")
            else:
                time.sleep(0.3)
            case.proxy.go_on()
            result = attempt.result()
            case.check()
        if point == BEFORE_LOCK:
            assert result.error in REFUSED_BY_TIMEOUT
            assert ended(attempt) == [("failed", result.error)]
        else:
            assert (result.outcome, ended(attempt)) == ("acquired", [("succeeded", "")])

    @pytest.mark.fault("idle_in_transaction_session_timeout, pause")
    @at_each_moment
    def test_a_job_that_pauses(self, case: Case, point: str, scope: str) -> None:
        with timeout(case, scope, "idle_in_transaction_session_timeout", "100ms") as database:
            [attempt] = case.attempts(1, database=database, acts={MOMENTS[point]: ["pause", 0.3]})
            assert attempt.result().outcome == "acquired"
            case.check()
        assert ended(attempt) == [("succeeded", "")]

    @pytest.mark.fault("{name}")
    @pytest.mark.parametrize("name", ["statement_timeout", "lock_timeout"])
    @at_each_blocked_step
    def test_while_a_statement_waits(self, case: Case, point: Point, name: str, scope: str) -> None:
        with timeout(case, scope, name, "200ms") as database:
            case.proxy.stop_at(point)
            [attempt] = case.attempts(1, database=database)
            with blocked(case, attempt, point):
                pass
            assert_given_up(case, attempt, point)

    @pytest.mark.fault("statement_timeout, long query")
    @at_each_moment
    def test_while_a_statement_of_the_job_runs(self, case: Case, point: str, scope: str) -> None:
        with timeout(case, scope, "statement_timeout", "200ms") as database:
            [attempt] = case.attempts(1, database=database, acts={MOMENTS[point]: ["pg_sleep", 60]})
            assert attempt.result().error == "OperationalError"
            case.check()
        assert ended(attempt) == [("failed", "OperationalError")]

    @pytest.mark.fault("statement_timeout, end not recorded")
    def test_while_neither_the_end_nor_anything_else_can_be_recorded(self, case: Case, scope: str) -> None:
        point = BEFORE_MARK
        with timeout(case, scope, "statement_timeout", "200ms") as database:
            case.proxy.stop_at(point)
            [attempt] = case.attempts(1, database=database)
            case.proxy.wait_until_stopped()
            attempt.cut()
            with session() as other:
                other.execute("BEGIN")
                other.execute(BLOCKED[Step.MARK])
                case.proxy.go_on()
                assert attempt.result().error == "OperationalError"
            case.check()
        assert ended(attempt) == [("lost", "")]

    @pytest.mark.fault("transaction_timeout")
    @pytest.mark.parametrize("point", POINTS[POINTS.index(BEFORE_LOCK) : -1])
    def test_a_transaction_that_takes_too_long(self, case: Case, point: Point, scope: str) -> None:
        if connection.pg_version < 170000:
            pytest.skip("transaction_timeout came with PostgreSQL 17.")
        with timeout(case, scope, "transaction_timeout", "200ms") as database:
            case.proxy.stop_at(point)
            [attempt] = case.attempts(1, database=database)
            at = case.proxy.wait_until_stopped()
            attempt.cut()
            wait_until(lambda: not case.has_session(at.backend_pid), what="the session ended")
            case.proxy.go_on()
            result = attempt.result()
            assert result.error in (REFUSED_BY_TIMEOUT if point == BEFORE_LOCK else ENDED_BY_TIMEOUT)
            case.check()
        assert ended(attempt) == [("failed", result.error)]

    @pytest.mark.fault("idle_session_timeout", step="before the attempt")
    @pytest.mark.parametrize("max_age", [0, None], ids=["request", "kept"])
    def test_between_two_runs(self, case: Case, max_age: int | None, scope: str) -> None:
        with timeout(case, scope, "idle_session_timeout", "200ms") as database:
            first, second = case.attempts(2, database={**database, "CONN_MAX_AGE": max_age})
            first.result()
            wait_until(lambda: not case.proxy.sessions, what="the session ended")
            second.go()
            assert second.result().outcome == "acquired"
            case.check()
        assert ended(second) == [("succeeded", "")]
