"""PostgreSQL servers of the suite's own, to be shut down, killed and promoted as a test likes."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from django.db import OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from testproject.embedded import SYSTEM_USER, admit, binaries
from tests.faults.processes import is_alive
from tests.support.deadlines import wait_until
from tests.support.replicas import Replicas, database_url

DATABASE = "singlecron"
SECONDS = 60

# What only protects from a crash of the machine, which no test brings about, is off.
SETTINGS = {
    "fsync": "off",
    "listen_addresses": "127.0.0.1",
    "max_connections": "30",
    "shared_buffers": "16MB",
    "wal_level": "replica",
    "max_wal_senders": "4",
    "hot_standby": "on",
    # A standby that was cut off finds what it missed.
    "wal_keep_size": "64MB",
}


class Cluster:
    """One server with data and a socket of its own, on a port of its own.

    Arguments: `enter`, the command that its programs are run through, such as that into a network namespace.
    """

    def __init__(self, directory: Path, enter: Sequence[str] = (), **settings: str) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.settings = {**SETTINGS, **settings}
        self.port = self.settings.setdefault("port", str(free_port()))
        self._enter = [*enter]
        # PostgreSQL refuses to be run by root.
        self._user = pwd.getpwnam(SYSTEM_USER) if os.geteuid() == 0 else None
        if self._user is not None:
            self._enter += ["setpriv", f"--reuid={self._user.pw_uid}", f"--regid={self._user.pw_gid}", "--clear-groups"]

    def make(self) -> None:
        """Make its data anew, with the project's tables in it, and leave it stopped."""
        self._own_directory()
        options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"]
        # Small, since the data is copied for every cluster.
        self.run("initdb", "--pgdata", self.data, *options, "--wal-segsize=1")
        # Whoever reaches it: it listens on addresses of this machine alone.
        with (self.data / "pg_hba.conf").open("a") as file:
            file.write("host all all all trust\n")
        self.start()
        self.run("createdb", "--host", self.directory, "--port", self.port, "--username=postgres", DATABASE)
        replicas = Replicas(self.url())
        try:
            replica = replicas.manage("migrate", "--verbosity=0")
            assert replica.end() == 0, replica.err
        finally:
            replicas.destroy()
        self.stop()

    def copy(self, template: Cluster) -> None:
        """Take the data of a cluster that is stopped."""
        self._own_directory()
        # As the server's user, whose file each then is.
        self._call(["cp", "--recursive", "--no-target-directory", template.data, self.data])

    def copy_running(self, primary: Cluster, slot: str) -> None:
        """Take the data of a server that runs, as its standby that streams by the replication slot."""
        self._own_directory()
        self.run(
            "pg_basebackup",
            *("--pgdata", self.data, "--host", primary.directory, "--port", primary.port, "--username=postgres"),
            *("--checkpoint=fast", "--wal-method=stream", "--no-sync", "--create-slot", f"--slot={slot}"),
            "--write-recovery-conf",
        )
        with (self.data / "postgresql.auto.conf").open("a") as file:
            info = f"host={primary.directory} port={primary.port} user=postgres application_name={slot}"
            file.write(f"primary_conninfo = '{info}'\n")

    def start(self) -> None:
        """Start it; after a crash as soon as the processes of the killed server have let go of its memory."""
        lines = [f"{name} = '{value}'\n" for name, value in self.settings.items()]
        lines.append(f"unix_socket_directories = '{self.directory}'\n")
        (self.data / "suite.conf").write_text("".join(lines))
        configuration = self.data / "postgresql.conf"
        if "suite.conf" not in configuration.read_text():
            with configuration.open("a") as file:
                file.write("include 'suite.conf'\n")
        wait_until(self._starts, what=f"the server starts: {self.log_file}", seconds=SECONDS)

    def _starts(self) -> bool:
        arguments = ["--wait", "--silent", "--log", self.log_file, "--timeout", str(SECONDS)]
        return self._call([binaries() / "pg_ctl", "start", "--pgdata", self.data, *arguments], check=False) == 0

    def stop(self, mode: str = "fast") -> None:
        self.run("pg_ctl", "stop", "--pgdata", self.data, "--mode", mode, "--wait", "--silent")

    def restart(self, mode: str = "fast") -> None:
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """End the server's first process with kill -9, and wait for the others to notice and end by themselves."""
        pid = self.postmaster
        # Until they notice, they do what they are asked.
        family = [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, family)), what="the server is dead")

    def promote(self) -> None:
        """Make a primary of a standby."""
        self.run("pg_ctl", "promote", "--pgdata", self.data, "--wait", "--silent")

    def destroy(self) -> None:
        """Stop it whatever state it is in, and remove its data."""
        if (self.data / "postmaster.pid").exists() and is_alive(self.postmaster):
            self.stop("immediate")
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def postmaster(self) -> int:
        return int((self.data / "postmaster.pid").read_text().split()[0])

    @property
    def log_file(self) -> Path:
        return self.directory / "log"

    def database(self, **replaced: Any) -> dict[str, Any]:
        """Django's settings for it, by its socket."""
        here = {"NAME": DATABASE, "USER": "postgres", "PASSWORD": "", "HOST": str(self.directory), "PORT": self.port}
        return {**connections["default"].settings_dict, **here, "OPTIONS": {}, **replaced}

    def use_up_connections(self, until: ExitStack) -> None:
        """Take every connection that the server has to give, until then."""
        for _ in range(100):
            hog = self.connect(NAME="postgres")
            until.callback(hog.close)
            try:
                hog.ensure_connection()
            except OperationalError:
                return
        raise AssertionError("The server has more connections than it was given.")

    def connect(self, **replaced: Any) -> BaseDatabaseWrapper:
        """Return Django's connection to it, which the caller closes."""
        return type(connections["default"])(self.database(**replaced), "default")

    def url(self, **replaced: str) -> str:
        """Return its URL as `DATABASE_URL` takes it, by its socket unless `host` and `port` are given."""
        return database_url(self.connect(), **replaced)

    def fetch(self, query: str, parameters: Sequence[Any] = (), **replaced: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query, sent on a connection of its own."""
        connection = self.connect(**replaced)
        try:
            with connection.cursor() as cursor:
                cursor.execute(query, parameters)
                return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    def set(self, **settings: str | None) -> None:
        """Change settings that a running server takes over; None for the default."""
        for name, value in settings.items():
            how = f"RESET {name}" if value is None else f"SET {name} = '{value}'"
            self.fetch(f"ALTER SYSTEM {how}")
        self.fetch("SELECT pg_reload_conf()")
        for name, value in settings.items():
            wait_until(
                lambda name=name, value=value: value is None or self.fetch(f"SHOW {name}") == [(value,)],
                what=f"{name} is {value}",
            )

    def run(self, program: str, *arguments: str | Path) -> None:
        """Run one of the server's programs to its end."""
        self._call([binaries() / program, *arguments])

    def _call(self, command: Sequence[str | Path], *, check: bool = True) -> int:
        # A file, not a pipe: a server that is started inherits it, and would keep a pipe open.
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.run(
                [*self._enter, *command],
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                timeout=SECONDS,
            )
            output.seek(0)
            assert not check or process.returncode == 0, output.read()
        return process.returncode

    def _own_directory(self) -> None:
        self.directory.mkdir(mode=0o700)
        if self._user is not None:
            admit(SYSTEM_USER, self.data)
            shutil.chown(self.directory, SYSTEM_USER, self._user.pw_gid)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Clusters:
    """Makes clusters that are gone when the block ends, all from one whose tables are migrated."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._made: list[Cluster] = []
        self._template: Cluster | None = None

    def primary(self, name: str = "primary", enter: Sequence[str] = (), **settings: str) -> Cluster:
        """Return a server that runs, with the tables of the test project."""
        if self._template is None:
            self._template = self._new("template")
            self._template.make()
        cluster = self._new(name, enter, **settings)
        cluster.copy(self._template)
        cluster.start()
        return cluster

    def standby(self, primary: Cluster, name: str = "standby", **settings: str) -> Cluster:
        """Return a server that streams from the primary and has caught up with it."""
        cluster = self._new(name, **settings)
        cluster.copy_running(primary, name)
        cluster.start()
        wait_until_caught_up(primary, cluster)
        return cluster

    def _new(self, name: str, enter: Sequence[str] = (), **settings: str) -> Cluster:
        cluster = Cluster(self._home / name, enter, **settings)
        self._made.append(cluster)
        return cluster

    def remove(self, cluster: Cluster) -> None:
        """Stop a server and remove its data."""
        self._made.remove(cluster)
        cluster.destroy()

    def destroy(self) -> None:
        # Each of them, whatever becomes of the others.
        with ExitStack() as stack:
            for cluster in self._made[:]:
                stack.callback(self.remove, cluster)


@contextmanager
def clusters_in_a_short_place() -> Iterator[Clusters]:
    """Yield clusters whose directories are short enough for a socket, in memory where there is enough of it."""
    memory = Path("/dev/shm")
    in_memory = memory.is_dir() and shutil.disk_usage(memory).free > 2 << 30
    home = Path(tempfile.mkdtemp(prefix="sc-", dir=memory if in_memory else None))
    home.chmod(0o711)
    clusters = Clusters(home)
    try:
        yield clusters
    finally:
        clusters.destroy()
        shutil.rmtree(home)


def wait_until_caught_up(primary: Cluster, standby: Cluster) -> None:
    """Wait until all that is committed on the primary can be read on its standby."""
    [(end,)] = primary.fetch("SELECT pg_current_wal_flush_lsn()::text")
    query = "SELECT coalesce(pg_last_wal_replay_lsn() >= %s::pg_lsn, false)"
    wait_until(lambda: standby.fetch(query, [end]) == [(True,)], what="the standby has caught up")
