"""The demo: what it prints, what it takes for success, and that nothing of it stays behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection

from django_singlecron.models import JobRun
from testproject import demo
from testproject.billing.models import Invoice, Tenant
from tests.support.ctrl_c import ctrl_c_raises
from tests.support.deadlines import wait_until
from tests.support.replicas import database_url

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 60


@pytest.fixture
def running_demo(transactional_db: None) -> Iterator[subprocess.Popen[str]]:
    with ctrl_c_raises():
        process = subprocess.Popen(
            [sys.executable, "-m", "testproject.demo"],
            cwd=ROOT,
            env={**os.environ, "DATABASE_URL": database_url(connection)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    with process:
        yield process
        process.kill()


def test_demo(running_demo: subprocess.Popen[str]) -> None:
    output, _ = running_demo.communicate(timeout=SECONDS)
    assert running_demo.returncode == 0, output
    assert "360 invoices for 120 tenants" in output
    assert "120 invoices for 120 tenants" in output
    lines = re.findall(r"^  (replica-\d +\d+ +(?:acquired|skipped) .*)$", output, re.MULTILINE)
    rows = [re.split(r" {2,}", line) for line in lines]
    assert sorted(row[2:4] for row in rows) == [
        ["acquired", "succeeded"],
        ["skipped", "skipped"],
        ["skipped", "skipped"],
    ]
    (winner,) = (row for row in rows if row[2] == "acquired")
    assert winner[5] == "-"
    assert {row[0] for row in rows} == set(demo.REPLICAS)
    assert [row[4:] for row in rows if row is not winner] == [["-", winner[0]], ["-", winner[0]]]
    assert {int(row[1]) for row in rows} == set(JobRun.objects.values_list("pid", flat=True))
    assert Invoice.objects.count() == Tenant.objects.count() == 120


def test_a_demo_that_is_interrupted_leaves_nothing_behind(running_demo: subprocess.Popen[str]) -> None:
    wait_until(JobRun.objects.running().exists, what="a run going on", seconds=SECONDS)
    replicas = children_of(running_demo.pid)
    assert len(replicas) == 3

    running_demo.send_signal(signal.SIGINT)

    output, _ = running_demo.communicate(timeout=SECONDS)
    assert running_demo.returncode == 1
    assert output.endswith("Interrupted: the replicas are stopped.\n")
    for pid in replicas:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert JobRun.objects.acquired().get().status == "failed"
    assert not Invoice.objects.exists()


@pytest.mark.parametrize(
    ("attempts", "invoices", "problems"),
    [
        ("succeeded skipped skipped", 120, []),
        ("succeeded skipped skipped", 240, ["there are 240 invoices, not 120"]),
        (
            "succeeded succeeded skipped",
            240,
            ["2 replicas ran the job, not 1", "1 replicas skipped it, not 2", "there are 240 invoices, not 120"],
        ),
        ("failed skipped skipped", 120, ["the run 1 reads failed"]),
        ("running skipped skipped", 120, ["the run 1 reads running"]),
        ("succeeded skipped", 120, ["1 replicas skipped it, not 2"]),
        ("skipped skipped skipped", 120, ["0 replicas ran the job, not 1", "3 replicas skipped it, not 2"]),
    ],
)
def test_verdict(attempts: str, invoices: int, problems: list[str]) -> None:
    runs = [
        JobRun(pk=number, outcome="skipped" if status == "skipped" else "acquired", status=status)
        for number, status in enumerate(attempts.split(), start=1)
    ]
    assert demo.judge(runs, invoices) == problems


def test_make_says_that_it_needs_python(tmp_path: Path) -> None:
    make = shutil.which("make")
    assert make is not None
    for name in ("Makefile", "pyproject.toml", "tools/venv.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)

    result = subprocess.run([make, "demo"], cwd=tmp_path, env={"PATH": "/none"}, capture_output=True, text=True)

    assert result.returncode != 0
    assert "No Python 3.10 or newer that can make virtual environments was found" in result.stderr


def children_of(parent: int) -> list[int]:
    table = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = (map(int, line.split()) for line in table.splitlines())
    return [pid for pid, ppid in pairs if ppid == parent]
