"""The faults of the soak: each hits what is on at its moment, tells the witness whom, and makes good in the end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from django.db import OperationalError

from tests.faults.clusters import Cluster
from tests.faults.proxy import Stopped
from tests.faults.steps import POINTS
from tests.faults.witness import CUT, TROUBLE, Witness
from tests.soak.fleet import Fleet, SoakReplica
from tests.support.deadlines import wait_until
from tests.support.pgbouncer import PgBouncer

# A run, as its session calls itself from its lock to its end.
RUNS = """
SELECT pid, split_part(split_part(application_name, '/', 2), ' ', 1)::bigint FROM pg_stat_activity
WHERE application_name LIKE 'singlecron/%%' AND datname = %s ORDER BY pid
"""
ONE_RUN = "FROM pg_stat_activity WHERE pid = %s AND application_name LIKE 'singlecron/' || %s || ' %%'"
TERMINATE_RUN = f"SELECT pg_terminate_backend(pid) {ONE_RUN}"
CANCEL_RUN = f"SELECT pg_cancel_backend(pid) {ONE_RUN}"
TERMINATE_IDLE = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = %s AND backend_type = 'client backend' AND pid <> pg_backend_pid() AND state = 'idle'
"""
DELETE_ROW = "DELETE FROM django_singlecron_jobrun WHERE id = %s AND status = 'running' RETURNING id"
LOCK_HISTORY = """
SET lock_timeout = '5s'; BEGIN; LOCK TABLE django_singlecron_jobrun IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep({});
COMMIT
"""

SECONDS_TO_HIT = 3.0
"""How long a fault waits for something that it can hit."""


class Missed(Exception):
    """There was nothing to hit."""


