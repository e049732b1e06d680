"""What jobs do that they had better not, and some things that look so and are harmless: acts for `jobs.work`."""

from __future__ import annotations

import asyncio
import builtins
import logging
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from django.db import DatabaseError, connection, connections, transaction

from django_singlecron import current_run
from django_singlecron.models import JobRun
from testproject.billing.models import Invoice, Tenant
from tests.faults import jobs
from tests.faults.witness import CUT, GO, OWN_COMMIT, Witness
from tests.faults.worker import Call, call_job
from tests.support.deadlines import DEADLINE
from tests.support.threads import in_thread

WAITS = "waits"
"""A line of the witness: a body waits until its attempt may go on."""


def witness() -> Witness:
    assert jobs.witness is not None
    return jobs.witness


def run_id() -> int:
    run = current_run()
    assert run is not None
    return run.id


def sql(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def ask(question: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(question)
        return cursor.fetchone()[0]


def then_wait(name: str, *arguments: Any) -> None:
    """Do something, tell the witness, and wait until the test says that it may go on."""
    act(name, *arguments)
    wait()


def wait() -> None:
    run = run_id()
    witness().note(WAITS, run=run)
    witness().wait_for(GO, run=run)


def act(name: str, *arguments: Any) -> None:
    globals()[name](*arguments)


# The database's errors


def swallow_an_error() -> None:
    try:
        sql("SELECT 1 / 0")
    except DatabaseError:
        return
    raise AssertionError("There was none.")


def swallow_an_error_in_a_block() -> None:
    try:
        with transaction.atomic():
            sql("SELECT 1 / 0")
    except DatabaseError:
        return


def swallow_a_violation() -> None:
    try:
        Tenant.objects.bulk_create([Tenant(name="twice", monthly_fee=1), Tenant(name="twice", monthly_fee=1)])
    except DatabaseError:
        return


def ask_for_a_rollback() -> None:
    transaction.set_rollback(True)


def break_a_deferred_constraint() -> None:
    Invoice.objects.create(tenant_id=-1, amount=1)


def cancel_itself() -> None:
    sql("SELECT pg_cancel_backend(pg_backend_pid()), pg_sleep(30)")


def end_its_own_session() -> None:
    note_cut()
    sql("SELECT pg_terminate_backend(pg_backend_pid())")


def end_its_own_session_and_go_on() -> None:
    try:
        end_its_own_session()
    except DatabaseError:
        return


# The transaction, behind Django's back


def note_the_end() -> None:
    """Say that what was written may be committed, and that the lock is let go."""
    witness().note(OWN_COMMIT, run=run_id())
    note_cut()


def note_cut() -> None:
    run = current_run()
    if run is not None:
        witness().note(CUT, run=run.id)


def end_the_transaction(*statements: str) -> None:
    note_the_end()
    sql(*statements)


def commit_by_the_driver() -> None:
    note_the_end()
    connection.connection.commit()


def roll_back_by_the_driver() -> None:
    note_the_end()
    connection.connection.rollback()


def release_the_runs_savepoint() -> None:
    sql("RELEASE SAVEPOINT singlecron")


def leave_a_block_open() -> None:
    blocks.append(open_a_block())
    next(blocks[-1])


def open_a_block() -> Iterator[None]:
    with transaction.atomic():
        yield


# They outlive the job.
blocks: list[Iterator[None]] = []


def django_commit() -> None:
    transaction.commit()


def django_rollback() -> None:
    transaction.rollback()


def set_autocommit(value: bool) -> None:
    transaction.set_autocommit(value)


# The session


def expect(question: str, answer: Any) -> None:
    found = ask(question)
    assert found == answer, f"{question} gives {found!r}"


def be_idle_for_too_long() -> None:
    note_cut()
    sql("SET idle_in_transaction_session_timeout = 50")
    time.sleep(0.5)


# Threads of its own


def work_in_threads(count: int) -> None:
    """Compute in threads, which know of no run."""
    for _ in range(count):
        in_thread(expect_no_run)


def expect_no_run() -> None:
    assert current_run() is None


def query_in_threads(count: int) -> None:
    """Write in threads, each by a connection and a transaction of its own."""
    for number in range(count):
        in_thread(lambda number=number: Tenant.objects.create(name=f"of thread {number}", monthly_fee=1) and None)


def use_the_runs_connection_in_a_thread() -> None:
    own = connections["default"]
    in_thread(lambda: own.cursor().close())


def leave_a_thread_behind() -> None:
    """Leave a daemon thread that is in a transaction of its own when the job ends."""
    begun = threading.Event()

    def target() -> None:
        with transaction.atomic():
            JobRun.objects.exists()
            begun.set()
            threading.Event().wait(DEADLINE)

    threading.Thread(target=target, daemon=True).start()
    assert begun.wait(DEADLINE)


def raise_in_a_thread_alone() -> None:
    threading.excepthook = lambda args: None
    thread = threading.Thread(target=jobs.fail)
    thread.start()
    thread.join(DEADLINE)


# Much of everything


def log_much(megabytes: int) -> None:
    """Log so much, and fail when the process grows by more than a quarter of it."""
    root, before = logging.getLogger(), peak_memory()
    # Where logging's last resort writes to.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    line = "x" * (1 << 20)
    for _ in range(megabytes):
        root.warning("%s", line)
    grown = (peak_memory() - before) >> 20
    assert grown < megabytes / 4, f"{grown} MB more are in use."


def peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def recurse() -> None:
    recurse()


def fail_with_much(megabytes: int) -> None:
    raise jobs.JobFailed("x" * (megabytes << 20))


def fail_deep_down(depth: int) -> None:
    """Raise below so many calls, none of which is like the one before, so that no traceback abridges them."""
    sys.setrecursionlimit(depth * 3)
    scope: dict[str, Any] = {"fail": jobs.fail}
    exec("\n".join(f"def f{n}(): f{n + 1}()" for n in range(depth)) + f"\nf{depth} = fail", scope)
    scope["f0"]()


def fail_for_many_reasons(count: int) -> None:
    error: BaseException = jobs.JobFailed("the first")
    for number in range(count):
        following = jobs.JobFailed(f"reason {number}")
        following.__cause__ = error
        error = following
    raise error


# Strange errors


class Unprintable(Exception):
    def __str__(self) -> str:
        raise SystemExit(9)

    __repr__ = __str__


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__(lambda: None)

    def __reduce__(self) -> str:
        raise TypeError("not to be pickled")


class Uncopyable(Exception):
    """Cannot be made again from its arguments."""

    def __init__(self, one: str, *, two: str) -> None:
        super().__init__(one + two)

    def with_traceback(self, trace: object) -> Any:
        raise TypeError("keeps its traceback")


class Falsy(BaseException):
    def __bool__(self) -> bool:
        raise RuntimeError("neither true nor false")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("equal to nothing")

    __hash__ = None  # type: ignore[assignment]


def make_cycle() -> BaseException:
    first, second = jobs.JobFailed("first"), jobs.JobFailed("second")
    first.__cause__, second.__cause__ = second, first
    return first


def make_group() -> BaseException:
    inner = group("inner", [Unprintable(), ValueError("\x00\ud800")])
    return group("outer", [inner, *(ValueError(str(number)) for number in range(1000))])


def make_deep_group() -> BaseException:
    error: BaseException = ValueError("innermost")
    for number in range(500):
        error = group(f"level {number}", [error])
    return error


def group(text: str, errors: list[BaseException]) -> BaseException:
    # Python 3.10 has none, and gets the first.
    kind = getattr(builtins, "BaseExceptionGroup", None)
    return errors[0] if kind is None else kind(text, errors)


STRANGE: dict[str, Callable[[], BaseException]] = {
    "unprintable": Unprintable,
    "unpicklable": Unpicklable,
    "uncopyable": lambda: Uncopyable("a", two="b"),
    "neither true nor false": Falsy,
    "a cycle of causes": make_cycle,
    "a group": make_group,
    "a group 500 levels deep": make_deep_group,
    "notes that are none": lambda: set_notes(ValueError("noted"), 7),
    "no text": lambda: ValueError("\x00\udcff\x1b[31m"),
    "MemoryError": MemoryError,
    "StopIteration": StopIteration,
    "GeneratorExit": GeneratorExit,
    "KeyboardInterrupt": KeyboardInterrupt,
    "CancelledError": asyncio.CancelledError,
    "SystemExit with a text": lambda: SystemExit("the reason"),
    "SystemExit with an object": lambda: SystemExit(object()),
    "a class of no module": lambda: type("Rootless", (Exception,), {"__module__": None})("rootless"),
    "a database error of its own making": lambda: DatabaseError("not of the server"),
}


def set_notes(error: BaseException, notes: Any) -> BaseException:
    error.__notes__ = notes  # type: ignore[attr-defined]
    return error


def fail_strangely(how: str) -> None:
    raise STRANGE[how]()


# Jobs in jobs, and after them


def call(attempt: str, lane: str = jobs.LANE) -> None:
    call_job(witness(), Call(job="work", arguments={"attempt": attempt, "lane": lane}))


def call_in_a_thread(attempt: str, lane: str = jobs.LANE) -> None:
    in_thread(lambda: call(attempt, lane))


def call_bare(attempt: str) -> None:
    """Call another job's function, as a part of this one."""
    Tenant.objects.create(name=f"of {attempt}", monthly_fee=1)


def after_commit(name: str, *arguments: Any) -> None:
    connection.on_commit(lambda: act(name, *arguments))


def several_after_commit(*names: str) -> None:
    for name in names:
        after_commit(name)


def fail() -> None:
    jobs.fail()


def leave(code: int) -> None:
    sys.exit(code)


def close() -> None:
    jobs.close_connection()


def end_the_process(code: int) -> None:
    jobs.exit_at_once(code)


def interrupt() -> None:
    raise KeyboardInterrupt


def ask_in_vain() -> None:
    sql("SELECT 1 / 0")


def succeed_silently() -> None:
    Tenant.objects.create(name=f"after the commit {os.getpid()}", monthly_fee=1)
