"""Waiting for what other threads, processes and sessions do, never longer than a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

DEADLINE = 30.0
"""Seconds after which a test gives up. Nothing takes this long, so reaching it is a failure."""


def wait_until(condition: Callable[[], T], *, what: str, seconds: float = DEADLINE) -> T:
    """Return what `condition` returns once that is true; fail with `what` when that does not come about in time."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"Not within {seconds:g} s: {what}")
        time.sleep(0.005)
    return value
