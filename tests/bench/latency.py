"""What one call costs: skipped and run, against the floor, in a short and in a long history."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pglock
from django.db import connection
from django.test.utils import CaptureQueriesContext
from psycopg.conninfo import make_conninfo

from tests.bench import jobs, processors
from tests.bench.filling import fill_history
from tests.bench.floor import Floor
from tests.bench.report import Row, ratio_row
from tests.bench.server import LARGE
from tests.bench.timing import Timings, alternate

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
    what, floor = "skipped attempt", Floor(url, jobs.HELD)
    pglock_key = pglock.advisory(jobs.HELD).int_lock_id
    calls = {"product": jobs.held, "floor": floor.skip, "pglock": pglock_held}
    try:
        with jobs.held_elsewhere(url), jobs.session_lock(url, pglock_key):
            with CaptureQueriesContext(connection) as queries:
                assert not jobs.held().ran
            yield from _compare(what, calls, rounds, 1.0)
    finally:
        floor.close()
    count = len(queries)
    yield Row("statements of a skipped attempt", str(count), figure=str(count), target="exactly 1", within=count == 1)


def _runs(url: str, rounds: int) -> Iterator[Row]:
    what, floor = "recorded run", Floor(url, f"{jobs.FREE}-by-hand")
    calls = {"product": jobs.free, "floor": floor.run, "pglock": pglock_free}
    assert jobs.free().ran
    try:
        yield from _compare(what, calls, rounds, 1.4)
    finally:
        floor.close()


def _compare(what: str, calls: Mapping[str, Callable[[], object]], rounds: int, limit: float) -> Iterator[Row]:
    timings = alternate(calls, rounds=rounds, block=BLOCK)
    yield _against(timings, what, "floor", "by hand", limit)
    yield _against(timings, what, "pglock", "django-pglock, no record", None)
    if processors.are_separate():
        with processors.together():
            timings = alternate(calls, rounds=rounds, block=BLOCK)
        yield _against(timings, f"{what}, one processor", "floor", "by hand", None)


def _against(timings: Timings, what: str, other: str, other_name: str, limit: float | None) -> Row:
    product = timings.seconds("product")
    return ratio_row(what, product, timings.seconds(other), other_name, timings.ratio("product", other), limit)


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
