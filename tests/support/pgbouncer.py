"""A real PgBouncer, in front of the test database."""

import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
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

CONFIGURATION = """
[databases]
* = {server}

[pgbouncer]
listen_addr =
listen_port = {port}
unix_socket_dir = {directory}
auth_type = any
pool_mode = {pool_mode}
default_pool_size = {pool_size}
max_client_conn = 400
log_connections = 0
log_disconnections = 0
# What psycopg 2 and Django send when they connect, and PgBouncer does not follow.
ignore_startup_parameters = extra_float_digits, options
"""


class PgBouncer:
    """A running PgBouncer."""

    def __init__(self, direct: BaseDatabaseWrapper, directory: Path) -> None:
        self.database: dict[str, Any] = {**direct.settings_dict, "HOST": str(directory), "PORT": PORT}
        self.url = database_url(direct, host=str(directory), port=PORT)

    def wait_until_ready(self, process: subprocess.Popen[str]) -> None:
        def answers() -> bool:
            assert process.poll() is None, f"PgBouncer ended: {process.communicate()[0]}"
            with socket.socket(socket.AF_UNIX) as client:
                return client.connect_ex(f"{self.database['HOST']}/.s.PGSQL.{PORT}") == 0

        wait_until(answers, what="PgBouncer listening")


def _program() -> str:
    found = shutil.which(
        "pgbouncer", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    )
    return found or service_missing("PgBouncer is not installed. On Debian and Ubuntu: apt-get install pgbouncer")


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
def running(direct: BaseDatabaseWrapper, *, pool_size: int, pool_mode: str = "transaction") -> Iterator[PgBouncer]:
    """Run PgBouncer in the block, with at most `pool_size` connections to the server."""
    program, user = _program(), _user(direct)
    with tempfile.TemporaryDirectory(prefix="pgbouncer-") as name:
        directory = Path(name)
        configuration = directory / "pgbouncer.ini"
        configuration.write_text(
            CONFIGURATION.format(
                server=_server(direct), port=PORT, directory=directory, pool_size=pool_size, pool_mode=pool_mode
            )
        )
        for path in (directory, configuration):
            os.chown(path, -1 if user is None else user, -1)
        process = subprocess.Popen(
            [program, "-q", str(configuration)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            user=user,
        )
        try:
            bouncer = PgBouncer(direct, directory)
            bouncer.wait_until_ready(process)
            yield bouncer
        finally:
            process.kill()
            process.communicate(timeout=DEADLINE)


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
