"""`python -m tests.bench.watching`: what `singlecron status` and `check` cost on a short and on a long history."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from functools import partial

from .server import own_databases

ROWS = {"default": 10_000, "large": 1_000_000}
ROUNDS = 11


def main() -> None:
    with own_databases():
        os.environ["DJANGO_SETTINGS_MODULE"] = "tests.bench.settings"
        import django

        django.setup()
        measure()


def measure() -> None:
    from django.core.management import call_command
    from django.db import connections

    from django_singlecron import registry, singleton_task, watch

    from .filling import fill_slots

    registry.autodiscover()
    try:
        for using, rows in ROWS.items():
            registry._tasks.clear()
            for number in range(200):
                name = f"job {number}"
                registry._tasks[name] = singleton_task(name, schedule="0 2 * * *", using=using)(lambda: None)
            call_command("migrate", database=using, verbosity=0)
            fill_slots(using, rows)
            with open(os.devnull, "w") as nowhere:
                print(f"{rows:>9,} rows, 200 jobs:", end=" ")
                shown = timed(using, partial(call_command, "singlecron", "status", database=using, stdout=nowhere))
                checked = timed(using, partial(watch.check, watch.Look(), using))
            print(f"status {shown}; check {checked}")
    finally:
        connections.close_all()


def timed(using: str, function: Callable[[], object]) -> str:
    from django.db import connections
    from django.test.utils import CaptureQueriesContext

    seconds = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - begin)
    with CaptureQueriesContext(connections[using]) as queries:
        function()
    inside = sum(float(query["time"]) for query in queries)
    return f"{statistics.median(seconds) * 1000:.0f} ms, {len(queries)} queries of {inside * 1000:.0f} ms together"


if __name__ == "__main__":
    main()
