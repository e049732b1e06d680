"""The jobs that the suite runs: each writes two rows, tells the witness of it, and does as it is told in between."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.db import connection
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.module_loading import import_string

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
    return write_twice(attempt, acts)


@singleton_task("faults-monthly-{lane}", once_per="month")
def monthly(attempt: str, lane: str = LANE, acts: Acts | None = None) -> str:
    """The same, at most once a month."""
    return write_twice(attempt, acts)


@singleton_task("faults-spaced-{lane}", min_interval=3600)
def spaced(attempt: str, lane: str = LANE, acts: Acts | None = None) -> str:
    """The same, and not again within an hour."""
    return write_twice(attempt, acts)


@singleton_task("faults-once-{lane}", once_per="month", retry=False)
def once(attempt: str, lane: str = LANE, acts: Acts | None = None) -> str:
    """The same, and not again in a month in which it failed."""
    return write_twice(attempt, acts)


@singleton_task("faults-timeout-{lane}", timeout=600)
def timed(attempt: str, lane: str = LANE, acts: Acts | None = None) -> str:
    """The same, with a deadline, which watches from a thread of its own."""
    return write_twice(attempt, acts)


def write_twice(attempt: str, acts: Acts | None) -> str:
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
    if run is not None:
        assert witness is not None
        witness.note(CUT, run=run.id)
    connection.close()


def sleep_in_the_database(seconds: float) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(%s)", [seconds])


def ask_for_megabytes(after: float) -> None:
    """Ask for an answer that no buffer holds, which the server sends some seconds later."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT repeat('x', 1000000) FROM (SELECT pg_sleep(%s) OFFSET 0) AS slept, generate_series(1, 50)", [after]
        )


class SlowReader:
    """A file that takes its time over what is first written to it."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def write(self, data: bytes) -> None:
        time.sleep(self._seconds)
        self._seconds = 0


def read_slowly(seconds: float, may_take: str | None) -> None:
    """Copy megabytes out of the database and pause while most are on their way."""
    copy = "COPY (SELECT repeat('x', 1000) FROM generate_series(1, 50000)) TO STDOUT"
    reader = SlowReader(seconds)
    with connection.cursor() as cursor:
        if may_take is not None:
            cursor.execute(f"SET LOCAL tcp_user_timeout = '{may_take}'")
        if hasattr(cursor, "copy_expert"):
            cursor.copy_expert(copy, reader)
            return
        with cursor.copy(copy) as chunks:
            for chunk in chunks:
                reader.write(chunk)


def fork(how: str) -> None:
    """Fork a child that comes back out of the job or ends in it; wait for its end."""
    pid = os.fork()
    if pid == 0:
        if how == "os._exit":
            os._exit(0)
        if how == "sys.exit":
            sys.exit(0)
        if how == "query":
            # On a connection of its own: that of the run is its parent's.
            sleep_in_the_database(0)
            connection.close()
            os._exit(0)
        return
    os.waitpid(pid, 0)


def leave_a_child(pid_file: str) -> None:
    """Fork a child that outlives this process, write its process id into a file, and be killed."""
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
        os._exit(0)
    Path(pid_file).write_text(str(pid))
    kill()


hoard: list[bytearray] = []


def use_up_memory(keep: bool) -> None:
    """Allocate until there is no memory left to this process; then keep it, or let it go."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
    kept = hoard if keep else []
    while True:
        kept.append(bytearray(1 << 18))


def write_output(flush: bool) -> None:
    # Whatever PYTHONUNBUFFERED says.
    sys.stdout.reconfigure(write_through=flush)
    print("output", flush=flush)


def fill_file(path: str) -> None:
    """Write a file larger than this process may."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, resource.RLIM_INFINITY))
    Path(path).write_bytes(bytes(1 << 19))


def wait_for(kind: str) -> None:
    """Wait until a kind of line is in the witness."""
    assert witness is not None
    witness.wait_for(kind)


def on_commit(name: str, *arguments: Any) -> None:
    """Do something once the run is committed."""
    connection.on_commit(lambda: ACTS[name](*arguments) and None)


def do(path: str, *arguments: Any) -> None:
    """Call a function of another module of the suite, such as "misdeeds.recurse"."""
    import_string(f"tests.faults.{path}")(*arguments)


ACTS: dict[str, Callable[..., object]] = {
    "raise": fail,
    "kill": kill,
    "os._exit": exit_at_once,
    "sys.exit": sys.exit,
    "close": close_connection,
    "pause": time.sleep,
    "wait for": wait_for,
    "pg_sleep": sleep_in_the_database,
    "megabytes": ask_for_megabytes,
    "read slowly": read_slowly,
    "fork": fork,
    "leave a child": leave_a_child,
    "memory": use_up_memory,
    "print": write_output,
    "fill a file": fill_file,
    "on_commit": on_commit,
    "do": do,
}

JOBS: dict[str, SingletonTask[Any, Any]] = {
    "work": work,
    "monthly": monthly,
    "spaced": spaced,
    "once": once,
    "timed": timed,
}
"""By the names that they are called by. Each takes an `attempt` and a `lane`, and needs no other argument."""
