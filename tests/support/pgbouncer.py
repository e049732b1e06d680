"""A real PgBouncer, in transaction mode unless it is told otherwise, in front of the test database."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from django.db import connection
from django.db.backends.base.base import BaseDatabaseWrapper

from tests.support.deadlines import DEADLINE, wait_until
from tests.support.replicas import database_url
from tests.support.services import service_missing
from tests.support.threads import connect_through

# A socket's directory and port name its file; there is no other server in the directory.
PORT = "6432"

NOBODY = 65534

SETTINGS = {
    "listen_addr": "",
    "listen_port": PORT,
    "auth_type": "any",
    "pool_mode": "transaction",
    "max_client_conn": "400",
    "log_connections": "0",
    "log_disconnections": "0",
    # What psycopg 2 and Django send when they connect, and PgBouncer does not follow.
    "ignore_startup_parameters": "extra_float_digits, options",
}


class PgBouncer:
    """A PgBouncer with a directory of its own, which may be ended and started again."""

    def __init__(self, direct: BaseDatabaseWrapper, directory: Path, command: Sequence[str]) -> None:
        self.database: dict[str, Any] = {**direct.settings_dict, "HOST": str(directory), "PORT": PORT}
        self.url = database_url(direct, host=str(directory), port=PORT)
        self.socket = f"{directory}/.s.PGSQL.{PORT}"
        self._command = command

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        wait_until(self._answers, what="PgBouncer listening")

    def end(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End it, unless it has ended."""
        self._process.send_signal(how)
        self._process.communicate(timeout=DEADLINE)

    def _answers(self) -> bool:
        assert self._process.poll() is None, f"PgBouncer ended: {self._process.communicate()[0]}"
        with socket.socket(socket.AF_UNIX) as client:
            return client.connect_ex(self.socket) == 0


def installed_program() -> str | None:
    """Return the path of PgBouncer's program, which may be where an ordinary user's PATH does not lead."""
    return shutil.which("pgbouncer", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))


def _program() -> str:
    return installed_program() or service_missing(
        "PgBouncer is not installed. On Debian and Ubuntu: apt-get install pgbouncer"
    )


def _server(direct: BaseDatabaseWrapper) -> str:
    names = {"host": "HOST", "port": "PORT", "user": "USER", "password": "PASSWORD"}
    values = {name: direct.settings_dict[setting] for name, setting in names.items()}
    return " ".join(f"{name}='{value}'" for name, value in values.items() if value)


def _user(direct: BaseDatabaseWrapper) -> int | None:
    """Whom to run PgBouncer as: it refuses root. The owner of the server's socket directory may go in there."""
    host = Path(direct.settings_dict["HOST"] or "/")
    owner = host.stat().st_uid if host.is_absolute() else 0
    return (owner or NOBODY) if os.geteuid() == 0 else None


@contextmanager
def running(
    direct: BaseDatabaseWrapper, *, pool_size: int, enter: Sequence[str] = (), **settings: str
) -> Iterator[PgBouncer]:
    """Run PgBouncer in the block, with at most `pool_size` connections to the server.

    Arguments: `enter`, the command that it is run through, such as that into a network namespace; `settings`, its own.
    """
    program, user = _program(), _user(direct)
    with tempfile.TemporaryDirectory(prefix="pgbouncer-") as name:
        directory = Path(name)
        configuration = directory / "pgbouncer.ini"
        values = {**SETTINGS, "unix_socket_dir": name, "default_pool_size": str(pool_size), **settings}
        lines = [f"{setting} = {value}" for setting, value in values.items()]
        configuration.write_text("\n".join(["[databases]", f"* = {_server(direct)}", "[pgbouncer]", *lines, ""]))
        for path in (directory, configuration):
            os.chown(path, -1 if user is None else user, -1)
        as_user = [] if user is None else ["setpriv", f"--reuid={user}", "--clear-groups", f"--regid={user}"]
        bouncer = PgBouncer(direct, directory, [*enter, *as_user, program, "-q", str(configuration)])
        try:
            bouncer.start()
            yield bouncer
        finally:
            bouncer.end()


@contextmanager
def busy_clients(bouncer: PgBouncer, count: int) -> Iterator[None]:
    """Have `count` other clients send short transactions to the pool without a pause, as the project's requests do."""
    over = threading.Event()
    started = threading.Barrier(count + 1)
    errors: list[BaseException] = []

    def client() -> None:
        try:
            connect_through(bouncer.database)
            run_query("SELECT count(*) FROM billing_tenant")
            started.wait(DEADLINE)
            while not over.is_set():
                # Little load on the machine, much on the pool: the server connection is taken meanwhile.
                run_query("SELECT pg_sleep(0.005)")
        except BaseException as error:
            errors.append(error)
            started.abort()
        finally:
            connection.close()

    threads = [threading.Thread(target=client, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        _wait_unless_broken(started)
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(DEADLINE)
    if errors:
        raise errors[0]


def run_query(query: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(query)


def _wait_unless_broken(barrier: threading.Barrier) -> None:
    # What broke it is told when the threads have ended.
    with suppress(threading.BrokenBarrierError):
        barrier.wait(DEADLINE)
