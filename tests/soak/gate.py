"""What keeps replicas out of their jobs while the soak looks at what they did."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

# Bytes of the file, whose locks the kernel lets go however a process ends, and a forked child does not have.
ENTRANCE, ROOM = 0, 1


class Gate:
    """Many are inside at once, or nobody. Arguments: the `path` of a file of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)

    @contextmanager
    def inside(self, when_closed: Callable[[], None]) -> Iterator[None]:
        """Be inside in the block. When the gate is closed, do something first, and wait until it is open."""
        if not self._try(fcntl.LOCK_SH, ENTRANCE):
            when_closed()
            self._wait(fcntl.LOCK_SH, ENTRANCE)
        self._wait(fcntl.LOCK_SH, ROOM)
        self._let_go(ENTRANCE)
        try:
            yield
        finally:
            self._let_go(ROOM)

    def close(self, seconds: float) -> bool:
        """Let nobody in any more, and wait until nobody is inside; return whether that came about in time."""
        deadline = time.monotonic() + seconds
        return all(self._try_until(deadline, what) for what in (ENTRANCE, ROOM))

    def open(self) -> None:
        for what in (ROOM, ENTRANCE):
            self._let_go(what)

    def _try_until(self, deadline: float, what: int) -> bool:
        while not self._try(fcntl.LOCK_EX, what):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True

    def _try(self, how: int, what: int) -> bool:
        try:
            fcntl.lockf(self._file, how | fcntl.LOCK_NB, 1, what)
        except OSError:
            return False
        return True

    def _wait(self, how: int, what: int) -> None:
        fcntl.lockf(self._file, how, 1, what)

    def _let_go(self, what: int) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, what)
