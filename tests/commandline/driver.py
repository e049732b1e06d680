"""`manage.py` as a user runs it: in this process, where that shows the same, or in one of its own."""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pytest
from django.core.management import ManagementUtility, get_commands
from django.db import connection

from tests.support.replicas import MANAGE, ROOT, database_url

from .management.commands import probe, probe_decorated


@dataclass(frozen=True)
class Finished:
    """What a command line gave."""

    code: int | str | None
    out: str
    err: str


Manage = Callable[..., Finished]


@pytest.fixture(name="add_commands")
def add_commands_fixture(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Commands that Django finds by their names: the probes, and those that the test adds."""
    added = get_commands()

    def add(**more: Any) -> None:
        for name, command in more.items():
            monkeypatch.setitem(added, name, command)

    add(probe=probe.Command(), probe_decorated=probe_decorated.Command())
    return add


@pytest.fixture(name="manage")
def manage_fixture(
    transactional_db: None,
    add_commands: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Manage:
    """Run a command line of `manage.py` in this process."""

    def run(*words: str) -> Finished:
        argv = [str(MANAGE), *words]
        monkeypatch.setattr(sys, "argv", argv)
        # Objects of commands keep the streams of their making.
        add_commands(probe=probe.Command(), probe_decorated=probe_decorated.Command())
        code: int | str | None = 0
        try:
            ManagementUtility(argv).execute()
        except SystemExit as exit_:
            code = exit_.code or 0
        return Finished(code, *capsys.readouterr())

    return run


def environment(**more: str) -> dict[str, str]:
    """The environment in which a process uses this test's database."""
    ours = {
        "DATABASE_URL": database_url(connection),
        "DJANGO_SETTINGS_MODULE": "tests.commandline.settings",
        "PYTHONWARNINGS": "error",
    }
    return {**os.environ, "PYTHONPATH": str(ROOT), **ours, **more}


def run_process(*words: str, stdin: bytes = b"", shell: str | None = None, **variables: str) -> Finished:
    """Run `manage.py` with `words`, or a `shell` line that does, in a process of its own."""
    done = subprocess.run(
        ["sh", "-c", shell] if shell is not None else [sys.executable, str(MANAGE), *words],
        input=stdin,
        capture_output=True,
        env=environment(**variables),
        cwd=ROOT,
        timeout=90,
        check=False,
    )
    return Finished(done.returncode, done.stdout.decode(errors="surrogateescape"), done.stderr.decode())


def start_process(*words: str) -> AbstractContextManager["subprocess.Popen[str]"]:
    """Start `manage.py` with `words` and pipes for all its streams."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, str(MANAGE), *words],
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        text=True,
        env=environment(),
        cwd=ROOT,
    )
