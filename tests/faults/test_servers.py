"""The server is shut down, killed, restarted, full, or takes no writes, at each step of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from django_singlecron.models import JobRun
from tests.faults.clusters import Cluster, Clusters
from tests.faults.marks import at_each_point, at_points
from tests.faults.server_cases import ServerCase
from tests.faults.steps import (
    AFTER_ATTEMPT,
    AFTER_COMMIT,
    AFTER_LOCK,
    AFTER_MARK,
    BEFORE_ATTEMPT,
    BEFORE_COMMIT,
    BEFORE_LOCK,
    BEFORE_MARK,
    BEFORE_WRITE,
    CONNECTING,
    Point,
)

ENDS: dict[str, Callable[[Cluster], None]] = {
    "fast shutdown": lambda cluster: cluster.stop("fast"),
    "immediate shutdown": lambda cluster: cluster.stop("immediate"),
    "kill -9 of the postmaster": Cluster.kill,
}


# What a run is recorded as whose server ended there, and came back before the run noticed: it says itself how it ended.
STATUS_AFTER_RESTART = {
    CONNECTING: "succeeded",
    BEFORE_ATTEMPT: None,
    # The answer was lost, so the replica does not know of its attempt; the next attempt marks it.
    AFTER_ATTEMPT: "lost",
    AFTER_COMMIT: "succeeded",
}


def statuses(server: ServerCase) -> list[str]:
    """The statuses of all attempts but the checker's."""
    rows = JobRun.objects.exclude(arguments__contains="again-").order_by("id")
    return list(rows.values_list("status", flat=True))


@at_each_point
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.fault("{end}, restart")
def test_a_server_that_ends_and_is_back(server: ServerCase, end: str, point: Point) -> None:
    attempt = server.cut_at(point)
    ENDS[end](server.cluster)
    server.cluster.start()
    server.let_notice(point)
    result = attempt.result()
    server.check()
    status = STATUS_AFTER_RESTART.get(point, "failed")
    assert statuses(server) == [status][: status is not None]
    assert result.outcome == ("acquired" if point == CONNECTING else "raised")


@at_points(CONNECTING, BEFORE_ATTEMPT, AFTER_ATTEMPT, BEFORE_LOCK, BEFORE_WRITE, AFTER_MARK, AFTER_COMMIT)
@pytest.mark.parametrize("end", ["fast shutdown", "kill -9 of the postmaster"])
@pytest.mark.fault("{end}, down when the run ends")
def test_a_server_that_stays_down_until_the_run_has_ended(server: ServerCase, end: str, point: Point) -> None:
    attempt = server.cut_at(point)
    ENDS[end](server.cluster)
    try:
        server.let_notice(point)
        assert attempt.result().outcome == "raised"
        refused = server.attempt(direct=True).result()
        assert (refused.outcome, refused.error) == ("raised", "DatabaseUnavailable")
    finally:
        server.cluster.start()
    server.check()
    # Nobody could say how it ended, but for the success that was committed.
    expected = {CONNECTING: [], BEFORE_ATTEMPT: [], AFTER_COMMIT: ["succeeded"]}
    assert statuses(server) == expected.get(point, ["lost"])


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.fault("{end}, restart", step=BEFORE_WRITE.name)
def test_another_replica_runs_the_job_as_soon_as_the_server_is_back(server: ServerCase, end: str) -> None:
    first = server.cut_at(BEFORE_WRITE)
    ENDS[end](server.cluster)
    server.cluster.start()
    # The first does not know yet that its session is gone.
    second = server.attempt(direct=True)
    assert second.result().outcome == "acquired"
    server.proxy.go_on()
    assert first.result().outcome == "raised"
    server.check()
    assert (first.row.status, second.row.status) == ("failed", "succeeded")


@contextmanager
def no_connection_left(server: ServerCase) -> Iterator[None]:
    """Take every connection that the server has to give."""
    with ExitStack() as stack:
        server.cluster.use_up_connections(stack)
        yield


@at_points(CONNECTING, BEFORE_WRITE, BEFORE_COMMIT)
@pytest.mark.fault("max_connections reached")
def test_no_connection_is_left(server: ServerCase, point: Point) -> None:
    attempt, _ = server.stopped_at(point)
    with no_connection_left(server):
        refused = server.attempt(direct=True).result()
        assert (refused.outcome, refused.error) == ("raised", "DatabaseUnavailable")
        assert "too many clients" in refused.message
        server.proxy.go_on()
        result = attempt.result()
        attempt.code()
    server.check()
    # A run has its connection, and keeps it.
    assert result.outcome == ("raised" if point == CONNECTING else "acquired")


