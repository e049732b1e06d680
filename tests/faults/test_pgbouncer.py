"""Behind PgBouncer: it is restarted, has no connection to give, resets what it lends, and pools as it is told."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db.backends.postgresql.psycopg_any import is_psycopg3
from pytest_django.plugin import DjangoDbBlocker

from django_singlecron.models import JobRun
from tests.faults.clusters import Cluster
from tests.faults.jobs import BETWEEN
from tests.faults.marks import at_points
from tests.faults.replicas import Workers
from tests.faults.server_cases import ServerCase, server_case
from tests.faults.steps import (
    AFTER_ATTEMPT,
    AFTER_COMMIT,
    AFTER_WRITE,
    BEFORE_ATTEMPT,
    BEFORE_COMMIT,
    BEFORE_LOCK,
    BEFORE_WRITE,
    CONNECTING,
    POINTS,
    Point,
)
from tests.faults.witness import CUT
from tests.support.pgbouncer import PgBouncer, running


class PooledCase:
    """Replicas that come through a proxy and PgBouncer."""

    def __init__(self, case: ServerCase, bouncer: PgBouncer) -> None:
        self.case = case
        self.bouncer = bouncer

    def check(self, **options: Any) -> None:
        # Without the connections that PgBouncer keeps.
        self.bouncer.end()
        self.case.check(**options)

    @contextmanager
    def busy_pool(self, clients: int = 1) -> Iterator[None]:
        """Let other clients have server connections for as long as the block lasts."""
        with ExitStack() as stack:
            for _ in range(clients):
                other = self.case.cluster.connect(**self.place)
                stack.callback(other.close)
                cursor = stack.enter_context(other.cursor())
                cursor.execute("BEGIN")
                cursor.execute("SELECT 1")
            yield

    @property
    def place(self) -> dict[str, str]:
        return {name: self.bouncer.database[name] for name in ("HOST", "PORT")}

    def database(self, **options: Any) -> Mapping[str, Any]:
        """Django's settings to go through PgBouncer, without the proxy."""
        return self.case.cluster.database(**self.place, OPTIONS=options)


@pytest.fixture
def start(
    workers: Workers, shared_cluster: Cluster, tmp_path: Path, django_db_blocker: DjangoDbBlocker
) -> Iterator[Callable[..., PooledCase]]:
    """Starts PgBouncer with a pool of a size and with settings of its own."""
    with django_db_blocker.unblock(), ExitStack() as stack:

        def start(pool_size: int = 5, **settings: str) -> PooledCase:
            direct = shared_cluster.connect()
            bouncer = stack.enter_context(running(direct, pool_size=pool_size, **settings))
            case = stack.enter_context(server_case(workers, shared_cluster, tmp_path, bouncer.socket))
            return PooledCase(case, bouncer)

        yield start


# psycopg2 does not tell what PgBouncer says before it closes a connection.
IS_MUTE = not is_psycopg3


both_modes = pytest.mark.parametrize("mode", ["transaction", "session"])
kinds_of_end = pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["kill -9", "SIGTERM"])

# What a run is recorded as whose PgBouncer was ended there and is back before the run notices.
STATUSES = {CONNECTING: ["succeeded"], BEFORE_ATTEMPT: [], AFTER_ATTEMPT: ["lost"], AFTER_COMMIT: ["succeeded"]}


@at_points(*POINTS)
@both_modes
@pytest.mark.fault("PgBouncer killed, restart, {mode} mode")
def test_pgbouncer_is_killed_and_is_back(start: Callable[..., PooledCase], mode: str, point: Point) -> None:
    pooled = start(pool_mode=mode)
    attempt = pooled.case.cut_at(point)
    pooled.bouncer.end()
    pooled.bouncer.start()
    pooled.case.let_notice(point)
    assert attempt.result().outcome == ("acquired" if point == CONNECTING else "raised")
    pooled.check()
    assert [row.status for row in attempt.rows] == STATUSES.get(point, ["failed"])


@at_points(BEFORE_ATTEMPT, BEFORE_LOCK, BEFORE_WRITE, AFTER_COMMIT)
@kinds_of_end
@pytest.mark.fault("PgBouncer ended, others run meanwhile")
def test_another_replica_runs_the_job_without_pgbouncer(
    start: Callable[..., PooledCase], how: signal.Signals, point: Point
) -> None:
    pooled = start()
    attempt = pooled.case.cut_at(point)
    pooled.bouncer.end(how)
    other = pooled.case.attempt(direct=True)
    # It cannot come before the lock is free, and that is as soon as PgBouncer's connection to the server is gone.
    assert other.result().outcome in ("acquired", "skipped")
    pooled.case.let_notice(point)
    assert attempt.result().outcome == "raised"
    attempt.code()
    pooled.bouncer.start()
    pooled.check()


@both_modes
@pytest.mark.fault("pool exhausted, {mode} mode", step=CONNECTING.name)
def test_an_attempt_waits_for_a_connection_of_the_pool(start: Callable[..., PooledCase], mode: str) -> None:
    pooled = start(pool_size=2, pool_mode=mode)
    with pooled.busy_pool(2):
        attempt = pooled.case.attempt()
        pooled.case.witness.wait_for("attempt", attempt=attempt.name)
        # Not stopped by anything but the pool.
        assert pooled.case.witness.find("result", attempt=attempt.name) is None
    assert attempt.result().outcome == "acquired"
    pooled.check()


