"""What one call costs: skipped and run, against the floor, in a short and in a long history."""

from __future__ import annotations

from collections.abc import Iterator

import pglock
from django.db import connection
from django.test.utils import CaptureQueriesContext
from psycopg.conninfo import make_conninfo

from tests.bench import jobs
from tests.bench.filling import fill_history
from tests.bench.floor import Floor
from tests.bench.report import Row, ratio_row
from tests.bench.server import LARGE
from tests.bench.timing import alternate

SHORT = 1_000
BLOCK = 20


@pglock.advisory(jobs.FREE, timeout=0, side_effect=pglock.Skip)
def pglock_free() -> None: ...


@pglock.advisory(jobs.HELD, timeout=0, side_effect=pglock.Skip)
def pglock_held() -> None:
    raise AssertionError


def measure_latency(url: str, *, rounds: int, long: int) -> Iterator[Row]:
    """Yield the rows of skips and runs; `long` is the number of rows of the long history."""
    for using, rows in (("default", SHORT), ("large", long)):
        fill_history(using, rows)
    yield from _skips(url, rounds)
    yield from _runs(url, rounds)
    yield from _flatness(url, rounds, long)


def _skips(url: str, rounds: int) -> Iterator[Row]:
    floor = Floor(url, jobs.HELD)
    pglock_key = pglock.advisory(jobs.HELD).int_lock_id
    try:
        with jobs.held_elsewhere(url), jobs.session_lock(url, pglock_key):
            with CaptureQueriesContext(connection) as queries:
                assert not jobs.held().ran
            timings = alternate(
                {"product": jobs.held, "floor": floor.skip, "pglock": pglock_held}, rounds=rounds, block=BLOCK
            )
    finally:
        floor.close()
    product = timings.seconds("product")
    ratio = timings.ratio("product", "floor")
    yield ratio_row("skipped attempt", product, timings.seconds("floor"), "by hand", ratio, 1.0)
    count = len(queries)
    yield Row("statements of a skipped attempt", str(count), figure=str(count), target="exactly 1", within=count == 1)
    ratio = timings.ratio("product", "pglock")
    yield ratio_row("skipped attempt", product, timings.seconds("pglock"), "django-pglock, no record", ratio, None)


def _runs(url: str, rounds: int) -> Iterator[Row]:
    floor = Floor(url, f"{jobs.FREE}-by-hand")
    assert jobs.free().ran
    try:
        timings = alternate(
            {"product": jobs.free, "floor": floor.run, "pglock": pglock_free}, rounds=rounds, block=BLOCK
        )
    finally:
        floor.close()
    product = timings.seconds("product")
    ratio = timings.ratio("product", "floor")
    yield ratio_row("recorded run", product, timings.seconds("floor"), "by hand", ratio, 1.4)
    ratio = timings.ratio("product", "pglock")
    yield ratio_row("recorded run", product, timings.seconds("pglock"), "django-pglock, no record", ratio, None)


def _flatness(url: str, rounds: int, long: int) -> Iterator[Row]:
    compared_with = f"with {SHORT:,} rows"
    assert jobs.free_in_large().ran
    timings = alternate({"long": jobs.free_in_large, "short": jobs.free}, rounds=rounds, block=BLOCK)
    ratio = timings.ratio("long", "short")
    what = f"recorded run, history of {long:,} rows"
    yield ratio_row(what, timings.seconds("long"), timings.seconds("short"), compared_with, ratio, 1.1)

    with jobs.held_elsewhere(url), jobs.held_elsewhere(make_conninfo(url, dbname=LARGE)):
        assert not jobs.held_in_large().ran
        timings = alternate({"long": jobs.held_in_large, "short": jobs.held}, rounds=rounds, block=BLOCK)
    ratio = timings.ratio("long", "short")
    what = f"skipped attempt, history of {long:,} rows"
    yield ratio_row(what, timings.seconds("long"), timings.seconds("short"), compared_with, ratio, 1.1)
