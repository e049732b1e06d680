"""A standby is promoted while the old primary is still up: what is excluded then, and what is not.

Two primaries know nothing of each other's locks. Each excludes whoever asks it, and no more. What holds is told by the
history of the server that goes on: what reads "succeeded" there has its work there, once for each slot.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from pytest_django.plugin import DjangoDbBlocker

from tests.faults.checker import default_connection
from tests.faults.clusters import Cluster, Clusters, wait_until_caught_up
from tests.faults.marks import at_points
from tests.faults.replicas import Attempt, Workers
from tests.faults.server_cases import ServerCase, server_case, settings_of
from tests.faults.steps import (
    AFTER_ATTEMPT,
    AFTER_COMMIT,
    BEFORE_ATTEMPT,
    BEFORE_COMMIT,
    BEFORE_LOCK,
    BEFORE_WRITE,
    Point,
)
from tests.faults.witness import RESULT
from tests.support.deadlines import wait_until

WAITS_FOR_STANDBY = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


class Pair:
    """A primary with its standby, and replicas that go to the primary through a proxy."""

    def __init__(self, primary: Cluster, standby: Cluster, case: ServerCase) -> None:
        self.primary = primary
        self.standby = standby
        self.case = case

    def promote(self) -> None:
        """Make a second primary of the standby, with what it has received. From now on it is the one that counts."""
        self.standby.promote()
        self.case.cluster = self.standby

    def cut_standby_off(self) -> None:
        """Let the standby receive nothing any more."""
        self.standby.set(primary_conninfo="")
        query = "SELECT count(*) FROM pg_stat_wal_receiver"
        wait_until(lambda: self.standby.fetch(query) == [(0,)], what="the standby receives nothing")

    def wait_for_standby(self) -> None:
        """Let the primary answer a COMMIT only when the standby has it as well."""
        self.primary.set(synchronous_standby_names=self.standby.directory.name)
        query = "SELECT sync_state FROM pg_stat_replication"
        wait_until(lambda: self.primary.fetch(query) == [("sync",)], what="the standby is synchronous")

    def attempt_on(self, *clusters: Cluster, **arguments: Any) -> Attempt:
        """Start a replica that goes to the first of these that takes writes."""
        return self.case.attempts(1, database=settings_of(*clusters), **arguments)[0]

    def attempt_anywhere(self, point: Point, **arguments: Any) -> Attempt:
        """Start a replica that goes to the old primary through the proxy, or to whoever takes writes in its place.

        It is stopped at a point of its run.
        """
        self.case.proxy.stop_at(point)
        both = {
            "HOST": f"127.0.0.1,{self.standby.directory}",
            "PORT": f"{self.case.proxy.port},{self.standby.port}",
        }
        [attempt] = self.case.attempts(1, database={**settings_of(self.primary), **both}, **arguments)
        self.case.proxy.wait_until_stopped()
        return attempt

    @contextmanager
    def history_of(self, cluster: Cluster) -> Iterator[None]:
        """Ask this server what became of the runs."""
        with default_connection(cluster.connect()):
            yield
            connections["default"].close()

    def status(self, attempt: Attempt, cluster: Cluster) -> list[str]:
        with self.history_of(cluster):
            return [row.status for row in attempt.rows]

    def check(self, **options: Any) -> None:
        """Check what went on, by the history of the new primary."""
        with self.history_of(self.standby):
            self.case.check(**options)


@pytest.fixture
def pair(
    workers: Workers, clusters: Clusters, shared_cluster: Cluster, tmp_path: Path, django_db_blocker: DjangoDbBlocker
) -> Iterator[Pair]:
    with django_db_blocker.unblock():
        primary = clusters.primary("old")
        standby = None
        try:
            with server_case(workers, primary, tmp_path) as case:
                standby = clusters.standby(primary, "new")
                # Two primaries give the same ids, of which the checker makes no sense. The standby learns of this one
                # that it is taken, with the next 32.
                primary.fetch("SELECT nextval('django_singlecron_jobrun_id_seq')")
                wait_until_caught_up(primary, standby)
                yield Pair(primary, standby, case)
        finally:
            if standby is not None:
                clusters.remove(standby)
            clusters.remove(primary)


at_some_points = at_points(BEFORE_ATTEMPT, AFTER_ATTEMPT, BEFORE_LOCK, BEFORE_WRITE, BEFORE_COMMIT, AFTER_COMMIT)


@at_some_points
@pytest.mark.fault("failover, the old primary is dead")
def test_a_replica_fails_over_with_its_database(pair: Pair, point: Point) -> None:
    first = pair.attempt_anywhere(point)
    wait_until_caught_up(pair.primary, pair.standby)
    first.cut()
    pair.primary.kill()
    pair.promote()
    second = pair.attempt_on(pair.primary, pair.standby)
    assert second.result().outcome == "acquired"
    # The dead host refuses connections, and the next one is tried.
    pair.case.proxy.close()
    assert first.result().outcome == "raised"
    pair.check()
    # It recorded its own end on the new primary, if it knew of its attempt.
    expected = {BEFORE_ATTEMPT: [], AFTER_ATTEMPT: ["lost"], AFTER_COMMIT: ["succeeded"]}
    assert pair.status(first, pair.standby) == expected.get(point, ["failed"])


@at_some_points
@pytest.mark.fault("failover, the old primary is still up")
def test_two_primaries_do_not_exclude_each_other(pair: Pair, point: Point) -> None:
    first, _ = pair.case.stopped_at(point)
    wait_until_caught_up(pair.primary, pair.standby)
    # It may go on, and commit where nobody will look.
    first.cut()
    pair.promote()
    second = pair.attempt_on(pair.standby)
    assert second.result().outcome == "acquired"
    pair.case.proxy.go_on()
    result = first.result()
    assert result.outcome == "acquired"
    assert pair.status(first, pair.primary) == ["succeeded"]
    # The history that counts is right about what is in its database.
    expected = {BEFORE_ATTEMPT: [], AFTER_COMMIT: ["succeeded"]}
    pair.check(unreachable=[] if point == AFTER_COMMIT else [result.run])
    assert pair.status(first, pair.standby) == expected.get(point, ["lost"])


@pytest.mark.fault("failover, success not replicated", step=AFTER_COMMIT.name)
def test_a_slot_whose_success_the_standby_lacks_is_run_again(pair: Pair) -> None:
    first, _ = pair.case.stopped_at(BEFORE_COMMIT, "monthly")
    wait_until_caught_up(pair.primary, pair.standby)
    pair.cut_standby_off()
    first.cut()
    pair.case.proxy.go_on()
    result = first.result()
    assert result.outcome == "acquired"
    pair.primary.kill()
    pair.promote()
    second = pair.attempt_on(pair.standby, job="monthly")
    assert second.result().outcome == "acquired"
    pair.check(unreachable=[result.run])
    assert pair.status(first, pair.standby) == ["lost"]
    assert pair.status(second, pair.standby) == ["succeeded"]


@pytest.mark.fault("failover, success not replicated")
def test_ids_that_the_standby_does_not_know_of_are_given_again(pair: Pair) -> None:
    take = "SELECT nextval('django_singlecron_jobrun_id_seq') FROM generate_series(1, %s)"
    pair.cut_standby_off()
    old = {number for (number,) in pair.primary.fetch(take, [40])}
    pair.promote()
    new = {number for (number,) in pair.standby.fetch(take, [40])}
    assert old & new
    pair.check()


@pytest.mark.fault("failover, synchronous standby", step=AFTER_COMMIT.name)
def test_a_slot_whose_success_was_answered_is_never_run_again(pair: Pair) -> None:
    pair.wait_for_standby()
    first, _ = pair.case.stopped_at(AFTER_COMMIT, "monthly")
    pair.promote()
    # Both primaries say so, and the one that is still up answers no COMMIT any more.
    second = pair.attempt_on(pair.standby, job="monthly")
    assert (second.result().outcome, second.result().reason) == ("skipped", "already_ran")
    pair.case.proxy.go_on()
    assert first.result().outcome == "acquired"
    pair.check()


@pytest.mark.fault("failover, synchronous standby", step=BEFORE_COMMIT.name)
def test_a_success_that_the_standby_lacks_is_never_answered(pair: Pair) -> None:
    pair.wait_for_standby()
    first = pair.attempt_anywhere(BEFORE_COMMIT, job="monthly")
    pair.cut_standby_off()
    first.cut()
    pair.case.proxy.go_on()
    wait_until(lambda: pair.primary.fetch(WAITS_FOR_STANDBY) == [(1,)], what="the COMMIT waits for the standby")
    pair.promote()
    second = pair.attempt_on(pair.standby, job="monthly")
    assert second.result().outcome == "acquired"
    assert pair.case.witness.find(RESULT, attempt=first.name) is None
    # Somebody shuts the old primary down at last.
    pair.primary.stop()
    assert first.result().outcome == "raised"
    pair.check()
    assert pair.status(first, pair.standby) == ["failed"]
    assert pair.status(second, pair.standby) == ["succeeded"]
