"""`python -m tests.bench`: measures what the package costs, prints one table, exits with 1 when a target is missed."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from tests.bench.report import Row, machine, print_table, versions
from tests.bench.server import own_databases


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    rounds: int
    starts: int
    long_history: int
    runs_for_memory: int


FULL = Size(rounds=30, starts=41, long_history=1_000_000, runs_for_memory=10_000)
QUICK = Size(rounds=15, starts=7, long_history=50_000, runs_for_memory=1_000)


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and rows: a first impression in a minute")
    size = QUICK if parser.parse_args().quick else FULL
    with own_databases() as url:
        rows = []
        for row in _measure(url, size):
            rows.append(row)
            print(f"{row.what}: {row.figure} {row.verdict}", file=sys.stderr, flush=True)
        print(versions(url))
    print_table(rows)
    print(machine())
    missed = [row for row in rows if row.within is False]
    print(f"{len(missed)} missed." if missed else "All within target.")
    return 1 if missed else 0


def _measure(url: str, size: Size) -> Iterator[Row]:
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.bench.settings"
    import django

    django.setup()
    from django.core.management import call_command
    from django.db import connections

    # These import models.
    from tests.bench.crowd import measure_crowd
    from tests.bench.latency import measure_latency
    from tests.bench.memory import measure_memory
    from tests.bench.startup import measure_startup

    try:
        for using in connections:
            call_command("migrate", database=using, verbosity=0)
        yield from measure_latency(url, rounds=size.rounds, long=size.long_history)
        yield from measure_startup(url, rounds=size.starts)
        yield from measure_crowd(url)
        yield from measure_memory(runs=size.runs_for_memory)
    finally:
        connections.close_all()


if __name__ == "__main__":
    sys.exit(main())
