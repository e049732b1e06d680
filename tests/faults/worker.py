"""Replicas on order: `python -m tests.faults.worker` starts Django once and forks a process for each order it reads.

An order is a line of JSON on the standard input, see `Order`. The answer is a line "<pid>". What becomes of the process
is in the witness. At the end of the input all processes that are left are killed.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict

import django

from tests.faults.witness import ATTEMPT, DIED, GO, RESULT, Witness


class Call(TypedDict, total=False):
    """One call of a job; all but `force` is needed."""

    job: str
    """The name that it has in `jobs.JOBS`."""
    arguments: dict[str, Any]
    """Always with `attempt` among them, by which its row is found in the history."""
    force: bool
    """Whether it runs even though its slot is taken."""


class Order(TypedDict):
    """What a process is to do: its calls one after the other, each but the first once it may `GO`."""

    calls: list[Call]
    database: dict[str, Any]
    witness: str
    stdout: str
    stderr: str
    limits: dict[str, int]
    """Names of `resource`, such as `RLIMIT_AS`, with the soft limit for each."""


def call_job(witness: Witness, call: Call) -> int:
    """Call a job, tell the witness what came of it, and return the exit code that a process would end with."""
    from django_singlecron.capture import error_message
    from tests.faults import jobs

    jobs.witness = witness
    task, arguments = jobs.JOBS[call["job"]], call["arguments"]
    attempt = arguments["attempt"]
    job = task.name_of_call((), arguments)
    caller = os.getpid()
    limit = task.options.timeout
    witness.note(
        ATTEMPT,
        attempt=attempt,
        job=job,
        task=call["job"],
        lane=arguments.get("lane", jobs.LANE),
        acts=arguments.get("acts"),
        timeout=limit and limit.total_seconds(),
    )
    code: Any = 0
    try:
        result = task.run(force=call.get("force", False), **arguments)
    except BaseException as error:
        if os.getpid() != caller:
            # A child that the job forked came back out of it, as it must not.
            os._exit(1)
        code = 1
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        kind = type(error).__name__
        witness.note(
            RESULT, attempt=attempt, outcome="raised", error=kind, message=error_message(error)[:2000], code=code
        )
    else:
        witness.note(RESULT, attempt=attempt, outcome=result.outcome, run=result.run_id, reason=result.skip_reason)
    return int(code)


def use_database(database: Mapping[str, Any]) -> None:
    """Let the process's default connection be one with these settings."""
    from tests.support.threads import connect_through

    connect_through(database)


def set_up(order: Order) -> Witness:
    """Make a forked process a replica as ordered; return its witness."""
    signal.set_wakeup_fd(-1)
    # Also where the tests run under nohup, or in a shell's background.
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        path = order[name] if name != "stdin" else os.devnull
        file = os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    for limit, value in order["limits"].items():
        which = getattr(resource, limit)
        resource.setrlimit(which, (value, resource.getrlimit(which)[1]))
    use_database(order["database"])
    return Witness(Path(order["witness"]))


def replica(order: Order) -> int:
    """Do what is ordered, in a process of its own; return the exit code."""
    witness = set_up(order)
    code = 0
    for number, call in enumerate(order["calls"]):
        if number > 0:
            witness.wait_for(GO, attempt=call["arguments"]["attempt"])
        code = call_job(witness, call)
    return code


class Forks:
    """The processes that are being used. Arguments: what each does with its order, to return its exit code."""

    def __init__(self, live: Callable[[Order], int]) -> None:
        self._live = live
        self._witnesses: dict[int, str] = {}

    def start(self, order: Order) -> int:
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                ended_with = self._live(order)
                # What was not written yet may fail here again (since Python 3.13), which says nothing new of a failure.
                code = ended_with or code
                sys.stdout.flush()
                code = ended_with
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                # Sockets are closed as the system does it, without a word to the server.
                os._exit(code)
        self._witnesses[pid] = order["witness"]
        return pid

    def reap(self) -> None:
        """Tell the witness of those that have ended."""
        for pid in list(self._witnesses):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                # A test that is over has taken its witness away.
                with suppress(OSError):
                    witness = Witness(Path(self._witnesses.pop(pid)))
                    witness.note(DIED, process=pid, code=os.waitstatus_to_exitcode(status))
                    witness.close()

    def kill(self) -> None:
        for pid in self._witnesses:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def main(live: Callable[[Order], int] = replica) -> None:
    django.setup()
    # Loaded once, for all.
    from tests.faults import jobs  # noqa: F401

    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    forks = Forks(live)
    selector = selectors.DefaultSelector()
    selector.register(sys.stdin.buffer.raw, selectors.EVENT_READ)
    selector.register(woken, selectors.EVENT_READ)
    orders = b""
    while True:
        for key, _ in selector.select():
            data = os.read(key.fd, 65536)
            if key.fd == woken:
                forks.reap()
                continue
            if not data:
                forks.kill()
                return
            *lines, orders = (orders + data).split(b"\n")
            for line in lines:
                print(forks.start(json.loads(line)), flush=True)


if __name__ == "__main__":
    main()