@dataclass
class Injector:
    """Brings faults about."""

    fleet: Fleet
    cluster: Cluster
    bouncer: PgBouncer | None
    witness: Witness
    deleted: set[int] = field(default_factory=set)
    """Runs whose rows were deleted while they were on."""

    def kinds(self) -> dict[str, tuple[int, Callable[[Random], None]]]:
        """The faults by name, with how often each is drawn."""
        kinds: dict[str, tuple[int, Callable[[Random], None]]] = {
            "kill -9": (10, partial(self.end_process, signal.SIGKILL)),
            "SIGTERM": (8, partial(self.end_process, signal.SIGTERM)),
            "SIGINT": (8, self.interrupt),
            "SIGSTOP, SIGCONT": (8, self.stop_process),
            "SIGSTOP, session ended meanwhile": (5, self.stop_process_and_end_session),
            "pg_terminate_backend": (10, self.terminate_run),
            "pg_terminate_backend of idle sessions": (3, self.terminate_idle),
            "pg_cancel_backend": (8, self.cancel_run),
            "RST": (10, self.reset),
            "black hole": (5, self.go_dark),
            "stopped at a step, RST": (8, partial(self.stop_at_step, self._reset_stopped)),
            "stopped at a step, kill -9": (8, partial(self.stop_at_step, self._kill_stopped)),
            "stopped at a step, session ended": (8, partial(self.stop_at_step, self._terminate_stopped)),
            "stopped at a step, goes on": (4, partial(self.stop_at_step, self._let_go_on)),
            "server: fast restart": (2, partial(self.restart, "fast")),
            "server: immediate restart": (2, partial(self.restart, "immediate")),
            "server: kill -9 of the postmaster": (2, partial(self.restart, "kill")),
            "stopped at a step, server restarts": (2, partial(self.stop_at_step, self._restart_under_stopped)),
            "PgBouncer: kill -9, restart": (4, self.restart_bouncer),
            "max_connections reached": (4, self.use_up_connections),
            "ACCESS EXCLUSIVE lock on the history": (5, self.lock_history),
            "row deleted while its run is on": (6, self.delete_row),
            "default_transaction_read_only": (3, self.refuse_writes),
        }
        if self.bouncer is None:
            del kinds["PgBouncer: kill -9, restart"]
        return kinds

    # Processes.

    def end_process(self, number: signal.Signals, drawn: Random) -> None:
        replica = self._draw_replica(drawn)
        with self._cutting(replica):
            replica.signal(number)
            replica.wait_for_end()

    def interrupt(self, drawn: Random) -> None:
        replica = self._draw_replica(drawn)
        with self._cutting(replica):
            replica.signal(signal.SIGINT)

    def stop_process(self, drawn: Random) -> None:
        with self._stopped(self._draw_replica(drawn)):
            time.sleep(drawn.choice([0.2, 0.5, 1.5, 3.0]))

    def stop_process_and_end_session(self, drawn: Random) -> None:
        replica = self._draw_replica(drawn, proxied=True)
        seconds = drawn.choice([0.2, 0.5])
        with self._stopped(replica):
            with self._cutting(replica):
                self._reset(replica)
            time.sleep(seconds)

    # Sessions.

    def terminate_run(self, drawn: Random) -> None:
        backend, run = self._draw_run(drawn)
        since = time.monotonic_ns()
        self._fetch(TERMINATE_RUN, [backend, run])
        wait_until(lambda: not self._fetch(f"SELECT pid {ONE_RUN}", [backend, run]), what="the run's session gone")
        self.witness.note(CUT, run=run, since=since)
        self._note_trouble(since)

    def terminate_idle(self, drawn: Random) -> None:
        with self._trouble():
            self._fetch(TERMINATE_IDLE, [self._database])

    def cancel_run(self, drawn: Random) -> None:
        backend, run = self._draw_run(drawn)
        with self._trouble():
            self._fetch(CANCEL_RUN, [backend, run])

    # The network.

    def reset(self, drawn: Random) -> None:
        replica = self._draw_replica(drawn, proxied=True)
        with self._cutting(replica):
            self._reset(replica)

    def go_dark(self, drawn: Random) -> None:
        replica = self._draw_replica(drawn, proxied=True)
        assert replica.proxy is not None
        replica.proxy.go_dark()
        time.sleep(drawn.choice([0.2, 0.5, 1.5, 3.0]))
        replica.proxy.light_up()
        with self._cutting(replica):
            self._reset(replica)

    def stop_at_step(self, then: Callable[[SoakReplica, Stopped, Random], None], drawn: Random) -> None:
        replica = self._draw_replica(drawn, proxied=True)
        assert replica.proxy is not None
        replica.proxy.stop_at(drawn.choice(POINTS))
        try:
            stopped = replica.proxy.wait_until_stopped(SECONDS_TO_HIT)
        except AssertionError:
            raise Missed from None
        finally:
            replica.proxy.forget_stops()
        time.sleep(drawn.choice([0, 0.05, 0.3]))
        try:
            then(replica, stopped, drawn)
        finally:
            replica.proxy.go_on()

    def _reset_stopped(self, replica: SoakReplica, stopped: Stopped, drawn: Random) -> None:
        with self._cutting(replica):
            self._reset(replica)

    def _kill_stopped(self, replica: SoakReplica, stopped: Stopped, drawn: Random) -> None:
        with self._cutting(replica):
            replica.signal(signal.SIGKILL)
            replica.wait_for_end()

    def _terminate_stopped(self, replica: SoakReplica, stopped: Stopped, drawn: Random) -> None:
        if stopped.backend_pid == 0:
            raise Missed
        with self._cutting(replica):
            self._fetch("SELECT pg_terminate_backend(%s, 10000)", [stopped.backend_pid])

    def _let_go_on(self, replica: SoakReplica, stopped: Stopped, drawn: Random) -> None:
        time.sleep(drawn.choice([0.3, 1.0, 2.0]))

    def _restart_under_stopped(self, replica: SoakReplica, stopped: Stopped, drawn: Random) -> None:
        self.restart(drawn.choice(["fast", "immediate", "kill"]), drawn)

    # The server, and what is in front of it.

    def restart(self, how: str, drawn: Random) -> None:
        since = time.monotonic_ns()
        if how == "kill":
            self.cluster.kill()
        else:
            self.cluster.stop(how)
        time.sleep(drawn.choice([0, 0, 0.5]))
        self.cluster.start()
        self.witness.note(CUT, everything=True, since=since)

    def restart_bouncer(self, drawn: Random) -> None:
        assert self.bouncer is not None
        pooled = [replica for replica in self.fleet.replicas if replica.is_pooled]
        with ExitStack() as stack:
            for replica in pooled:
                stack.enter_context(self._cutting(replica))
            self.bouncer.end()
            time.sleep(drawn.choice([0, 0.2]))
            self.bouncer.start()

    def use_up_connections(self, drawn: Random) -> None:
        with self._trouble(), ExitStack() as stack:
            # Kept, to end a session with.
            look = self.cluster.connect()
            stack.callback(look.close)
            look.ensure_connection()
            self.cluster.use_up_connections(stack)
            with look.cursor() as cursor:
                cursor.execute(TERMINATE_IDLE, [self._database])
            time.sleep(drawn.choice([0.2, 0.7]))

    def lock_history(self, drawn: Random) -> None:
        with self._trouble():
            try:
                self._execute_alone(LOCK_HISTORY.format(drawn.choice([0.1, 0.5, 1.5])))
            except OperationalError:
                # A run kept it for longer than the lock was waited for.
                raise Missed from None

    def delete_row(self, drawn: Random) -> None:
        for _ in range(20):
            _, run = self._draw_run(drawn)
            if self._fetch(DELETE_ROW, [run]):
                self.deleted.add(run)
                return
        raise Missed

    def refuse_writes(self, drawn: Random) -> None:
        with self._trouble():
            self.cluster.set(default_transaction_read_only="on")
            try:
                time.sleep(drawn.choice([0.2, 0.5]))
            finally:
                self.cluster.set(default_transaction_read_only=None)
            # Until the last of the sessions has heard of it.
            time.sleep(0.3)

    # What they share.

    @property
    def _database(self) -> str:
        name: str = self.cluster.database()["NAME"]
        return name

    def _draw_replica(self, drawn: Random, *, proxied: bool = False) -> SoakReplica:
        self.fleet.revive()
        return drawn.choice([each for each in self.fleet.replicas if each.proxy is not None or not proxied])

    def _draw_run(self, drawn: Random) -> tuple[int, int]:
        """Return the server process and the number of a run that has its lock at this moment."""
        number = drawn.random()
        try:
            runs: list[Any] = wait_until(
                lambda: self._fetch(RUNS, [self._database]), what="a run", seconds=SECONDS_TO_HIT
            )
        except AssertionError:
            raise Missed from None
        backend, run = runs[int(number * len(runs))]
        return backend, run

    def _fetch(self, query: str, parameters: list[Any]) -> list[tuple[Any, ...]]:
        return self.cluster.fetch(query, parameters)

    def _execute_alone(self, statements: str) -> None:
        connection = self.cluster.connect()
        try:
            with connection.cursor() as cursor:
                cursor.execute(statements)
        finally:
            connection.close()

    @staticmethod
    def _reset(replica: SoakReplica) -> None:
        assert replica.proxy is not None
        replica.proxy.reset()

    @contextmanager
    def _stopped(self, replica: SoakReplica) -> Iterator[None]:
        """Have a replica's process stopped in the block."""
        replica.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(replica.pid, signal.SIGCONT)

    @contextmanager
    def _cutting(self, replica: SoakReplica) -> Iterator[None]:
        """Tell the witness that what the replica's process has begun by the end of the block can commit nothing."""
        since, pid = time.monotonic_ns(), replica.pid
        try:
            yield
        finally:
            self.witness.note(CUT, process=pid, since=since)

    @contextmanager
    def _trouble(self) -> Iterator[None]:
        since = time.monotonic_ns()
        try:
            yield
        finally:
            self._note_trouble(since)

    def _note_trouble(self, since: int) -> None:
        self.witness.note(TROUBLE, since=since)
