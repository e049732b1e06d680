"""The jobs that the suite runs: each writes two rows, tells the witness of it, and does as it is told in between."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from django.db import connection
from django.db.backends.base.base import BaseDatabaseWrapper

from django_singlecron import SingletonTask, current_run, singleton_task
from tests.faults.witness import CUT, Witness

CREATE_WORK = "CREATE TABLE IF NOT EXISTS faults_work (run bigint, step integer, attempt text)"
EMPTY_WORK = "DELETE FROM faults_work"
# The comments are what the proxy knows them by.
WRITES = (
    "/* write 1 */ INSERT INTO faults_work VALUES (%s, 1, %s)",
    "/* write 2 */ INSERT INTO faults_work VALUES (%s, 2, %s)",
)

# The moments of a body at which it may be told to do something.
FIRST, BETWEEN, LAST = "first", "between", "last"

LANE = "a"
"""The lane of a call that names none. Jobs of different lanes have different locks."""

witness: Witness | None = None
"""Of this process, set by whoever calls jobs in it."""


def create_work(on: BaseDatabaseWrapper) -> None:
    """Make the table that the jobs write into, if there is none, and empty it."""
    with on.cursor() as cursor:
        cursor.execute(CREATE_WORK)
        cursor.execute(EMPTY_WORK)


def write(attempt: str, step: int) -> None:
    run = current_run()
    assert run is not None
    with connection.cursor() as cursor:
        cursor.execute(WRITES[step - 1], [run.id, attempt])


Acts = dict[str, list[Any]]
"""What to do at a moment: the name of an act, and its arguments."""


@singleton_task("faults-{lane}")
def work(attempt: str, lane: str = LANE, acts: Acts | None = None) -> str:
    """Write twice, and act before, between and after."""
    run = current_run()
    assert witness is not None
    assert run is not None
    with witness.body(attempt=attempt, job=run.name, run=run.id, writes=len(WRITES)):
        act(acts, FIRST)
        write(attempt, 1)
        act(acts, BETWEEN)
        write(attempt, 2)
        act(acts, LAST)
    return attempt


def act(acts: Acts | None, moment: str) -> None:
    if acts and moment in acts:
        name, *arguments = acts[moment]
        ACTS[name](*arguments)


class JobFailed(Exception):
    """What the act "raise" raises."""


def fail() -> None:
    raise JobFailed("as told")


def note_cut() -> None:
    assert witness is not None
    witness.note(CUT, process=os.getpid())


def kill() -> None:
    note_cut()
    os.kill(os.getpid(), signal.SIGKILL)


def exit_at_once(code: int) -> None:
    note_cut()
    os._exit(code)


def close_connection() -> None:
    run = current_run()
    assert witness is not None
    assert run is not None
    witness.note(CUT, run=run.id)
    connection.close()


ACTS: dict[str, Callable[..., object]] = {
    "raise": fail,
    "kill": kill,
    "os._exit": exit_at_once,
    "sys.exit": sys.exit,
    "close": close_connection,
}

JOBS: dict[str, SingletonTask[Any, Any]] = {"work": work}
"""By the names that they are called by. Each takes an `attempt` and a `lane`, and needs no other argument."""
