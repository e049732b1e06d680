"""What the soak's replicas call: jobs of all kinds, and what is drawn for each call of them to do."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import Any

from django.db import DatabaseError, connection

from django_singlecron import singleton_task
from tests.faults import jobs
from tests.faults.jobs import BETWEEN, FIRST, LANE, LAST, Acts

TIMEOUT = 0.8
MIN_INTERVAL = timedelta(seconds=1)
SLOT = timedelta(seconds=2)


@singleton_task("soak-plain")
def plain(attempt: str, lane: str = LANE, acts: Acts | None = None) -> str:
    return jobs.write_twice(attempt, acts)


@singleton_task("soak-timed", timeout=TIMEOUT)
def timed(attempt: str, lane: str = LANE, acts: Acts | None = None) -> str:
    return jobs.write_twice(attempt, acts)


@singleton_task("soak-slotted", once_per=SLOT)
def slotted(attempt: str, lane: str = LANE, acts: Acts | None = None) -> str:
    return jobs.write_twice(attempt, acts)


@singleton_task("soak-once", once_per=SLOT, retry=False)
def once(attempt: str, lane: str = LANE, acts: Acts | None = None) -> str:
    return jobs.write_twice(attempt, acts)


@singleton_task("soak-paced", min_interval=MIN_INTERVAL)
def paced(attempt: str, lane: str = LANE, acts: Acts | None = None) -> str:
    return jobs.write_twice(attempt, acts)


@singleton_task("soak-raising")
def raising(attempt: str, lane: str = LANE, acts: Acts | None = None) -> str:
    return jobs.write_twice(attempt, acts)


@singleton_task("soak-hooked")
def hooked(attempt: str, lane: str = LANE, acts: Acts | None = None) -> str:
    return jobs.write_twice(attempt, acts)


def swallow_a_database_error() -> None:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 / 0")
    except DatabaseError:
        pass


def print_megabytes(count: int) -> None:
    for _ in range(count * 16):
        print("x" * (1 << 16))


jobs.ACTS.update({"swallow": swallow_a_database_error, "print megabytes": print_megabytes})
jobs.JOBS.update(plain=plain, timed=timed, slotted=slotted, once=once, paced=paced, raising=raising, hooked=hooked)

# How often each is called. "work" has a name with an argument: one job for each lane.
CALLED = {"plain": 4, "work": 4, "timed": 3, "raising": 2, "hooked": 2, "slotted": 1, "once": 1, "paced": 1}
LANES = "abc"

# What a body is told, with how often. Unnamed: to do its work at once, or to take its time.
BRIEF, IN_PYTHON, IN_DATABASE = "brief", "pause", "pg_sleep"
HARMLESS = {BRIEF: 560, IN_PYTHON: 220, IN_DATABASE: 120}
FAULTS = {
    "raise": 20,
    "swallow": 10,
    "fork": 16,
    "print megabytes": 10,
    "sys.exit": 10,
    "close": 6,
    "kill": 2,
    "os._exit": 2,
}


def draw_call(drawn: Random) -> tuple[str, str]:
    """Return a job and a lane for it."""
    [job] = drawn.choices([*CALLED], [*CALLED.values()])
    return job, drawn.choice(LANES) if job == "work" else LANE


def draw_acts(drawn: Random, job: str) -> Acts | None:
    """Return what the body is to do."""
    told = {**HARMLESS, **FAULTS}
    [act] = drawn.choices([*told], [*told.values()])
    # A job that exits with 0 is done, wherever that is.
    moment = LAST if act == "sys.exit" else drawn.choice([FIRST, BETWEEN, LAST])
    if job == "raising" and drawn.random() < 0.5:
        act = "raise"
    if job == "hooked" and drawn.random() < 0.5:
        return {moment: drawn.choice([["on_commit", "raise"], ["on_commit", "pause", 0.02]])}
    if job == "timed" and drawn.random() < 0.05:
        return {moment: [drawn.choice([IN_PYTHON, IN_DATABASE]), 4 * TIMEOUT]}
    arguments: dict[str, list[Any]] = {
        IN_PYTHON: [round(drawn.uniform(0.005, 0.1), 3)],
        IN_DATABASE: [round(drawn.uniform(0.005, 0.1), 3)],
        "fork": [drawn.choice(["return", "os._exit", "sys.exit", "query"])],
        "print megabytes": [drawn.randint(1, 4)],
        "sys.exit": [drawn.choice([0, 3])],
        "os._exit": [7],
    }
    return None if act == BRIEF else {moment: [act, *arguments.get(act, [])]}


def fault_of(acts: Acts | None) -> str | None:
    """Return the fault that a body was told to bring about."""
    for name, *arguments in (acts or {}).values():
        if name == "on_commit":
            return "on_commit hook raises" if arguments[0] == "raise" else None
        if name in (IN_PYTHON, IN_DATABASE):
            return "timeout passes" if arguments[0] > TIMEOUT else None
        return f"job: {name}"
    return None
