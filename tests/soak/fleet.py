"""The soak's replicas, each on its own way to the server, and started again when it has ended."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.clusters import Cluster
from tests.faults.processes import is_alive
from tests.faults.proxy import Proxy
from tests.faults.witness import CUT, Witness
from tests.soak.gate import Gate
from tests.soak.replica import SoakOrder
from tests.support.deadlines import wait_until
from tests.support.pgbouncer import PgBouncer
from tests.support.replicas import Replicas

PROXIED, DIRECT, POOLED = "proxied", "direct", "pooled"
WAYS = (PROXIED, PROXIED, PROXIED, DIRECT, POOLED, POOLED)


@dataclass
class SoakReplica:
    """One replica, whichever process it is at the moment."""

    number: int
    database: dict[str, Any]
    proxy: Proxy | None
    is_pooled: bool
    pid: int = 0
    lives: int = 0

    @property
    def is_alive(self) -> bool:
        return self.pid != 0 and is_alive(self.pid)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait_for_end(self) -> None:
        wait_until(lambda: not self.is_alive, what=f"the end of replica {self.number}, process {self.pid}")


class Fleet:
    """All replicas. Arguments: `bouncer`, None where there is none: then those replicas go to the server directly."""

    def __init__(
        self, seed: str, cluster: Cluster, bouncer: PgBouncer | None, witness: Witness, gate: Gate, directory: Path
    ) -> None:
        self.seed = seed
        self.began = time.monotonic()
        self.log = directory / "log"
        self.log.touch()
        self._witness = witness
        self._gate_path = gate.path
        self._stack = ExitStack()
        self._processes = Replicas(cluster.url())
        self._forker = self._processes.start(sys.executable, "-m", "tests.soak.replica")
        self.replicas: list[SoakReplica] = []
        for number, way in enumerate(WAYS):
            proxy, database = None, cluster.database()
            if way == PROXIED:
                proxy = self._stack.enter_context(Proxy(("127.0.0.1", int(cluster.port))))
                database = cluster.database(HOST="127.0.0.1", PORT=str(proxy.port))
            elif way == POOLED and bouncer is not None:
                database = bouncer.database
            database = json.loads(json.dumps(database, default=str))
            self.replicas.append(SoakReplica(number, database, proxy, way == POOLED and bouncer is not None))

    @property
    def pids(self) -> set[int]:
        return {replica.pid for replica in self.replicas if replica.is_alive}

    def revive(self) -> None:
        """Start again those that have ended."""
        for replica in self.replicas:
            if not replica.is_alive:
                self._start(replica)

    def _start(self, replica: SoakReplica) -> None:
        order = SoakOrder(
            calls=[],
            database=replica.database,
            witness=str(self._witness.path),
            stdout=os.devnull,
            stderr=str(self.log),
            limits={},
            seed=self.seed,
            replica=replica.number,
            life=replica.lives,
            began=self.began,
            gate=str(self._gate_path),
        )
        self._forker.order(json.dumps(order))
        replica.pid = int(self._forker.expect(""))
        replica.lives += 1

    def tell_stacks(self) -> None:
        """Let each replica write where it is into the log."""
        for replica in self.replicas:
            if replica.is_alive:
                replica.signal(signal.SIGUSR1)
        time.sleep(1)

    def end(self) -> None:
        """Kill all replicas."""
        for replica in self.replicas:
            if replica.is_alive:
                self._witness.note(CUT, process=replica.pid)
                replica.signal(signal.SIGKILL)
                replica.wait_for_end()

    def destroy(self) -> None:
        """End all processes and proxies."""
        self.end()
        self._processes.destroy()
        self._stack.close()
