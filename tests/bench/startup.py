"""What the app costs a process that starts: at `django.setup()`, and for a command that is skipped."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.bench import jobs
from tests.bench.report import Row, ratio_row
from tests.bench.timing import alternate

ROOT = Path(__file__).resolve().parent.parent.parent
MANAGE = ROOT / "testproject" / "manage.py"

MAX_SETUP_SECONDS = 0.015
DEADLINE = 60

# Processor time, as importing waits for nothing: what else the machine does counts less.
_TIME_SETUP = "import time, django; began = time.process_time(); django.setup(); print(time.process_time() - began)"


def measure_startup(url: str, *, rounds: int) -> Iterator[Row]:
    """Yield the rows of processes that start."""
    timings = alternate(
        {"with": lambda: _setup("tests.bench.settings"), "without": lambda: _setup("tests.bench.settings_without")},
        rounds=rounds,
        block=1,
        measure=lambda call: call(),
    )
    added = timings.difference("with", "without")
    yield Row(
        "django.setup()",
        f"{timings.seconds('with') * 1e3:.0f} ms",
        f"{timings.seconds('without') * 1e3:.0f} ms without the app",
        f"{added * 1e3:+.1f} ms",
        f"at most {MAX_SETUP_SECONDS * 1e3:.0f} ms more",
        added <= MAX_SETUP_SECONDS,
    )
    with jobs.held_elsewhere(url, "bench_skipped"):
        timings = alternate(
            {"skipped": lambda: _command("bench_skipped"), "noop": lambda: _command("bench_noop")},
            rounds=rounds,
            block=1,
        )
    ratio = timings.ratio("skipped", "noop")
    what, other = "manage.py, a skipped job", "a command that does nothing"
    yield ratio_row(what, timings.seconds("skipped"), timings.seconds("noop"), other, ratio, 1.05)


def _setup(settings: str) -> float:
    """Return how many seconds `django.setup()` takes in a new process."""
    return float(_python(["-c", _TIME_SETUP], settings))


def _command(name: str) -> None:
    _python([str(MANAGE), name], "tests.bench.settings")


def _python(arguments: list[str], settings: str) -> str:
    # With byte code, which an installed package has, and which the first call of each writes here.
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": settings, "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        timeout=DEADLINE,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout
