"""What ends a job from outside: a timeout wherever it runs and whatever it does, SIGTERM, and forks."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, connection, connections
from django.db.backends.postgresql.psycopg_any import is_psycopg3

from django_singlecron import ForkedRun, LockLost, RunTimedOut, current_run, interrupts
from django_singlecron.capture import CapturedLogging, OutputTail
from django_singlecron.interrupts import Deadline, Interruption, Terminated, shut_down
from django_singlecron.models import JobRun
from django_singlecron.signals import run_acquired
from testproject.billing.models import Tenant
from tests.support.ctrl_c import ctrl_c_raises
from tests.support.deadlines import wait_until

from .support.threads import in_thread
from .support_core import (
    WAIT,
    database_alias,
    is_free,
    job,
    real_database,
    run_async,
    session,
    sql,
    the_run,
    write,
    written,
)

pytestmark = real_database

SHORT = 0.2


@pytest.fixture(autouse=True)
def _no_thread_left_behind() -> Iterator[None]:
    """Assert that a test leaves no thread, no handler and no descriptor."""
    handlers = signal.getsignal(signal.SIGURG), signal.getsignal(signal.SIGTERM)
    connection.close()
    threads, descriptors = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    yield
    connection.close()
    # The one in which asgiref runs a coroutine stays as long as a traceback knows of it, and pytest keeps those.
    left = [t for t in threading.enumerate() if t not in threads and not t.name.startswith("ThreadPoolExecutor")]
    assert not [thread for thread in left if thread.join(WAIT) or thread.is_alive()]
    assert (signal.getsignal(signal.SIGURG), signal.getsignal(signal.SIGTERM)) == handlers
    assert len(os.listdir("/proc/self/fd")) == descriptors


def sleep() -> None:
    write()
    time.sleep(WAIT)


def sleep_in_the_database() -> None:
    write()
    sql(f"SELECT pg_sleep({WAIT})")


def compute() -> None:
    write()
    while True:
        pass


def carry_on_after_exceptions() -> None:
    write()
    while True:
        with suppress(Exception):
            time.sleep(0.01)


def carry_on_after_database_errors() -> None:
    while True:
        with suppress(DatabaseError):
            sql("SELECT pg_sleep(0.05)")


def insist_once() -> None:
    write()
    try:
        time.sleep(WAIT)
    except BaseException:
        time.sleep(WAIT)


def close_and_sleep() -> None:
    connection.close()
    time.sleep(WAIT)


def check_timed_out(began: float) -> None:
    assert time.monotonic() - began < WAIT / 2
    row = the_run()
    assert (row.status, row.error_class) == ("failed", "django_singlecron.exceptions.RunTimedOut")
    assert "exceeded its timeout of 0.2 s. Its work was rolled back and its lock is free." in row.error_message
    assert row.finished_at is not None
    assert written() == []
    # The server looks for a vanished client ten times a second.
    wait_until(is_free, what="the lock freed")


@pytest.mark.parametrize(
    "body",
    [
        sleep,
        sleep_in_the_database,
        compute,
        carry_on_after_exceptions,
        carry_on_after_database_errors,
        insist_once,
        close_and_sleep,
    ],
)
def test_a_timeout_ends_a_job_in_the_main_thread(body: Callable[[], None]) -> None:
    began = time.monotonic()
    with pytest.raises(RunTimedOut):
        job(body, timeout=SHORT)()
    check_timed_out(began)
    assert job(write)()


def nap() -> None:
    write()
    while True:
        time.sleep(0.01)


@pytest.mark.parametrize("body", [nap, sleep_in_the_database, compute, carry_on_after_exceptions])
def test_a_timeout_ends_a_job_in_another_thread(body: Callable[[], None]) -> None:
    began = time.monotonic()

    def call() -> bool:
        with pytest.raises(RunTimedOut):
            job(body, timeout=SHORT)()
        # Nothing is pending in the thread, and it can work on.
        return bool(job(lambda: None, "next")())

    assert in_thread(call)
    JobRun.objects.filter(job="next").delete()
    check_timed_out(began)


async def await_sleep() -> None:
    await Tenant.objects.acreate(name="written", monthly_fee=1)
    await asyncio.sleep(WAIT)


async def await_despite_cancelling() -> None:
    try:
        await asyncio.sleep(WAIT)
    except asyncio.CancelledError:
        await asyncio.sleep(WAIT)


@pytest.mark.parametrize("body", [await_sleep, await_despite_cancelling])
@pytest.mark.parametrize("called_from", ["coroutine", "function"])
def test_a_timeout_ends_a_coroutine(body: Any, called_from: str) -> None:
    began = time.monotonic()
    decorated, returned = job(body, timeout=SHORT), job(lambda: body(), timeout=SHORT)
    with pytest.raises(RunTimedOut):
        _ = run_async(decorated()) if called_from == "coroutine" else returned()
    check_timed_out(began)


def test_a_timeout_after_the_coroutine_ended_is_told_just_so() -> None:
    # The success mark waits for the row, so the timeout passes there; the record of that waits for it, too.
    locked, recording = (
        threading.Event(),
        (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%error_class%%'"
            " AND datname = current_database()"
        ),
    )

    def lock_the_row() -> None:
        with session() as other, session() as third:
            other.connection.set_autocommit(False)
            other.execute("SELECT FROM django_singlecron_jobrun FOR UPDATE")
            locked.set()
            wait_until(lambda: third.one(recording), what="the end is being recorded")
            other.connection.rollback()

    async def end_at_once() -> None:
        thread.start()
        locked.wait(WAIT)

    thread = threading.Thread(target=lock_the_row)
    began = time.monotonic()
    with pytest.raises(RunTimedOut):
        job(lambda: end_at_once(), timeout=SHORT)()
    thread.join(WAIT)
    check_timed_out(began)


@pytest.mark.parametrize(("number", "error"), [(signal.SIGTERM, Terminated), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_that_comes_as_the_time_is_up_is_not_lost(number: int, error: type[BaseException]) -> None:
    def end_on_interruption() -> None:
        try:
            nap()
        finally:
            signal.raise_signal(number)

    with ctrl_c_raises(), pytest.raises(error):
        job(end_on_interruption, timeout=SHORT)()
    assert the_run().status == "failed"
    assert written() == []


class BrokenOffJoin(threading.Thread):
    """A thread whose end is waited for when Ctrl-C comes."""

    def join(self, timeout: float | None = None) -> None:
        super().join(timeout)
        raise KeyboardInterrupt


def test_ctrl_c_while_a_deadline_ends_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("django_singlecron.interrupts.threading.Thread", BrokenOffJoin)
        with pytest.raises(KeyboardInterrupt):
            job(write, timeout=60)()
    assert the_run().status == "failed"
    assert written() == []


def test_a_job_that_is_faster_than_its_timeout_is_not_touched() -> None:
    before = set(threading.enumerate())
    during: list[Any] = []

    def look() -> None:
        during.append([thread.name for thread in set(threading.enumerate()) - before])
        during.append(signal.getsignal(signal.SIGURG))
        write()

    assert job(look, timeout=60)()
    assert during[0] == ["singlecron-deadline"]
    assert during[1] is not signal.SIG_DFL
    assert written() == ["written"]


def test_a_timeout_that_passes_at_once() -> None:
    for _ in range(5):
        with pytest.raises(RunTimedOut):
            job(sleep, timeout=timedelta(microseconds=1))()
    assert set(JobRun.objects.values_list("status", flat=True)) == {"failed"}


def test_a_timeout_that_passes_at_once_in_another_thread() -> None:
    def call() -> None:
        for _ in range(5):
            with pytest.raises(RunTimedOut):
                job(nap, timeout=timedelta(microseconds=1))()

    in_thread(call)
    assert set(JobRun.objects.values_list("status", flat=True)) == {"failed"}


class SlowStart(threading.Thread):
    """A thread whose start lets the time of a deadline pass."""

    def start(self) -> None:
        super().start()
        while True:
            time.sleep(0.01)


@pytest.mark.parametrize("call", [lambda function: function(), in_thread], ids=["main", "other"])
def test_a_timeout_that_passes_while_its_watch_starts(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def enter() -> str:
        with monkeypatch.context() as patched:
            patched.setattr("django_singlecron.interrupts.threading.Thread", SlowStart)
            with pytest.raises(RunTimedOut) as raised:
                Deadline("job", timedelta(microseconds=1), None).__enter__()
        return str(raised.value)

    assert '"job" exceeded its timeout' in call(enter)


def test_a_connection_that_is_gone_needs_no_shutting_down() -> None:
    with socket.socket() as unconnected:
        shut_down(unconnected)


def test_a_timeout_about_as_long_as_the_job_is_either_in_time_or_not() -> None:
    statuses = []
    for timeout in (WAIT, *[0.0205] * 6, 0.001):
        try:
            job(lambda: time.sleep(0.02), timeout=timeout)()
            statuses.append("succeeded")
        except RunTimedOut:
            statuses.append("failed")
    assert list(JobRun.objects.order_by("id").values_list("status", flat=True)) == statuses


def test_an_error_of_the_job_before_its_timeout_is_its_own() -> None:
    with pytest.raises(ZeroDivisionError):
        job(lambda: 1 / 0, timeout=60)()


@pytest.mark.skipif(not is_psycopg3, reason="psycopg2 has no pool; with psycopg 3 this runs")
def test_a_timeout_leaves_a_session_alone_that_the_job_gave_back_to_djangos_pool() -> None:
    with database_alias("pooled", CONN_MAX_AGE=0, OPTIONS={"pool": {"min_size": 1, "max_size": 2}}) as alias:
        pooled = connections[alias]

        def work() -> None:
            given_back = pooled.connection
            pooled.close()

            def take() -> Any:
                """Be lent what was given back, once a thread of the pool has put it right."""
                taken = pooled.pool.getconn()
                if taken is given_back:
                    return taken
                return pooled.pool.putconn(taken)

            lent.append(wait_until(take, what="the session in the pool"))
            # Until the timeout, which is long enough for the pool.
            time.sleep(WAIT)

        lent: list[Any] = []
        try:
            with pytest.raises(RunTimedOut):
                job(work, using=alias, timeout=2)()
            assert lent[0].execute("SELECT 1").fetchone() == (1,)
        finally:
            for taken in lent:
                pooled.pool.putconn(taken)
            pooled.close()
            pooled.close_pool()
    assert the_run().status == "failed"


def test_an_outer_runs_timeout_ends_an_inner_run() -> None:
    began = time.monotonic()
    with database_alias("second"):
        inner = job(lambda: time.sleep(WAIT), "inner", using="second", timeout=60)
        with pytest.raises(RunTimedOut, match=r'"outer" exceeded its timeout of 0\.2 s'):
            job(lambda: inner(), "outer", timeout=SHORT)()
    assert time.monotonic() - began < WAIT / 2
    assert dict(JobRun.objects.values_list("job", "status")) == {"outer": "failed", "inner": "failed"}


def test_an_inner_runs_timeout_ends_it_alone() -> None:
    results: list[str] = []
    with database_alias("second"):
        inner = job(lambda: time.sleep(WAIT), "inner", using="second", timeout=SHORT)

        def outer() -> None:
            with pytest.raises(RunTimedOut, match='"inner"'):
                inner()
            results.append("goes on")

        assert job(outer, "outer", timeout=60)()
    assert results == ["goes on"]
    assert dict(JobRun.objects.values_list("job", "status")) == {"outer": "succeeded", "inner": "failed"}


def test_a_signal_that_arrives_for_somebody_else_is_passed_on() -> None:
    got: list[int] = []
    before = signal.signal(signal.SIGURG, lambda number, frame: got.append(number))
    try:
        assert job(lambda: signal.raise_signal(signal.SIGURG), timeout=60)()
        signal.raise_signal(signal.SIGURG)
    finally:
        signal.signal(signal.SIGURG, before)
    assert got == [signal.SIGURG, signal.SIGURG]
    assert job(lambda: signal.raise_signal(signal.SIGURG), timeout=60)()


def test_an_interruption_while_the_deadline_is_being_left_is_waited_for() -> None:
    class Slow(Deadline):
        """A watch that ends only after it has interrupted once more."""

        def _watch_clock(self) -> None:
            self._over.wait(WAIT)
            self._over.clear()
            self.passed = True
            self._send_signal()
            self._over.wait(WAIT)

    with pytest.raises(RunTimedOut), Slow("job", timedelta(seconds=1), None):
        pass


def test_an_interruption_says_what_it_is() -> None:
    messages: list[str] = []

    def note() -> None:
        try:
            time.sleep(WAIT)
        except Interruption as error:
            messages.append(str(error))
            raise

    with pytest.raises(RunTimedOut) as raised:
        job(note, timeout=SHORT)()
    assert messages == [str(raised.value)]
    assert "KeyboardInterrupt" not in the_run().traceback
    assert "in note" in the_run().traceback


# SIGTERM


def test_sigterm_as_a_timeout_begins_to_run_leaves_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def start_and_terminate(thread: threading.Thread) -> None:
        start(thread)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGURG)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start_and_terminate)
        with pytest.raises(Terminated):
            job(write, timeout=SHORT)()
    assert signal.getsignal(signal.SIGURG) == before
    assert "singlecron-deadline" not in [thread.name for thread in threading.enumerate()]
    assert interrupts._deadline_sockets == set()
    assert the_run().status == "failed"
    assert is_free()


def test_a_timeout_whose_watch_cannot_be_started_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    before = signal.getsignal(signal.SIGURG)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            job(write, timeout=SHORT)()
    assert signal.getsignal(signal.SIGURG) == before
    assert interrupts._deadline_sockets == set()
    assert the_run().status == "failed"


def test_sigterm_ends_the_job_as_an_exit_with_143() -> None:
    def terminated() -> None:
        write()
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Terminated) as left:
        job(terminated)()
    assert left.value.code == 143
    row = the_run()
    assert (row.status, row.error_class) == ("failed", "django_singlecron.interrupts.Terminated")
    assert row.error_message == "The process received SIGTERM, as a deploy or a shutdown sends it."
    assert written() == []
    assert is_free()


def test_a_handler_of_the_projects_own_is_left_alone() -> None:
    got: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: got.append(number))
    try:
        assert job(lambda: os.kill(os.getpid(), signal.SIGTERM))()
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert got == [signal.SIGTERM, signal.SIGTERM]


def test_a_handler_that_the_job_installs_stays() -> None:
    def handler(number: int, frame: object) -> None: ...

    try:
        assert job(lambda: signal.signal(signal.SIGTERM, handler) and None)()
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_signals_are_the_main_threads_affair() -> None:
    seen: list[Any] = []
    in_thread(lambda: job(lambda: seen.append(signal.getsignal(signal.SIGTERM)))())
    assert seen == [signal.SIG_DFL]


@pytest.mark.skipif(not is_psycopg3, reason="psycopg2 comes back from a statement before it can be interrupted")
@pytest.mark.parametrize("interruption", [KeyboardInterrupt, Terminated])
def test_a_run_that_is_interrupted_in_a_statement_failed(interruption: type[BaseException]) -> None:
    def work() -> None:
        write()
        # As psycopg leaves it, at times.
        connection.connection.pgconn.send_query(b"SELECT pg_sleep(60)")
        raise interruption

    with pytest.raises(interruption):
        job(work)()
    assert the_run().status == "failed"
    assert written() == []
    wait_until(is_free, what="the lock freed")


# Forks


def forked(child: Callable[[], int]) -> int:
    """Fork; the child leaves with what `child` returns, and the parent gets that."""
    with warnings.catch_warnings():
        # Python warns of forks in a process of several threads.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = child()
        finally:
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def test_a_child_that_writes_and_logs_in_a_run_does_not_wait_for_another_thread_of_its_parent() -> None:
    def child() -> int:
        signal.alarm(10)
        tail.append("of the child")
        with CapturedLogging():
            return 0

    taken, forked_already = threading.Event(), threading.Event()

    def hold() -> None:
        with CapturedLogging._lock, tail._lock:
            taken.set()
            forked_already.wait(WAIT)

    tail = OutputTail(100)
    other = threading.Thread(target=hold)
    other.start()
    assert taken.wait(WAIT)
    assert forked(child) == 0
    forked_already.set()
    other.join(WAIT)


@pytest.mark.parametrize("end", ["returns", "raises", "exits"])
@pytest.mark.parametrize("timeout", [None, 60])
def test_a_forked_child_that_comes_out_of_the_job_leaves_the_run_to_its_parent(end: str, timeout: int | None) -> None:
    parent, children, codes = os.getpid(), [], []

    def fork_inside() -> None:
        write("before")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            if end == "raises":
                raise KeyError("child")
            if end == "exits":
                raise SystemExit(0)
            return
        children.append(pid)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        write("after")

    expected = {"returns": ForkedRun, "raises": KeyError, "exits": SystemExit}[end]
    try:
        result = job(fork_inside, timeout=timeout)()
    finally:
        if os.getpid() != parent:
            os._exit(7 if isinstance(sys.exc_info()[1], expected) else 8)
    assert result
    assert codes == [7]
    assert JobRun.objects.get().status == "succeeded"
    assert written() == ["after", "before"]
    assert is_free()


def test_a_forked_child_may_use_the_database_on_a_connection_of_its_own() -> None:
    codes: list[int] = []

    def child() -> int:
        apart = current_run() is None and not connection.in_atomic_block and written() == []
        write("child")
        connection.close()
        return 0 if apart else 1

    def work() -> None:
        write("parent")
        codes.append(forked(child))
        assert is_free() is False
        assert written() == ["child", "parent"]

    assert job(work)()
    assert codes == [0]
    assert written() == ["child", "parent"]


def test_a_child_that_a_receiver_of_run_acquired_forks_may_use_the_database_too() -> None:
    codes: list[int] = []

    def child() -> int:
        is_apart = not connection.in_atomic_block and written() == []
        connection.close()
        return 0 if is_apart else 1

    def fork(**_: Any) -> None:
        write("receiver")
        codes.append(forked(child))

    run_acquired.connect(fork)
    try:
        assert job(write)()
    finally:
        run_acquired.disconnect(fork)
    assert codes == [0]
    assert written() == ["receiver", "written"]


def write_from_a_process(name: str) -> None:
    write(name)
    connection.close()


def test_a_multiprocessing_child_works_beside_the_run() -> None:
    codes: list[int | None] = []

    def work() -> None:
        write("parent")
        process = multiprocessing.get_context("fork").Process(target=write_from_a_process, args=("child",))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        process.join(WAIT)
        codes.append(process.exitcode)
        process.close()

    assert job(work, timeout=60)()
    assert codes == [0]
    assert written() == ["child", "parent"]


def test_a_fork_in_a_run_inside_a_run_leaves_both() -> None:
    codes: list[int] = []

    def child() -> int:
        from django.db import connections

        in_runs = [connections[alias].in_atomic_block for alias in ("default", "second")]
        return int(any(in_runs) or current_run() is not None)

    with database_alias("second"):
        inner = job(lambda: codes.append(forked(child)), "inner", using="second")
        assert job(lambda: inner(), "outer")()
    assert codes == [0]
    assert set(JobRun.objects.values_list("status", flat=True)) == {"succeeded"}


def has_file(inode: int) -> bool:
    """Whether this process has an open file of this number."""
    for descriptor in range(256):
        with suppress(OSError):
            if os.fstat(descriptor).st_ino == inode:
                return True
    return False


@pytest.mark.parametrize("timeout", [None, 60])
@pytest.mark.parametrize("in_another_thread", [False, True])
def test_a_forked_child_does_not_keep_the_socket_that_holds_the_lock(
    timeout: int | None, in_another_thread: bool
) -> None:
    codes: list[int] = []

    def work() -> None:
        inode = os.fstat(connection.connection.fileno()).st_ino

        def fork() -> int:
            return forked(lambda: 1 if has_file(inode) else 0)

        assert has_file(inode)
        codes.append(in_thread(fork) if in_another_thread else fork())
        write()

    assert job(work, timeout=timeout)()
    assert codes == [0]
    assert written() == ["written"]


def test_a_fork_after_the_job_closed_its_connection_is_nobodys_affair() -> None:
    codes: list[int] = []

    def work() -> None:
        connection.close()
        codes.append(forked(lambda: 0))

    with pytest.raises(LockLost):
        job(work)()
    assert codes == [0]


def test_a_fork_outside_a_run_is_nobodys_affair() -> None:
    assert forked(lambda: 0 if current_run() is None else 1) == 0
