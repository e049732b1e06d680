"""One case of the suite: replicas behind a proxy, their witness, and what is asked of them in the end."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from django.db import connections

from django_singlecron.models import JobRun
from tests.faults.checker import check
from tests.faults.proxy import Proxy, Stopped
from tests.faults.steps import Point
from tests.faults.witness import BEGIN, CUT, DIED, GO, RESULT, Line, Witness
from tests.faults.worker import Call, Order
from tests.support.deadlines import wait_until
from tests.support.replicas import Replica, Replicas
from tests.support.sessions import Watcher


class Workers:
    """The process that forks replicas, started once.

    Arguments: `enter`, the command that it is run through, such as that into a network namespace.
    """

    def __init__(self, replicas: Replicas, enter: Sequence[str] = ()) -> None:
        self.process: Replica = replicas.start(*enter, sys.executable, "-m", "tests.faults.worker")

    def start(self, order: Order) -> int:
        """Start a replica; return its process id."""
        self.process.order(json.dumps(order))
        return int(self.process.expect(""))


class Attempt:
    """An attempt of a replica to run a job, in a process of its own."""

    def __init__(self, name: str, pid: int, witness: Witness) -> None:
        self.name = name
        self.pid = pid
        self._witness = witness

    def result(self) -> Line:
        """Wait for what its caller saw."""
        return self._witness.wait_for(RESULT, attempt=self.name)

    def body(self) -> Line:
        """Wait for its body to begin."""
        return self._witness.wait_for(BEGIN, attempt=self.name)

    def code(self) -> int:
        """Wait for the process's end; return its exit code, negative for a signal."""
        code: int = self._witness.wait_for(DIED, process=self.pid).code
        return code

    def go(self) -> None:
        """Let it be made, in a process that waits before it."""
        self._witness.note(GO, attempt=self.name)

    def cut(self) -> None:
        """Say that nothing of it can be committed from now on; call it just before that comes true."""
        self._witness.note(CUT, attempt=self.name)

    def signal(self, number: signal.Signals) -> None:
        if number == signal.SIGKILL:
            self._witness.note(CUT, process=self.pid)
        os.kill(self.pid, number)

    @property
    def rows(self) -> list[JobRun]:
        return list(JobRun.objects.filter(arguments__contains=f"attempt='{self.name}'").order_by("id"))

    @property
    def row(self) -> JobRun:
        """The one row that it has."""
        [row] = self.rows
        return row


class Case:
    """Replicas on a database, through a proxy."""

    def __init__(self, workers: Workers, proxy: Proxy, watcher: Watcher, directory: Path) -> None:
        self.proxy = proxy
        self.watcher = watcher
        self.witness = Witness(directory / "witness")
        self.log = directory / "log"
        self.log.touch()
        self.direct: dict[str, Any] = dict(connections["default"].settings_dict)
        self.checked = False
        self.workers = workers
        self._names = (f"attempt-{number}" for number in count(1))
        self._attempts: list[Attempt] = []

    @property
    def through_proxy(self) -> dict[str, Any]:
        return {**self.direct, "HOST": "127.0.0.1", "PORT": str(self.proxy.port)}

    def attempt(self, job: str = "work", *, direct: bool = False, **arguments: Any) -> Attempt:
        """Start a replica that calls a job, through the proxy unless it goes to the server directly."""
        return self.attempts(1, job, database=self.direct if direct else None, **arguments)[0]

    def attempts(
        self,
        number: int,
        job: str = "work",
        *,
        database: Mapping[str, Any] | None = None,
        stdout: str = os.devnull,
        limits: Mapping[str, int] | None = None,
        **arguments: Any,
    ) -> list[Attempt]:
        """Start a replica that calls a job several times, each time but the first when it is told to `go`."""
        names = [next(self._names) for _ in range(number)]
        order = Order(
            calls=[Call(job=job, arguments={"attempt": name, **arguments}) for name in names],
            database=json.loads(json.dumps(dict(database or self.through_proxy), default=str)),
            witness=str(self.witness.path),
            stdout=stdout,
            stderr=str(self.log),
            limits=dict(limits or {}),
        )
        pid = self.workers.start(order)
        started = [Attempt(name, pid, self.witness) for name in names]
        self._attempts += started
        return started

    def stopped_at(self, point: Point, job: str = "work", **arguments: Any) -> tuple[Attempt, Stopped]:
        """Start a replica and wait until it is stopped at a point."""
        self.proxy.stop_at(point)
        attempt = self.attempt(job, **arguments)
        return attempt, self.proxy.wait_until_stopped()

    def end_session(self, backend_pid: int) -> None:
        """Terminate a server session, and wait until it is gone."""
        self.watcher.fetch("SELECT pg_terminate_backend(%s)", [backend_pid])
        wait_until(lambda: not self.has_session(backend_pid), what="the session gone")

    def has_session(self, backend_pid: int) -> bool:
        return backend_pid in {session.pid for session in self.watcher.sessions()}

    def check(self, **options: Any) -> None:
        """Wait until all have ended; then `check`."""
        for attempt in self._attempts:
            attempt.code()
        self.checked = True
        check(self.witness, connections["default"], **options)

    def destroy(self) -> None:
        """End what a failed test left."""
        ended = {line.process for line in self.witness.lines() if line.kind == DIED}
        for pid in {attempt.pid for attempt in self._attempts} - ended:
            os.kill(pid, signal.SIGKILL)
            self.witness.wait_for(DIED, process=pid)
        self.witness.close()
        if text := self.log.read_text():
            print(text)
