"""Replicas as threads, each with a database connection of its own."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from django.db import connections

from tests.support.deadlines import DEADLINE

T = TypeVar("T")


def in_threads(
    count: int, work: Callable[[int], T], *, through: Mapping[str, Any] | None = None, seconds: float = 2 * DEADLINE
) -> list[T]:
    """Call `work(0)` to `work(count - 1)` at the same moment, each in a thread; return what they returned, in order.

    Every thread has its connection open before any begins, and closes it at its end. `through` are the settings of
    another way to the same database, such as a pooler, that the threads' default connections take. What a thread
    raised is raised here, once all have ended, for which they have `seconds`.
    """
    start = threading.Barrier(count)
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def replica(number: int) -> None:
        try:
            if through is not None:
                connect_through(through)
            connections["default"].ensure_connection()
            start.wait(DEADLINE)
            results[number] = work(number)
        except BaseException as error:
            # The first error is the cause; those that it brought about in threads that waited come after it.
            errors.append(error)
            start.abort()
        finally:
            connections.close_all()

    threads = [threading.Thread(target=replica, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0))
    if errors:
        raise errors[0]
    assert len(results) == count, f"{count - len(results)} of {count} threads have not ended."
    return [results[number] for number in range(count)]


def in_thread(function: Callable[[], T]) -> T:
    """Call a function in a thread that has no connection yet; return what it returned, or raise what it raised.

    What it connected is closed at its end.
    """
    answers: list[T] = []
    errors: list[BaseException] = []

    def target() -> None:
        try:
            answers.append(function())
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=target)
    thread.start()
    thread.join(DEADLINE)
    assert not thread.is_alive()
    if errors:
        raise errors[0]
    return answers[0]


def connect_through(database: Mapping[str, Any]) -> None:
    """Let this thread's default connection, and no other thread's, be one with these settings."""
    connections["default"] = type(connections["default"])(dict(database), "default")
