"""A replica for a model: a thread with a connection of its own, whose job does what it is told, step by step."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.db import DatabaseError, connection, connections

from django_singlecron import RunResult, SingletonTask, current_run
from tests.support.deadlines import DEADLINE
from tests.support_core import write


class Told(Exception):
    """What the act "raise" raises."""


class Replica:
    """Calls the job on order; its body then waits for orders as well, until one of them ends it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.run_id = 0
        self.backend_pid = 0
        self._orders: queue.Queue[Callable[[], Any] | None] = queue.Queue()
        self._answers: queue.Queue[Any] = queue.Queue()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def call(self, task: SingletonTask[Any, Any], slot: datetime, force: bool) -> RunResult[None] | None:
        """Call the job; return its result, or None as soon as its body has begun."""
        answer: RunResult[None] | None = self._do(lambda: task.run(self, slot=slot, force=force))
        return answer

    def act(self, name: str) -> Any:
        """Let the body do something; return what came of it, after the body's end that of the call."""
        return self._do(lambda: ACTS[name](self))

    def end(self) -> None:
        self._orders.put(None)
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()

    def _do(self, order: Callable[[], Any]) -> Any:
        self._orders.put(order)
        return self._answers.get(timeout=DEADLINE)

    def _live(self) -> None:
        while order := self._orders.get():
            try:
                self._answers.put(order())
            except BaseException as error:
                self._answers.put(error)
        connections.close_all()

    def body(self) -> None:
        run = current_run()
        assert run is not None
        self.run_id, self.backend_pid = run.id, connection.connection.info.backend_pid
        write(f"run {run.id}")
        self._answers.put(None)
        while (outcome := self._next_order()()) is not DONE:
            self._answers.put(outcome)

    def _next_order(self) -> Callable[[], Any]:
        order = self._orders.get(timeout=DEADLINE)
        assert order is not None, "The thread was ended inside the job."
        return order


DONE = object()


def fail(replica: Replica) -> None:
    raise Told


def swallow_an_error(replica: Replica) -> object:
    try:
        execute("SELECT 1 / 0")
    except DatabaseError:
        return DONE


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


ACTS: dict[str, Callable[[Replica], Any]] = {
    # These end the body,
    "return": lambda replica: DONE,
    "raise": fail,
    "swallow": swallow_an_error,
    "exit 0": lambda replica: sys.exit(),
    "exit 3": lambda replica: sys.exit(3),
    # and these the run's hold on its lock.
    "commit": lambda replica: execute("COMMIT"),
    "rollback": lambda replica: execute("ROLLBACK"),
    "close": lambda replica: connection.close(),
}
