"""The network between a replica's host and the server's: packets vanish, and hosts do, without a word to anybody."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from pytest_django.plugin import DjangoDbBlocker

from django_singlecron.locks.postgres import UNACKNOWLEDGED
from tests.faults.clusters import Clusters
from tests.faults.jobs import BETWEEN
from tests.faults.networks import ADDRESSES, REPLICA, SERVER, Network, network_between_hosts
from tests.faults.replicas import Attempt, Workers
from tests.faults.server_cases import ServerCase, server_case
from tests.faults.steps import AFTER_WRITE
from tests.support.deadlines import wait_until
from tests.support.pgbouncer import running
from tests.support.replicas import Replicas

BOUND = UNACKNOWLEDGED
"""Seconds after which the lock of a host that vanished is free; twice as long if it was sent an answer meanwhile."""

SLACK = 15
"""Seconds that a busy machine may take on top."""

# What docs/reference.md advises.
ADVISED = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}

# What docs/pgbouncer.md advises.
ADVISED_OF_PGBOUNCER = {
    "tcp_keepidle": "10",
    "tcp_keepintvl": "5",
    "tcp_keepcnt": "3",
    "tcp_user_timeout": "25000",
}

# What the run is at when the network goes dark, and within how many seconds its lock is free then.
HOLDERS: Mapping[str, tuple[list[Any], int]] = {
    "idle in transaction": (["pause", 8], BOUND),
    "a statement": (["pg_sleep", 600], BOUND),
    "an answer into the silence": (["pg_sleep", 6], 2 * BOUND),
    "an answer at the last moment": (["pg_sleep", 22], 2 * BOUND),
    "megabytes into the silence": (["megabytes", 6], 2 * BOUND),
}

pytestmark = pytest.mark.timeout(240)


class NetworkCase:
    """Replicas on one host, and their server on another."""

    def __init__(self, network: Network, case: ServerCase) -> None:
        self.network = network
        self.case = case

    def hold(self, acts: Mapping[str, list[Any]], port: str = "") -> dict[str, Attempt]:
        """Start a run for each of these acts, in a lane of that name, and wait until all are at it.

        Arguments: the `port` of the server's host to connect to, unless it is the server's.
        """
        cluster = self.case.cluster
        database = cluster.database(HOST=ADDRESSES[SERVER][0], PORT=port or cluster.port, OPTIONS=ADVISED)
        started = {
            lane: self.case.attempts(1, database=database, lane=lane, acts={BETWEEN: act})[0]
            for lane, act in acts.items()
        }
        # Idle in the transaction after its first write, or in a statement that takes time.
        telling = {"pause": "write 1", "pg_sleep": "pg_sleep", "megabytes": "pg_sleep"}

        def are_at_it() -> bool:
            queries = {self._lane(session): session.query for session in self.case.watcher.run_sessions()}
            return all(telling[act[0]] in queries.get(lane, "") for lane, act in acts.items())

        wait_until(are_at_it, what="all runs are at their act")
        # A host acknowledges what it received up to a fifth of a second later.
        time.sleep(0.5)
        return started

    def held(self) -> set[str]:
        """The lanes whose lock is held."""
        return {self._lane(session) for session in self.case.watcher.run_sessions()}

    def seconds_until_free(self, lanes: Mapping[str, int]) -> dict[str, float]:
        """Wait until the locks of all lanes are free, each within so many seconds; return after how many each was."""
        began, free = time.monotonic(), dict[str, float]()

        def all_free() -> bool:
            held = self.held()
            seconds = time.monotonic() - began
            free.update({lane: seconds for lane in lanes if lane not in held and lane not in free})
            late = [lane for lane, bound in lanes.items() if lane not in free and seconds > bound + SLACK]
            assert not late, f"After {seconds:.0f} s still held: {late}"
            return len(free) == len(lanes)

        wait_until(all_free, what="the locks are free", seconds=max(lanes.values()) + SLACK + 1)
        print("The lock was free after " + ", ".join(f"{free[lane]:.1f} s: {lane}" for lane in lanes))
        return free

    @staticmethod
    def _lane(session: Any) -> str:
        lane: str = session.application_name.partition(" faults-")[2]
        return lane


@pytest.fixture
def hosts(clusters: Clusters, tmp_path: Path, django_db_blocker: DjangoDbBlocker) -> Iterator[NetworkCase]:
    with django_db_blocker.unblock(), network_between_hosts() as network:
        enter = network.enter(SERVER)
        cluster = clusters.primary("far", enter, listen_addresses=ADDRESSES[SERVER][0])
        replicas = Replicas(cluster.url())
        try:
            workers = Workers(replicas, network.enter(REPLICA))
            with server_case(workers, cluster, tmp_path) as case:
                yield NetworkCase(network, case)
        finally:
            replicas.destroy()
            clusters.remove(cluster)


@pytest.mark.fault("black hole", step=AFTER_WRITE.name)
def test_the_lock_of_a_host_in_the_dark_is_free_within_the_stated_time(hosts: NetworkCase) -> None:
    direct = connections["default"]
    place = {"enter": hosts.network.enter(SERVER), "listen_addr": ADDRESSES[SERVER][0]}
    with running(direct, pool_size=10, **place, **ADVISED_OF_PGBOUNCER) as bouncer:
        holders = hosts.hold({lane: act for lane, (act, _) in HOLDERS.items()})
        pooled = {f"{lane}, PgBouncer": holder for lane, holder in HOLDERS.items()}
        holders |= hosts.hold({lane: act for lane, (act, _) in pooled.items()}, bouncer.database["PORT"])
        for attempt in holders.values():
            attempt.cut()
        hosts.network.cut()
        began = time.monotonic()
        hosts.seconds_until_free({lane: bound for lane, (_, bound) in {**HOLDERS, **pooled}.items()})
        # The other side, still in the dark, by the settings that are advised: each replica has noticed, has tried to
        # record it, and has ended.
        for attempt in holders.values():
            result = attempt.result()
            assert (result.outcome, result.error) == ("raised", "OperationalError")
            attempt.code()
        assert time.monotonic() - began < 3 * BOUND + SLACK
        hosts.network.mend()
    hosts.case.check()
    assert {attempt.row.status for attempt in holders.values()} == {"lost"}


@pytest.mark.fault("half-open: the replica's host restarts", step=AFTER_WRITE.name)
def test_the_lock_of_a_host_that_was_restarted_is_free_as_soon(hosts: NetworkCase) -> None:
    holders = hosts.hold({"idle": ["pause", 600], "statement": ["pg_sleep", 600]})
    hosts.network.cut()
    for attempt in holders.values():
        attempt.signal(signal.SIGKILL)
    hosts.network.replace(REPLICA)
    hosts.network.mend()
    hosts.seconds_until_free(dict.fromkeys(holders, BOUND))
    hosts.case.check()
    assert {attempt.row.status for attempt in holders.values()} == {"lost"}


@pytest.mark.fault("half-open: the server's host restarts", step=AFTER_WRITE.name)
def test_a_replica_notices_that_its_server_was_restarted(hosts: NetworkCase) -> None:
    holders = hosts.hold({"idle": ["pause", 10], "statement": ["pg_sleep", 600]})
    for attempt in holders.values():
        attempt.cut()
    hosts.network.cut()
    hosts.case.cluster.kill()
    hosts.network.replace(SERVER)
    hosts.case.cluster.start()
    hosts.network.mend()
    began = time.monotonic()
    for attempt in holders.values():
        result = attempt.result()
        assert (result.outcome, result.error) == ("raised", "OperationalError")
    assert time.monotonic() - began < BOUND + SLACK
    hosts.case.check()
    assert {attempt.row.status for attempt in holders.values()} == {"failed"}


@pytest.mark.fault("a reader that stands still", step=AFTER_WRITE.name)
def test_a_job_that_reads_nothing_of_what_it_asked_for_says_how_long_it_may(hosts: NetworkCase) -> None:
    # The role's own limit stands, here one that is shorter than the package's.
    options = {"options": "-c tcp_user_timeout=2s"}
    database = hosts.case.cluster.database(HOST=ADDRESSES[SERVER][0], OPTIONS=options)
    results = {}
    for may_take in (None, "10min"):
        act = ["read slowly", 5, may_take]
        [attempt] = hosts.case.attempts(1, database=database, lane=f"reader-{may_take}", acts={BETWEEN: act})
        if may_take is None:
            attempt.cut()
        results[may_take] = attempt.result().outcome
    assert results == {None: "raised", "10min": "acquired"}
    hosts.case.check()