@at_points(BEFORE_WRITE, AFTER_MARK, AFTER_COMMIT)
@pytest.mark.fault("session ended, max_connections reached")
def test_no_connection_is_left_to_record_the_end_on(server: ServerCase, point: Point) -> None:
    attempt = server.cut_at(point)
    # It comes back to record how it ended, and others are there first.
    server.proxy.stop_at(CONNECTING)
    server.proxy.reset()
    server.proxy.wait_until_stopped()
    with no_connection_left(server):
        server.proxy.go_on()
        assert attempt.result().outcome == "raised"
        attempt.code()
    server.check()
    assert attempt.row.status == ("succeeded" if point == AFTER_COMMIT else "lost")


@contextmanager
def read_only(cluster: Cluster) -> Iterator[None]:
    """Let the server refuse writes in every transaction that begins in the block."""
    cluster.set(default_transaction_read_only="on")
    try:
        yield
    finally:
        cluster.set(default_transaction_read_only=None)


@at_points(CONNECTING, AFTER_ATTEMPT, BEFORE_LOCK, BEFORE_WRITE, BEFORE_COMMIT)
@pytest.mark.fault("read-only mode")
def test_the_server_turns_read_only(server: ServerCase, point: Point) -> None:
    # Its end can be recorded no more than its work.
    attempt = server.cut_at(point)
    with read_only(server.cluster):
        refused = server.attempt(direct=True).result()
        assert (refused.outcome, refused.error) == ("raised", "ReadOnlyDatabase")
        server.proxy.go_on()
        result = attempt.result()
        attempt.code()
    server.check()
    # A transaction that began before is let finish.
    assert result.outcome == ("raised" if point in (CONNECTING, AFTER_ATTEMPT) else "acquired")


TAKE_ALL_LOCKS = """
DO $$
BEGIN
    FOR number IN 1..1000000 LOOP
        PERFORM pg_advisory_lock(number);
    END LOOP;
EXCEPTION WHEN out_of_memory THEN
END $$
"""


@contextmanager
def no_lock_left(cluster: Cluster) -> Iterator[None]:
    """Take every place in the server's table of locks."""
    hog = cluster.connect(NAME="postgres")
    try:
        with hog.cursor() as cursor:
            # The locks of a session stay when the block that took them fails.
            cursor.execute(TAKE_ALL_LOCKS)
            cursor.execute("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid()")
            assert cursor.fetchone()[0] > 1000
            yield
            # Before the connection goes, which the server notices later.
            cursor.execute("SELECT pg_advisory_unlock_all()")
    finally:
        hog.close()


@at_points(CONNECTING, BEFORE_ATTEMPT, AFTER_ATTEMPT, BEFORE_LOCK, AFTER_LOCK, BEFORE_WRITE, BEFORE_MARK, BEFORE_COMMIT)
@pytest.mark.fault("lock table full")
def test_the_table_of_locks_is_full(server: ServerCase, point: Point) -> None:
    attempt = server.cut_at(point)
    with no_lock_left(server.cluster):
        refused = server.attempt(direct=True).result()
        assert (refused.outcome, refused.error) == ("raised", "DatabaseUnavailable")
        assert "out of shared memory" in refused.message
        server.proxy.go_on()
        result = attempt.result()
        attempt.code()
    server.check()
    # What has its lock and has written needs no more of them.
    assert result.outcome == ("acquired" if point in (BEFORE_MARK, BEFORE_COMMIT) else "raised")


@pytest.mark.fault("a standby as the target", step=CONNECTING.name)
def test_a_standby_is_refused(server: ServerCase, clusters: Clusters) -> None:
    standby = clusters.standby(server.cluster)
    try:
        [attempt] = server.attempts(1, database=standby.database())
        result = attempt.result()
        attempt.code()
        assert (result.outcome, result.error) == ("raised", "ReadOnlyDatabase")
        assert "primary" in result.message
    finally:
        clusters.remove(standby)
        server.cluster.fetch("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
    server.check()
    assert statuses(server) == []
