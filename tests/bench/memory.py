"""Whether a process that runs jobs again and again grows."""

from __future__ import annotations

import gc
import os
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.bench import jobs
from tests.bench.report import Row

WARM_UP = 200
# A leak of one small object a run would be a hundred bytes a run.
MAX_BYTES_A_RUN = 10


def measure_memory(*, runs: int) -> Iterator[Row]:
    """Yield the row of a process that runs a job `runs` times."""
    _repeat(jobs.free, WARM_UP)
    tracemalloc.start()
    try:
        _repeat(jobs.free, WARM_UP)
        allocated, resident = tracemalloc.get_traced_memory()[0], _resident_bytes()
        _repeat(jobs.free, runs)
        allocated, resident = tracemalloc.get_traced_memory()[0] - allocated, _resident_bytes() - resident
    finally:
        tracemalloc.stop()
    yield Row(
        f"memory over {runs:,} runs in one process",
        f"{allocated / 1024:+.1f} kB allocated",
        f"{resident / 1024:+.0f} kB resident",
        f"{allocated / runs:+.1f} bytes a run",
        f"at most {MAX_BYTES_A_RUN} bytes a run",
        allocated / runs <= MAX_BYTES_A_RUN,
    )


def _repeat(call: Callable[[], object], times: int) -> None:
    for _ in range(times):
        call()
    gc.collect()


def _resident_bytes() -> int:
    # https://man7.org/linux/man-pages/man5/proc_pid_statm.5.html
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