@at_points(CONNECTING, AFTER_ATTEMPT)
@pytest.mark.fault("query_wait_timeout")
def test_an_attempt_that_waits_too_long_for_a_connection_is_refused(
    start: Callable[..., PooledCase], point: Point
) -> None:
    pooled = start(pool_size=1, query_wait_timeout="1")
    attempt = pooled.case.cut_at(point)
    with pooled.busy_pool():
        pooled.case.proxy.go_on()
        result = attempt.result()
        assert (result.outcome, result.error) == ("raised", "DatabaseUnavailable")
        assert IS_MUTE or "query_wait_timeout" in result.message
        attempt.code()
    pooled.check()
    # When it had been made, its end could not be recorded either.
    assert [row.status for row in attempt.rows] == ([] if point == CONNECTING else ["lost"])


@pytest.mark.fault("max_client_conn reached", step=CONNECTING.name)
def test_an_attempt_that_pgbouncer_lets_not_in_is_refused(start: Callable[..., PooledCase]) -> None:
    pooled = start(max_client_conn="1")
    with pooled.busy_pool():
        result = pooled.case.attempt().result()
        assert (result.outcome, result.error) == ("raised", "DatabaseUnavailable")
        assert "max_client_conn" in result.message
    pooled.check()


@at_points(BEFORE_LOCK, BEFORE_WRITE, BEFORE_COMMIT)
@both_modes
@pytest.mark.fault("server_reset_query, {mode} mode")
def test_what_pgbouncer_resets_is_not_needed(start: Callable[..., PooledCase], mode: str, point: Point) -> None:
    pooled = start(pool_size=2, pool_mode=mode, server_reset_query="DISCARD ALL", server_reset_query_always="1")
    attempt, _ = pooled.case.stopped_at(point)
    if point != BEFORE_LOCK:
        assert pooled.case.attempt(direct=True).result().outcome == "skipped"
        [other] = pooled.case.attempts(1, database=pooled.database())
        assert other.result().outcome == "skipped"
    pooled.case.proxy.go_on()
    assert attempt.result().outcome == "acquired"
    pooled.check()


@both_modes
@pytest.mark.fault("idle_transaction_timeout, {mode} mode", step=AFTER_WRITE.name)
def test_pgbouncer_ends_a_run_that_is_quiet_too_long(start: Callable[..., PooledCase], mode: str) -> None:
    pooled = start(pool_mode=mode, idle_transaction_timeout="1")
    attempt = pooled.case.attempt(acts={BETWEEN: ["pause", 4]})
    result = attempt.result()
    assert IS_MUTE or "idle transaction timeout" in result.message
    pooled.check()
    assert attempt.row.status == "failed"


@both_modes
@pytest.mark.parametrize("act", ["raise", "kill", "close"])
@pytest.mark.fault("{act} in the job, {mode} mode", step=AFTER_WRITE.name)
def test_a_run_that_fails_leaves_nothing_to_the_next_client(
    start: Callable[..., PooledCase], mode: str, act: str
) -> None:
    pooled = start(pool_size=1, pool_mode=mode)
    failing = pooled.case.attempt(acts={BETWEEN: [act]})
    failing.code()
    [after] = pooled.case.attempts(1, database=pooled.database())
    assert after.result().outcome == "acquired"
    pooled.check()
    assert failing.row.status in ("failed", "lost")


@pytest.mark.skipif(not is_psycopg3, reason="psycopg2 prepares no statements")
@both_modes
@pytest.mark.fault("prepared statements on, {mode} mode", step=BEFORE_ATTEMPT.name)
def test_prepared_statements(start: Callable[..., PooledCase], mode: str) -> None:
    pooled = start(pool_size=2, pool_mode=mode)
    database = pooled.database(prepare_threshold=0, server_side_binding=True)
    attempts = [each for _ in range(4) for each in pooled.case.attempts(3, database=database)]
    for attempt in attempts:
        attempt.go()
    outcomes = {attempt.result().outcome for attempt in attempts}
    # In transaction mode another client's connection does not know them, unless PgBouncer sees to that
    # (max_prepared_statements, of 1.21): such an attempt is refused or fails.
    if mode == "transaction":
        # Its end cannot always be recorded either, and reads "lost" then.
        for row in JobRun.objects.all():
            pooled.case.witness.note(CUT, run=row.pk)
    else:
        assert outcomes <= {"acquired", "skipped"}
    pooled.check(seconds=40)


@pytest.mark.fault("statement pooling", step=BEFORE_ATTEMPT.name)
def test_statement_pooling_is_refused_before_anything_runs(start: Callable[..., PooledCase]) -> None:
    pooled = start(pool_mode="statement")
    attempt = pooled.case.attempt()
    result = attempt.result()
    assert result.outcome == "raised"
    assert "did not run" in result.message
    assert IS_MUTE or "pool_mode = transaction" in result.message
    assert pooled.case.witness.find("begin", attempt=attempt.name) is None
    pooled.check()
