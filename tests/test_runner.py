"""One run: what it sends, how it ends, what it leaves behind, and where it is refused."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import (
    DatabaseError,
    DataError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    connection,
    connections,
    transaction,
)
from django.db.backends.postgresql.psycopg_any import is_psycopg3
from django.db.utils import InternalError, ProgrammingError
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils.log import AdminEmailHandler

from django_singlecron import (
    InvalidTask,
    LockLost,
    OuterTransaction,
    RunResult,
    RunTimedOut,
    TransactionBroken,
    current_run,
)
from django_singlecron.models import JobRun
from django_singlecron.testing import hold_lock
from testproject.billing.models import Tenant
from tests.support.deadlines import wait_until

from .support.threads import in_thread
from .support_core import (
    TAKES_LOCK,
    WAIT,
    before_statement,
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

# psycopg2 sends one by one what goes in one message with psycopg 3.
APART = [] if is_psycopg3 else ["SELECT CASE WHEN pg_try_advisory_xact_lock", "SAVEPOINT"]
SQL_OF_A_RUN = ["WITH", "BEGIN", TAKES_LOCK, *APART, "UPDATE", "COMMIT"]


# What it sends and returns


def test_a_run_takes_five_round_trips_and_seven_with_psycopg2() -> None:
    task = job(lambda: 42)
    connection.ensure_connection()
    with CaptureQueriesContext(connection) as queries:
        result = task()
    sent = [query["sql"].strip() for query in queries]
    assert [text.startswith(start) for text, start in zip(sent, SQL_OF_A_RUN, strict=True)] == [True] * len(sent)
    run = the_run()
    assert result == RunResult("acquired", value=42, run_id=run.pk)
    assert result
    assert result.ran


def test_a_skipped_attempt_takes_one() -> None:
    def hold() -> None:
        with database_alias("replica") as alias:
            connections[alias].ensure_connection()
            with CaptureQueriesContext(connections[alias]) as queries:
                results.append(job(write, using=alias)())
            sent.extend(query["sql"] for query in queries)

    results: list[Any] = []
    sent: list[str] = []
    held = job(hold)()
    assert len(sent) == 1
    row = JobRun.objects.skipped().get()
    assert results == [RunResult("skipped", skip_reason="locked", held_by=held.run_id, run_id=row.pk)]
    assert not results[0]
    assert written() == []


def test_a_run_and_its_row_tell_the_same() -> None:
    seen: list[Any] = []

    def look(tenant: int, *, dry_run: bool = False) -> None:
        seen.extend([current_run(), JobRun.objects.get()])

    job(look, "bill:{tenant}")(tenant=7)
    run, row = seen
    assert current_run() is None
    assert (run.id, run.name, run.key, run.started_at, run.using) == (
        row.pk,
        "bill:7",
        row.key,
        row.started_at,
        "default",
    )
    assert (row.outcome, row.status, row.finished_at, row.token) == ("acquired", "running", None, None)
    row = the_run()
    assert (row.status, row.token, row.trigger, row.lock) == ("succeeded", run.token, "function", "transaction")
    assert (row.host, row.pid, row.arguments) == (socket.gethostname()[:255], os.getpid(), "tenant=7, dry_run=False")
    assert row.finished_at is not None
    assert row.finished_at > row.started_at


def test_the_clock_is_the_databases() -> None:
    with session() as other:
        before = other.one("SELECT clock_timestamp()")
        job(lambda: None)()
        after = other.one("SELECT clock_timestamp()")
    row = the_run()
    assert row.finished_at is not None
    assert before < row.started_at < row.finished_at < after


def test_the_task_holds_no_state_of_a_call() -> None:
    task = job(lambda: write() or 1)
    before = dict(vars(task))
    task()
    with hold_lock("job"):
        task()
    assert vars(task) == before


def test_local_time_without_time_zones() -> None:
    with override_settings(USE_TZ=False):
        assert job(write)()
        assert the_run().started_at.tzinfo is None
        with hold_lock("job"):
            assert not job(write)()


# How it ends


ENDINGS: list[tuple[BaseException, str]] = [
    (ValueError("no"), "ValueError"),
    (SystemExit(3), "SystemExit"),
    (SystemExit("text"), "SystemExit"),
    (SystemExit(""), "SystemExit"),
    (KeyboardInterrupt(), "KeyboardInterrupt"),
    (GeneratorExit(), "GeneratorExit"),
    (StopIteration(), "StopIteration"),
    (asyncio.CancelledError(), "asyncio.exceptions.CancelledError"),
    (RecursionError("deep"), "RecursionError"),
    (MemoryError(), "MemoryError"),
]


@pytest.mark.parametrize(("error", "kind"), ENDINGS, ids=[repr(error) for error, _ in ENDINGS])
def test_whatever_a_job_raises_comes_out_and_is_recorded_and_undone(error: BaseException, kind: str) -> None:
    def fail() -> None:
        write()
        raise error

    with pytest.raises(type(error)) as raised:
        job(fail)()
    assert raised.value is error
    row = the_run()
    assert (row.outcome, row.status, row.error_class) == ("acquired", "failed", kind)
    assert row.finished_at is not None
    assert row.error_message == str(error)
    assert "in fail" in row.traceback
    assert kind.rpartition(".")[2] in row.traceback
    assert written() == []
    assert is_free()
    assert current_run() is None


@pytest.mark.parametrize("code", [0, None, False])
def test_an_exit_that_means_success_is_one(code: Any) -> None:
    def leave() -> None:
        write()
        raise SystemExit(code)

    with pytest.raises(SystemExit) as left:
        job(leave)()
    assert left.value.code is code
    assert the_run().status == "succeeded"
    assert written() == ["written"]


def test_infinite_recursion_is_recorded() -> None:
    def recurse() -> None:
        recurse()

    with pytest.raises(RecursionError):
        job(recurse)()
    assert "Previous line repeated" in the_run().traceback


class Hostile(Exception):
    def __str__(self) -> str:
        raise SystemExit(9)


class BadRepr(Exception):
    def __repr__(self) -> str:
        raise ValueError("no repr")


class BadModule:
    def __str__(self) -> str:
        raise ValueError("no module")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("nul \x00 byte"), "nul \ufffd byte"),
        (ValueError("\udcff"), "?"),
        (Hostile(), "<Hostile, whose text could not be had>"),
        (BadRepr("said"), "said"),
        (type("Nameless", (Exception,), {"__module__": BadModule()})("said"), "said"),
        (KeyError(BadRepr()), "<KeyError, whose text could not be had>"),
        (ValueError("x" * 10_000_000), None),
    ],
    ids=["nul", "surrogate", "str", "repr", "module", "inner repr", "10 MB"],
)
def test_an_error_of_any_text_is_recorded_and_comes_out(
    error: Exception, message: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    if message == "?":
        # Where tests run in several processes, half a surrogate pair cannot be passed on as what a test logged.
        caplog.set_level(logging.CRITICAL, "django_singlecron")

    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        job(fail)()
    assert raised.value is error
    row = the_run()
    assert row.status == "failed"
    if message is None:
        assert len(row.error_message) == 10_000
        assert len(row.traceback) == 100_000
        assert "characters cut" in row.error_message
    else:
        assert row.error_message == message


def test_a_chain_of_causes_is_recorded_whole() -> None:
    def fail() -> None:
        try:
            raise KeyError("cause")
        except KeyError as cause:
            error = ValueError("effect")
            error.__cause__ = cause
            raise error from cause

    with pytest.raises(ValueError, match="effect"):
        job(fail)()
    assert "KeyError: 'cause'" in the_run().traceback


def test_a_job_that_returns_a_generator_ran_nothing_and_fails() -> None:
    with pytest.raises(InvalidTask, match="returned a generator"):
        job(lambda: (write() for _ in range(2)))()
    assert the_run().status == "failed"


# Errors of the database inside the job


def test_a_caught_database_error_keeps_the_lock_and_fails_the_run() -> None:
    free: list[bool] = []

    def carry_on() -> None:
        write()
        with pytest.raises(ProgrammingError):
            sql("SELECT no_such_column")
        free.append(is_free())

    with pytest.raises(TransactionBroken, match="caught a database error") as raised:
        job(carry_on)()
    assert isinstance(raised.value.__cause__, InternalError)
    assert free == [False]
    assert the_run().status == "failed"
    assert written() == []
    assert is_free()


def test_a_database_error_caught_outside_its_own_block_is_no_matter() -> None:
    def carry_on() -> None:
        write()
        with pytest.raises(IntegrityError), transaction.atomic():
            write()

    assert job(carry_on)()
    assert written() == ["written"]


@pytest.mark.parametrize("catch", [IntegrityError, Exception])
def test_an_orm_error_that_is_caught_fails_the_run(catch: type[Exception]) -> None:
    def carry_on() -> None:
        write()
        with pytest.raises(catch):
            write()

    with pytest.raises(TransactionBroken):
        job(carry_on)()
    assert written() == []


def test_a_job_that_asks_for_a_rollback_fails() -> None:
    def undo() -> None:
        write()
        transaction.set_rollback(True)

    with pytest.raises(TransactionBroken, match="asked for a rollback"):
        job(undo)()
    assert the_run().status == "failed"
    assert written() == []


def test_a_failing_statement_fails_the_run() -> None:
    with pytest.raises(DataError):
        job(lambda: sql("SELECT 1 / 0"))()
    assert (the_run().status, the_run().error_class) == ("failed", "django.db.utils.DataError")
    assert is_free()


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK", "COMMIT; BEGIN", "ROLLBACK AND CHAIN", "COMMIT AND CHAIN"])
@pytest.mark.parametrize("then", ["return", "raise"])
def test_a_raw_end_of_the_transaction_loses_the_lock_and_is_told(statement: str, then: str) -> None:
    def end() -> None:
        write()
        sql(statement)
        if then == "raise":
            raise ValueError("after it")

    with pytest.raises(LockLost if then == "return" else ValueError) as raised:
        job(end)()
    row = the_run()
    assert row.status == "lost"
    assert row.error_message == str(raised.value)
    assert is_free()
    assert written() == (["written"] if statement.startswith("COMMIT") else [])


@pytest.mark.parametrize(
    "statements",
    [
        ["SAVEPOINT mine", "RELEASE SAVEPOINT mine"],
        [
            "SAVEPOINT mine",
            "INSERT INTO billing_tenant (name, monthly_fee) VALUES ('x', 1)",
            "ROLLBACK TO SAVEPOINT mine",
        ],
        ["SAVEPOINT mine"],
    ],
)
def test_raw_savepoints_of_the_job_are_its_own_affair(statements: list[str]) -> None:
    def save() -> None:
        write()
        for statement in statements:
            sql(statement)

    assert job(save)()
    assert written() == ["written"]
    assert is_free()


def test_releasing_the_runs_own_savepoint_keeps_the_lock() -> None:
    def release() -> None:
        write()
        sql("RELEASE SAVEPOINT singlecron")
        assert not is_free()

    assert job(release)()
    assert written() == ["written"]
    assert is_free()


def test_without_its_savepoint_a_caught_error_is_never_green() -> None:
    def release() -> None:
        write()
        sql("RELEASE SAVEPOINT singlecron")
        with pytest.raises(DatabaseError):
            sql("SELECT no_such_column")
        assert is_free()

    with pytest.raises(TransactionBroken):
        job(release)()
    assert the_run().status == "lost"
    assert written() == []


def test_without_its_savepoint_a_failed_run_is_lost_since_nobody_knows_how_long_it_had_its_lock() -> None:
    def release() -> None:
        write()
        sql("RELEASE SAVEPOINT singlecron")
        raise ValueError("after it")

    with pytest.raises(ValueError, match="after it"):
        job(release)()
    assert the_run().status == "lost"
    assert written() == []
    assert is_free()


def test_going_back_to_the_runs_own_savepoint_undoes_the_work_and_keeps_the_lock() -> None:
    def go_back() -> None:
        write()
        sql("ROLLBACK TO SAVEPOINT singlecron")
        assert not is_free()

    assert job(go_back)()
    assert written() == []
    assert is_free()


@pytest.mark.parametrize("then", ["raise", "return"])
def test_a_block_that_the_job_left_open_is_rolled_back_and_frees_the_lock(then: str) -> None:
    kept: list[Iterator[int]] = []

    def rows() -> Iterator[int]:
        with transaction.atomic():
            yield 1

    def leave() -> None:
        kept.append(rows())
        next(kept[0])
        write()
        if then == "raise":
            raise ValueError("its own")

    with pytest.raises(ValueError if then == "raise" else TransactionBroken, match=r"its own|left .* block open"):
        job(leave)()
    assert the_run().status == "failed"
    assert not connection.in_atomic_block
    assert written() == []
    assert is_free()
    kept.clear()
    assert job(write, "next")()
    assert written() == ["written"]


def test_a_way_back_that_is_broken_off_reads_lost_since_nobody_knows_what_was_committed() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    def commit() -> None:
        write()
        sql("COMMIT")
        raise ValueError

    with before_statement("ROLLBACK TO SAVEPOINT", interrupt), pytest.raises(KeyboardInterrupt):
        job(commit)()
    assert the_run().status == "lost"
    assert written() == ["written"]
    assert is_free()


def close() -> None:
    connection.close()


def close_and_query() -> None:
    connection.close()
    written()


def terminate() -> None:
    pid = connection.connection.info.backend_pid
    with session() as other:
        assert other.one("SELECT pg_terminate_backend(%s, 5000)", pid)


def terminate_and_query() -> None:
    terminate()
    written()


@pytest.mark.parametrize("end", [close, close_and_query, terminate, terminate_and_query])
def test_a_connection_that_ends_in_the_job_is_recorded_undone_and_replaced(end: Callable[[], None]) -> None:
    def break_off() -> None:
        write()
        end()

    with pytest.raises((LockLost, InterfaceError, OperationalError, ProgrammingError)):
        job(break_off)()
    row = the_run()
    assert row.status == ("lost" if end is close else "failed")
    assert row.finished_at is not None
    assert written() == []
    assert is_free()
    assert job(write)()
    assert written() == ["written"]


def test_a_cancelled_statement_fails_the_run() -> None:
    def cancel(pid: int) -> None:
        # Only a statement that is under way can be cancelled.
        asleep = "FROM pg_stat_activity WHERE pid = %s AND wait_event = 'PgSleep'"
        with session() as other:
            cancel = f"SELECT count(pg_cancel_backend(pid)) {asleep}"
            wait_until(lambda: other.one(cancel, pid), what="the statement cancelled")

    def sleep() -> None:
        threads.append(threading.Thread(target=cancel, args=(connection.connection.info.backend_pid,)))
        threads[0].start()
        sql("SELECT pg_sleep(30)")

    threads: list[threading.Thread] = []
    with pytest.raises(OperationalError, match="canceling statement"):
        job(sleep)()
    threads[0].join(10)
    assert the_run().status == "failed"
    assert is_free()


def test_a_stale_connection_is_replaced_before_the_run() -> None:
    written()
    terminate()
    assert job(write)()
    assert JobRun.objects.count() == 1
    assert written() == ["written"]


# After the commit


def test_an_on_commit_hook_that_raises_leaves_the_work_and_is_recorded_beside_it() -> None:
    def hook() -> None:
        raise ValueError("mail server down")

    def work() -> None:
        write()
        transaction.on_commit(hook)

    with pytest.raises(ValueError, match="mail server down"):
        job(work)()
    row = the_run()
    assert (row.status, row.error_class, row.error_message) == ("succeeded", "ValueError", "mail server down")
    assert "in hook" in row.traceback
    assert written() == ["written"]
    assert is_free()


def test_an_exit_and_a_hook_that_raises() -> None:
    def work() -> None:
        transaction.on_commit(lambda: 1 / 0)
        raise SystemExit(0)

    with pytest.raises(ZeroDivisionError):
        job(work)()
    assert the_run().status == "succeeded"


def test_a_robust_hook_that_raises_is_djangos_affair(caplog: pytest.LogCaptureFixture) -> None:
    assert job(lambda: transaction.on_commit(lambda: 1 / 0, robust=True))()
    assert "Error calling" in caplog.text
    assert the_run().error_message == ""


def test_a_hook_may_call_the_same_job_again() -> None:
    results: list[Any] = []

    def work() -> None:
        if not results:
            results.append("first")
            transaction.on_commit(lambda: results.append(task()))

    task = job(work)
    first = task()
    assert results[0] == "first"
    assert results[1].ran
    assert results[1].run_id != first.run_id
    assert [run.status for run in JobRun.objects.all()] == ["succeeded", "succeeded"]


def test_hooks_of_a_failed_run_are_dropped() -> None:
    called: list[int] = []

    def work() -> None:
        transaction.on_commit(lambda: called.append(1))
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        job(work)()
    assert called == []
    assert not connection.run_on_commit


# Inside other runs and transactions


@pytest.mark.parametrize("outcome", ["succeeds", "rolls back", "fails"])
def test_a_job_inside_itself_is_skipped_and_that_is_recorded_whatever_becomes_of_the_outer(outcome: str) -> None:
    inner: list[Any] = []

    def work() -> None:
        with transaction.atomic():
            inner.append(task())
            transaction.set_rollback(outcome == "rolls back")
        if outcome == "fails":
            raise ValueError("outer")

    task = job(work)
    if outcome == "fails":
        with pytest.raises(ValueError, match="outer"):
            task()
    else:
        assert task()
    outer, skip = JobRun.objects.order_by("id")
    assert inner == [RunResult("skipped", skip_reason="locked", held_by=outer.pk, run_id=skip.pk)]
    assert (skip.status, skip.held_by_id, skip.key) == ("skipped", outer.pk, outer.key)
    assert outer.status == ("failed" if outcome == "fails" else "succeeded")


def test_a_job_inside_itself_leaves_no_row_where_skips_are_not_recorded() -> None:
    inner: list[Any] = []
    task = job(lambda: inner.append(task()), record_skips=False)
    assert task()
    assert inner == [RunResult("skipped", skip_reason="locked", held_by=the_run().pk)]


def test_skips_that_cannot_be_written_again_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    def work() -> None:
        task()
        transaction.on_commit(lambda: sql("ALTER TABLE django_singlecron_jobrun RENAME TO away"))

    task = job(work)
    try:
        assert task()
    finally:
        sql("ALTER TABLE away RENAME TO django_singlecron_jobrun")
    assert "is not all recorded" in caplog.text
    assert JobRun.objects.count() == 2


def test_the_same_job_in_another_thread_is_skipped_by_the_lock() -> None:
    results: list[Any] = []
    task = job(lambda: results.append(in_thread(task)))
    outer = task()
    assert results[0].held_by == outer.run_id
    assert not results[0].ran


def test_another_job_inside_a_job_is_refused_and_told_what_to_do() -> None:
    def outer() -> None:
        write()
        with pytest.raises(OuterTransaction, match=r'inside the job "outer".*Call its \.func') as refused:
            job(write, "inner")()
        raise refused.value

    with pytest.raises(OuterTransaction):
        job(outer, "outer")()
    assert the_run().job == "outer"
    assert written() == []


def test_another_job_after_the_commit_or_as_a_plain_function_is_the_documented_way() -> None:
    inner = job(lambda: write(f"inner {Tenant.objects.count()}"), "inner")

    def outer() -> None:
        inner.func()
        transaction.on_commit(inner)

    assert job(outer, "outer")()
    assert written() == ["inner 0", "inner 1"]
    assert [run.job for run in JobRun.objects.order_by("id")] == ["outer", "inner"]


def test_a_job_of_another_database_may_run_inside_a_job() -> None:
    seen: list[Any] = []

    with database_alias("second"):
        outer = job(lambda: seen.extend([inner(), current_run()]), "outer")
        inner = job(lambda: seen.extend([outer(), current_run()]), "inner", using="second")
        result = outer()
    again, inner_run, inner_result, outer_run = seen
    assert (inner_run.name, inner_run.using, outer_run.name) == ("inner", "second", "outer")
    assert inner_result.ran
    assert (again.ran, again.held_by) == (False, result.run_id)
    assert sorted(run.status for run in JobRun.objects.all()) == ["skipped", "succeeded", "succeeded"]


def test_a_failing_job_of_another_database_does_not_copy_rows_into_it() -> None:
    def fail() -> None:
        outer()
        with session() as other:
            before.append(other.one("SELECT count(*) FROM django_singlecron_jobrun"))
        raise ValueError("inner")

    def call() -> None:
        with pytest.raises(ValueError, match="inner"):
            job(fail, "inner", using="second")()
        with session() as other:
            before.append(other.one("SELECT count(*) FROM django_singlecron_jobrun"))

    before: list[int] = []
    with database_alias("second"):
        outer = job(call, "outer")
        assert outer()
    assert before == [2, 2]
    assert JobRun.objects.count() == 3


def test_inside_a_transaction_it_is_refused_before_anything_ran() -> None:
    with transaction.atomic(), pytest.raises(OuterTransaction, match=r"non_atomic_requests; \.func"):
        job(write)()
    assert JobRun.objects.count() == 0
    assert written() == []


def test_under_atomic_requests_it_is_refused() -> None:
    from django.core.handlers.base import BaseHandler

    def view(request: HttpRequest) -> HttpResponse:
        with pytest.raises(OuterTransaction):
            job(write)()
        return HttpResponse()

    connection.settings_dict["ATOMIC_REQUESTS"] = True
    try:
        assert BaseHandler().make_view_atomic(view)(HttpRequest()).status_code == 200
        free_view = transaction.non_atomic_requests(lambda request: HttpResponse(str(job(write)().ran)))
        assert BaseHandler().make_view_atomic(free_view)(HttpRequest()).content == b"True"
    finally:
        connection.settings_dict["ATOMIC_REQUESTS"] = False


def test_without_autocommit_it_is_refused() -> None:
    transaction.set_autocommit(False)
    try:
        with pytest.raises(OuterTransaction, match=r"set_autocommit\(False\)"):
            job(write)()
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    with database_alias("manual", AUTOCOMMIT=False) as alias, pytest.raises(OuterTransaction, match="AUTOCOMMIT off"):
        job(write, using=alias)()
    assert JobRun.objects.count() == 0


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_transaction_that_was_begun_by_hand_lets_no_job_start(is_broken: bool) -> None:
    ran: list[int] = []
    with database_alias("kept", CONN_MAX_AGE=None) as alias, connections[alias].cursor() as cursor:
        cursor.execute("BEGIN")
        if is_broken:
            with pytest.raises(DatabaseError):
                cursor.execute("SELECT 1/0")
        with pytest.raises(OuterTransaction, match="a raw BEGIN left"):
            job(lambda: ran.append(1), using=alias)()
        cursor.execute("COMMIT")
    assert ran == []
    assert JobRun.objects.count() == 0
    assert is_free()


# What a job leaves open


def leave_a_stream(kept: list[Any]) -> None:
    rows = connection.cursor().stream("SELECT generate_series(1, 100000)")
    kept.append(rows)
    next(rows)


def leave_a_copy(kept: list[Any]) -> None:
    copy = connection.cursor().copy("COPY billing_tenant (name, monthly_fee) FROM STDIN")
    kept.append(copy)
    copy.__enter__()


@pytest.mark.skipif(not is_psycopg3, reason="psycopg2 has no stream() and no copy(); with psycopg 3 this runs")
@pytest.mark.parametrize("leave", [leave_a_stream, leave_a_copy])
@pytest.mark.parametrize("end", ["returns", "raises", "is late"])
def test_a_statement_that_is_left_open_ends_the_run(leave: Callable[[list[Any]], None], end: str) -> None:
    kept: list[Any] = []

    def work() -> None:
        write()
        leave(kept)
        if end == "raises":
            raise ZeroDivisionError
        if end == "is late":
            # Until the deadline interrupts it.
            threading.Event().wait(WAIT)

    errors = {"returns": TransactionBroken, "raises": ZeroDivisionError, "is late": RunTimedOut}
    with pytest.raises(errors[end]):
        job(work, timeout=0.2 if end == "is late" else None)()
    assert the_run().status == "failed"
    assert written() == []
    wait_until(is_free, what="the lock free")
    assert job(write)()


# Coroutines


class Waiting:
    def __await__(self) -> Any:
        """Nobody asks for it."""


def test_what_waits_to_be_awaited_is_refused() -> None:
    with pytest.raises(InvalidTask, match="returned a Waiting"):
        job(lambda: Waiting())()
    assert the_run().status == "failed"


async def acoroutine() -> str:
    await asyncio.sleep(0)
    await Tenant.objects.acreate(name="async", monthly_fee=1)
    run = current_run()
    return run.name if run else "outside"


def test_a_coroutine_is_awaited_in_the_transaction() -> None:
    result = run_async(job(acoroutine)())
    assert result.value == "job"
    assert the_run().status == "succeeded"
    assert written() == ["async"]


def test_a_function_that_returns_a_coroutine_has_it_awaited() -> None:
    assert job(lambda: acoroutine())().value == "job"
    assert written() == ["async"]


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), asyncio.CancelledError()], ids=repr)
def test_a_coroutine_that_raises_fails(error: BaseException) -> None:
    async def fail() -> None:
        await Tenant.objects.acreate(name="async", monthly_fee=1)
        raise error

    def returns_it() -> Any:
        return fail()

    with pytest.raises(type(error)):
        job(returns_it)()
    assert the_run().status == "failed"
    assert written() == []
    assert is_free()


# What is logged


def test_each_event_is_one_line_with_job_and_run(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "django_singlecron")
    job(lambda: None)()
    succeeded = the_run()
    with hold_lock("job"):
        job(lambda: None)()
    with pytest.raises(ZeroDivisionError):
        job(lambda: 1 / 0)()
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    skipped, failed = JobRun.objects.exclude(pk=succeeded.pk).order_by("id")
    assert lines[0] == ("INFO", f'Job "job" acquired: run {succeeded.pk} starts.')
    assert lines[1][1].startswith(f'Job "job" succeeded: run {succeeded.pk} took 0.')
    assert lines[2][1].startswith(f'Job "job" skipped (attempt {skipped.pk}): its lock is held, by a run that left no')
    assert lines[4][0] == "ERROR"
    assert lines[4][1].startswith(f'Job "job" failed: run {failed.pk} raised after 0.')
    assert caplog.records[4].exc_info is not None
    assert (caplog.records[4].job, caplog.records[4].run_id) == ("job", failed.pk)  # type: ignore[attr-defined]


def test_a_log_handler_that_raises_does_not_touch_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    mails: list[str] = []

    class Mails(AdminEmailHandler):
        """Django's own, which raises for an exception whose text cannot be had."""

        def send_mail(self, subject: str, message: str, *args: Any, **kwargs: Any) -> None:
            mails.append(subject)

    logger, handler = logging.getLogger("django_singlecron"), Mails()
    handler.setLevel(logging.ERROR)
    logger.addHandler(handler)
    try:

        def fail() -> None:
            raise BadText

        with pytest.raises(BadText):
            job(fail)()
        with pytest.raises(ZeroDivisionError):
            job(lambda: 1 / 0)()
    finally:
        logger.removeHandler(handler)
    assert "ValueError: no text" in capsys.readouterr().err
    assert len(mails) == 1
    assert 'Job "job" failed' in mails[0]


