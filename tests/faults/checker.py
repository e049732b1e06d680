"""The one checker of what must hold whatever happens."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from uuid import uuid4

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_singlecron.models import JobRun
from tests.faults import jobs
from tests.faults.judgement import judge
from tests.faults.processes import is_alive
from tests.faults.witness import ATTEMPT, RESULT, Witness
from tests.faults.worker import Call, call_job
from tests.support.deadlines import DEADLINE, wait_until
from tests.support.sessions import Watcher, assert_nothing_left

WRITTEN = "SELECT run, count(*) FROM faults_work GROUP BY run"


def check(
    witness: Witness,
    connection: BaseDatabaseWrapper,
    *,
    alive: Collection[int] = (),
    unreachable: Collection[int] = (),
    seconds: float = DEADLINE,
) -> None:
    """Fail with a line for each violation, once all is over: no attempt is on any more.

    (a) No two bodies of one job overlap. (b) Runs that read "succeeded" have all their writes, others have none.
    (c) Each attempt that reached the database has a row, and its status is the truth. (d) No process, session or lock
    is left, and each job can run again at once.

    Arguments: `connection`, to the database of the history, on which the checker runs each job once more; `alive`, the
    processes that are still wanted; `unreachable`, runs whose rows went with a server that did not come back; `seconds`
    within which processes and sessions end, and then no row reads "running", which behind a pooler takes more than ten.
    """
    violations, _ = look(witness, connection, alive=alive, unreachable=unreachable, seconds=seconds)
    assert not violations, f"{len(violations)} violations:\n" + "\n".join(violations[:50])


def look(
    witness: Witness,
    connection: BaseDatabaseWrapper,
    *,
    alive: Collection[int] = (),
    unreachable: Collection[int] = (),
    seconds: float = DEADLINE,
    after: int = 0,
) -> tuple[list[str], list[JobRun]]:
    """As `check`, but return the violations, and the rows that were judged: those of the runs `after` one."""
    with default_connection(connection):
        violations = [*left_behind(witness, connection, alive, seconds), *run_again(witness, seconds)]
        rows = list(JobRun.objects.filter(pk__gt=after).order_by("id").defer("traceback", "output"))
        with connection.cursor() as cursor:
            cursor.execute(WRITTEN)
            written = dict(cursor.fetchall())
    return [*violations, *judge(witness.lines(), rows, written, unreachable)], rows


@contextmanager
def default_connection(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Let a connection be this thread's default one in the block."""
    before = connections["default"]
    connections["default"] = connection
    try:
        yield
    finally:
        connections["default"] = before


def left_behind(witness: Witness, connection: BaseDatabaseWrapper, alive: Collection[int], seconds: float) -> list[str]:
    """(d) Say what is left of processes, sessions and locks."""
    used = {line.pid for line in witness.lines() if line.kind == ATTEMPT} - {os.getpid(), *alive}
    violations = [f"(d) The process {pid} is left." for pid in used if not _ends(pid, seconds)]
    watcher = Watcher(connection)
    try:
        assert_nothing_left(watcher, seconds=seconds)
    except AssertionError as error:
        violations.append(f"(d) {error}")
    finally:
        watcher.close()
    return violations


def _ends(pid: int, seconds: float) -> bool:
    try:
        wait_until(lambda: not is_alive(pid), what="its end", seconds=seconds)
    except AssertionError:
        return False
    return True


def run_again(witness: Witness, seconds: float) -> list[str]:
    """(d) Run the job of each lane once more, and until no row of it reads "running"; say which could not."""
    violations = []
    lanes = {line.job: (line.task, line.lane) for line in witness.lines() if line.kind == ATTEMPT}
    before = jobs.witness
    for job, (task, lane) in sorted(lanes.items()):
        deadline, pause = time.monotonic() + seconds, 0.0
        while True:
            attempt = f"again-{uuid4().hex[:8]}"
            call_job(witness, Call(job=task, arguments={"attempt": attempt, "lane": lane}, force=True))
            # The last lines are its own: nothing else is on.
            result = next(line for line in reversed(witness.lines()) if line.kind == RESULT)
            if result.outcome != "acquired":
                violations.append(f"(d) The job {job!r} cannot run again: {dict(result)}")
                break
            if not JobRun.objects.running().filter(job=job).exists() or time.monotonic() > deadline:
                break
            time.sleep(pause := min(pause + 0.2, 2))
    jobs.witness = before
    return violations
