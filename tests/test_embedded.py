"""The test project's own PostgreSQL: many processes share it, some are killed, and it is there for the next."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from testproject.embedded import EmbeddedServer, binaries

ROOT = Path(__file__).resolve().parent.parent

USE = """
import pathlib, sys
from testproject.embedded import EmbeddedServer
print(EmbeddedServer(pathlib.Path(sys.argv[1])).start(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def home() -> Iterator[Path]:
    # Not tmp_path, which is too long for a socket and closed to the server's system user.
    path = Path(tempfile.mkdtemp())
    yield path
    assert EmbeddedServer(path).stop()
    shutil.rmtree(path)


@contextmanager
def user_of(home: Path) -> Iterator[subprocess.Popen[str]]:
    """Yield a process that uses the server until the block ends."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", USE, home], cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def url_from(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def sql(url: str, statement: str) -> str:
    command = [str(binaries() / "psql"), "--no-psqlrc", "--tuples-only", "--no-align", "--command", statement, url]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()


def test_first_starts_it_and_the_last_one_out_stops_it(home: Path) -> None:
    with ExitStack() as last:
        with ExitStack() as others:
            processes = [(others if n else last).enter_context(user_of(home)) for n in range(4)]
            (url,) = {url_from(process) for process in processes}
            assert sql(url, "SHOW max_connections") == "400"
        assert EmbeddedServer(home).answers()
        assert not EmbeddedServer(home).stop()
    assert not EmbeddedServer(home).answers()


def test_killed_user_leaves_it_to_the_next(home: Path) -> None:
    with user_of(home) as process:
        url = url_from(process)
        sql(url, "CREATE TABLE kept ()")
        process.kill()
    assert EmbeddedServer(home).answers()
    with user_of(home) as process:
        assert sql(url_from(process), "SELECT count(*) FROM kept") == "0"
    assert not EmbeddedServer(home).answers()


def test_killed_server_is_started_again_with_its_data(home: Path) -> None:
    with user_of(home) as process:
        url = url_from(process)
        sql(url, "CREATE TABLE kept ()")
        postmaster = int((home / "postgres" / "postmaster.pid").read_text().split()[0])
        os.kill(postmaster, signal.SIGKILL)
        with user_of(home) as another:
            assert sql(url_from(another), "SELECT count(*) FROM kept") == "0"


def test_damaged_data_is_put_aside(home: Path) -> None:
    with user_of(home) as process:
        url_from(process)
    (home / "postgres" / "global" / "pg_control").write_bytes(b"")
    with user_of(home) as process:
        assert sql(url_from(process), "SELECT 1") == "1"
        _, warning = process.communicate(timeout=30)
        assert "moved to postgres.broken, and made anew" in warning
    assert not EmbeddedServer(home).answers()


def test_long_path_has_its_socket_elsewhere(home: Path) -> None:
    far = home / ("d" * 100)
    with user_of(far) as process:
        url = url_from(process)
        assert "d" * 100 not in url
        assert sql(url, "SELECT 1") == "1"
    assert not EmbeddedServer(far).answers()
    shutil.rmtree(EmbeddedServer(far).socket_dir)
