"""A real cron daemon, started for a test, and checkouts of the test project in root's crontab."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import django_singlecron
from tests.support.deadlines import DEADLINE, wait_until
from tests.support.replicas import ROOT
from tests.support.services import service_missing

PROGRAM, CRONTAB = "/usr/sbin/cron", "/usr/bin/crontab"
PID_FILE = Path("/run/crond.pid")
COMMENT = "django-singlecron test"
CHECKOUT = Path(__file__).with_name("checkout")


def require_cron() -> None:
    """Skip the test, or fail it in CI, unless it can have a cron daemon of its own."""
    if not (os.access(PROGRAM, os.X_OK) and os.access(CRONTAB, os.X_OK)):
        service_missing("cron: apt-get install cron")
    if os.geteuid() != 0:
        service_missing("root, as whom cron's daemon runs: run the tests as root, in a container for instance")
    if pid := running_daemon():
        service_missing(f"cron for the test alone: stop the daemon that runs here, process {pid}")


def running_daemon() -> str | None:
    """Return the process of the machine's cron daemon, which keeps its file locked."""
    try:
        with PID_FILE.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read().strip()
    except FileNotFoundError:
        pass
    return None


@contextmanager
def cron_daemon() -> Iterator[None]:
    """Run cron's daemon, which also starts what else the machine's tables have due meanwhile."""
    with subprocess.Popen(
        [PROGRAM, "-f"],
        env={},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            wait_until(lambda: running_daemon() == str(process.pid), what="a cron daemon")
            yield
            assert process.poll() is None, "The cron daemon ended."
        finally:
            process.terminate()


@contextmanager
def own_crontab() -> Iterator[None]:
    """Let root's crontab be empty for a while."""
    table = subprocess.run([CRONTAB, "-l"], capture_output=True, text=True).stdout
    # Without what a test left that was killed.
    before = "".join(line for line in table.splitlines(keepends=True) if COMMENT not in line)
    remove_crontab()
    try:
        yield
    finally:
        remove_crontab()
        if before:
            subprocess.run([CRONTAB, "-"], input=before, text=True, check=True)


def remove_crontab() -> None:
    """Remove root's crontab, if there is one."""
    subprocess.run([CRONTAB, "-r"], stderr=subprocess.DEVNULL)
    assert subprocess.run([CRONTAB, "-l"], capture_output=True).returncode == 1


class Checkout:
    """A replica: a directory with the code and the settings, and lines in the crontab."""

    def __init__(self, directory: Path, database: str, hang: Path) -> None:
        self.directory = directory
        self.hang = hang
        shutil.copytree(CHECKOUT, directory)
        for package in (Path(django_singlecron.__file__).parent, ROOT / "testproject"):
            shutil.copytree(package, directory / package.name, ignore=shutil.ignore_patterns("__pycache__"))
        settings = {"name": f"{COMMENT}: {directory.name}", "database": database, "hang": str(hang)}
        (directory / "replica.json").write_text(json.dumps(settings))

    def crontab(self, subcommand: str) -> str:
        """Run django-crontab's command as whoever deploys the checkout does; return what it printed."""
        done = subprocess.run(
            [sys.executable, "testproject/manage.py", "crontab", subcommand, "--settings=replica_settings"],
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def log(self) -> str:
        """What its jobs wrote."""
        log = self.directory / "log"
        return log.read_text() if log.exists() else ""

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which cron started its last quick run; empty when there was none."""
        file = self.directory / "environment"
        text = file.read_text() if file.exists() else ""
        return dict(variable.split("=", 1) for variable in text.split("\0") if variable)

    def processes(self) -> list[int]:
        """Return the processes that were started from it."""
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if str(self.directory) in _line(pid)]

    def destroy(self) -> None:
        """Wait until its processes have ended, or end them."""
        try:
            wait_until(lambda: not self.processes(), what="no process of a replica")
        finally:
            for pid in self.processes():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""  # it has ended meanwhile