class BadText(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def test_the_connections_of_other_aliases_are_left_alone() -> None:
    assert job(write)()
    assert [wrapper.alias for wrapper in connections.all(initialized_only=True)] == ["default"]


# Odd ends


class WithoutTraceback(Exception):
    @property
    def __traceback__(self) -> None:
        raise RuntimeError


class Incomparable:
    __eq__ = None


@pytest.mark.parametrize("code", [0.0, Incomparable()], ids=["a float", "incomparable"])
def test_only_an_integer_is_an_exit_code(code: object) -> None:
    with pytest.raises(SystemExit):
        job(lambda: sys.exit(code))()
    assert the_run().status == "failed"


def test_an_error_without_a_traceback_comes_out_and_is_recorded() -> None:
    def fail() -> None:
        raise WithoutTraceback

    try:
        job(fail)()
    except BaseException as error:
        raised = type(error)
    assert raised is WithoutTraceback
    assert (the_run().status, the_run().error_class) == ("failed", "tests.test_runner.WithoutTraceback")


def leave_autocommit_off() -> None:
    transaction.set_autocommit(False)


@pytest.mark.parametrize("leave", [leave_autocommit_off, lambda: sql("BEGIN")], ids=["autocommit", "BEGIN"])
def test_a_hook_that_leaves_a_transaction_open_has_its_error_on_record(leave: Callable[[], None]) -> None:
    def hook() -> None:
        leave()
        raise ZeroDivisionError

    def work() -> None:
        write()
        transaction.on_commit(hook)

    with pytest.raises(ZeroDivisionError):
        job(work)()
    connection.close()
    assert (the_run().status, the_run().error_class) == ("succeeded", "ZeroDivisionError")
    assert written() == ["written"]
