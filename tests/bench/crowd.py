"""300 attempts on one job at once, each on a connection of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import psycopg
from django.db import connection

from django_singlecron import singleton_task
from django_singlecron.models import JobRun
from tests.bench.report import Row

ATTEMPTS = 300
DEADLINE = 60
JOB = "bench-crowd"


class _Crowd:
    """Threads that wait for one another, then call one job; the winner ends after all the others."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self.ran = 0
        self.skipped = 0
        self._start = threading.Barrier(ATTEMPTS + 1)
        self._lock = threading.Lock()
        self._others_are_done = threading.Event()

    @singleton_task(JOB)
    def _job(self) -> None:
        if not self._others_are_done.wait(DEADLINE):
            raise TimeoutError

    def gather(self) -> float:
        """Let them all call; return how many seconds passed until the last of those that were skipped was back."""
        threads = [threading.Thread(target=self._attempt) for _ in range(ATTEMPTS)]
        for thread in threads:
            thread.start()
        self._start.wait(DEADLINE)
        began = time.perf_counter()
        self._others_are_done.wait(DEADLINE)
        seconds = time.perf_counter() - began
        for thread in threads:
            thread.join(DEADLINE)
        return seconds

    def _attempt(self) -> None:
        try:
            connection.ensure_connection()
            self._start.wait(DEADLINE)
            ran = self._job().ran
            with self._lock:
                self.ran += ran
                self.skipped += not ran
        except BaseException as error:  # whatever it is, it is counted
            self.errors.append(error)
        finally:
            connection.close()
            if self.skipped + len(self.errors) >= ATTEMPTS - 1:
                self._others_are_done.set()


def measure_crowd(url: str) -> Iterator[Row]:
    """Yield the row of the crowd, or why the server is too small for it."""
    what, target = f"{ATTEMPTS} attempts on one job at once", f"1 ran, {ATTEMPTS - 1} skipped, 0 errors"
    allowed = _free_connections(url)
    if allowed < ATTEMPTS:
        yield Row(what, f"not measured: the server has {allowed} connections left", target=target)
        return
    crowd = _Crowd()
    seconds = crowd.gather()
    for error in crowd.errors[:3]:
        print(f"error in the crowd: {error!r}")
    rows = JobRun.objects.for_job(JOB)
    recorded = (rows.succeeded().count(), rows.skipped().count())
    figure = f"{crowd.ran} ran, {crowd.skipped} skipped, {len(crowd.errors)} errors"
    yield Row(
        what,
        f"{seconds:.1f} s until all were answered",
        f"history: {recorded[0]} succeeded, {recorded[1]} skipped",
        figure,
        target,
        figure == target and recorded == (1, ATTEMPTS - 1),
    )


def _free_connections(url: str) -> int:
    with psycopg.connect(url) as observer:
        row = observer.execute(
            "SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int "
            "- count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
        ).fetchone()
    assert row is not None
    return int(row[0])
