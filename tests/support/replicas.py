"""Replicas as processes: `manage.py` on the test database, spoken to line by line, ended in any case."""

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, cast
from urllib.parse import quote, urlencode

from django.db.backends.base.base import BaseDatabaseWrapper

from tests.support.ctrl_c import ctrl_c_raises
from tests.support.deadlines import DEADLINE

ROOT = Path(__file__).resolve().parent.parent.parent
MANAGE = ROOT / "testproject" / "manage.py"


def database_url(connection: BaseDatabaseWrapper, **replaced: str) -> str:
    """Return the URL of a connection's database, which in a test is the test database."""
    names = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}
    values = {name: str(connection.settings_dict[setting]) for name, setting in names.items()} | replaced
    return "postgresql:///?" + urlencode({name: value for name, value in values.items() if value}, quote_via=quote)


class Replica:
    """One process. What it writes to its standard output are the signals that a test waits for."""

    def __init__(self, command: Iterable[str], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=ROOT,
        )
        self._out: list[str] = []
        self._err: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._readers = [
            threading.Thread(target=self._read, args=(self.process.stdout, self._out, self._lines), daemon=True),
            threading.Thread(target=self._read, args=(self.process.stderr, self._err, None), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(stream: IO[str], kept: list[str], lines: "queue.Queue[str | None] | None") -> None:
        for line in stream:
            kept.append(line)
            if lines is not None:
                lines.put(line)
        if lines is not None:
            lines.put(None)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def out(self) -> str:
        return "".join(self._out)

    @property
    def err(self) -> str:
        return "".join(self._err)

    def expect(self, beginning: str) -> str:
        """Wait for a line that begins so; return the rest of it."""
        while (line := self._lines.get(timeout=DEADLINE)) is not None:
            if line.startswith(beginning):
                return line.removeprefix(beginning).strip()
        raise AssertionError(f"The replica ended before it wrote {beginning!r}: {self.out}{self.err}")

    def order(self, line: str) -> None:
        """Tell the job `follow_orders` what to do next."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Wait for the end; return the exit code, negative for a signal."""
        code = self.process.wait(DEADLINE)
        for reader in self._readers:
            reader.join(DEADLINE)
        return code

    def destroy(self) -> None:
        """End it whatever it is doing, and let go of everything."""
        self.process.kill()
        self.process.wait(DEADLINE)
        for reader in self._readers:
            reader.join(DEADLINE)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            # Closing flushes, and an order may be left that the process did not live to read.
            with suppress(BrokenPipeError):
                cast("IO[str]", stream).close()


class Replicas:
    """Starts replicas on one database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._started: list[Replica] = []

    def start(self, *command: str, **environment: str) -> Replica:
        """Start any command, with the test database as its `DATABASE_URL`."""
        base = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "DATABASE_URL": self.url}
        with ctrl_c_raises():
            replica = Replica(command, {**base, **environment})
        self._started.append(replica)
        return replica

    def manage(self, *arguments: str, **environment: str) -> Replica:
        """Start `manage.py` with these arguments."""
        return self.start(sys.executable, str(MANAGE), *arguments, **environment)

    def destroy(self) -> None:
        for replica in self._started:
            replica.destroy()
