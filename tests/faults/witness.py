"""What happened, as those said in whose presence it did: a file outside the library and outside the server."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.support.deadlines import DEADLINE, wait_until

# The kinds of lines.
ATTEMPT = "attempt"
"""A process is about to call a job: `attempt`, `job`."""
RESULT = "result"
"""What the caller saw: `attempt`, `outcome` ("acquired", "skipped" or "raised"), `run`, `error` (the class), `code`."""
BEGIN = "begin"
"""A body begins: `body`, `attempt`, `job`, `run`, `writes` (how many rows it is going to write)."""
END = "end"
"""A body ends: `body`, `how` ("returned" or "raised")."""
CUT = "cut"
"""From now on nothing of this `process`, `run` or `attempt`, or of `everything`, can be committed.

Noted just before the fault; or, where more may begin meanwhile, after it, with the moment before it as `since`.
"""
TROUBLE = "trouble"
"""From `since` until now an attempt may not have been able to record its end."""
OWN_COMMIT = "own commit"
"""The body with this `run` ends its transaction itself, so some of its writes may be committed."""
GO = "go"
"""A process that waits before its next `attempt` may make it."""
DIED = "died"
"""A `process` has ended, with `code`, negative for a signal."""


class Line(dict[str, Any]):
    """What was noted, with its `kind`, the `pid` of who noted it, and `at`: nanoseconds of one clock for all."""

    def __getattr__(self, name: str) -> Any:
        return self.get(name)

    def matches(self, values: dict[str, Any]) -> bool:
        return all(self.get(name) == value for name, value in values.items())


class Witness:
    """A file to which processes append; each line is one write, so it is whole however its writer ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_RDWR | os.O_CLOEXEC, 0o666)
        self._read = 0
        self._lines: list[Line] = []

    def close(self) -> None:
        os.close(self._file)

    def forget(self) -> None:
        """Empty the file; nobody else may be about to read it."""
        os.ftruncate(self._file, 0)
        self._read, self._lines = 0, []

    def note(self, kind: str, **values: Any) -> None:
        line = {"at": time.monotonic_ns(), "kind": kind, "pid": os.getpid(), **values}
        os.write(self._file, (json.dumps(line) + "\n").encode())

    def lines(self) -> list[Line]:
        """Return all lines that are written by now, in their order."""
        while data := os.pread(self._file, 1 << 20, self._read):
            whole = data[: data.rfind(b"\n") + 1]
            if not whole:
                break
            self._lines += [Line(json.loads(line)) for line in whole.splitlines()]
            self._read += len(whole)
        return self._lines

    def find(self, kind: str, **values: Any) -> Line | None:
        """Return the first line of a kind with these values."""
        return next((line for line in self.lines() if line.kind == kind and line.matches(values)), None)

    def wait_for(self, kind: str, seconds: float = DEADLINE, **values: Any) -> Line:
        """Wait for such a line. Fails after the deadline."""
        found = wait_until(lambda: self.find(kind, **values), what=f"{kind} {values} in the witness", seconds=seconds)
        assert found is not None
        return found

    @contextmanager
    def body(self, *, attempt: str, job: str, run: int, writes: int) -> Iterator[None]:
        """Witness a body in the block. A process that was forked in it says nothing at its end."""
        body, pid = uuid4().hex, os.getpid()
        self.note(BEGIN, body=body, attempt=attempt, job=job, run=run, writes=writes)
        how = "raised"
        try:
            yield
            how = "returned"
        except SystemExit as error:
            # By sys.exit(0) a job says that it is done.
            how = "raised" if error.code else "returned"
            raise
        finally:
            if os.getpid() == pid:
                self.note(END, body=body, run=run, how=how)
