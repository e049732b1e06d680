"""Signals: what each carries, when it is sent, and that a receiver's error goes no further."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.dispatch import Signal

from django_singlecron import LockLost, Run, current_run
from django_singlecron.models import JobRun
from django_singlecron.signals import run_acquired, run_failed, run_skipped, run_succeeded
from django_singlecron.testing import hold_lock, without_locking

from .support_core import database_alias, is_free, job, real_database, sql, the_run, write, written

pytestmark = real_database

SIGNALS = {"acquired": run_acquired, "skipped": run_skipped, "succeeded": run_succeeded, "failed": run_failed}


@contextmanager
def receiving(signal: Signal, receiver: Callable[..., Any]) -> Iterator[None]:
    signal.connect(receiver, sender=JobRun)
    try:
        yield
    finally:
        signal.disconnect(receiver, sender=JobRun)


@contextmanager
def all_signals() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    sent: list[tuple[str, dict[str, Any]]] = []

    def note(signal: Signal, sender: type, **carried: Any) -> None:
        assert sender is JobRun
        sent.append((names[signal], carried))

    names = {signal: name for name, signal in SIGNALS.items()}
    for signal in SIGNALS.values():
        signal.connect(note)
    try:
        yield sent
    finally:
        for signal in SIGNALS.values():
            signal.disconnect(note)


def test_a_success_sends_two() -> None:
    runs: list[Run | None] = []
    with all_signals() as sent:
        result = job(lambda: runs.append(current_run()))()
    about = {"job": "job", "run_id": result.run_id, "using": "default"}
    assert sent == [("acquired", {**about, "run": runs[0]}), ("succeeded", {**about, "error": None})]


@pytest.mark.parametrize("recorded", [True, False])
def test_a_skip_sends_one(recorded: bool) -> None:
    with hold_lock("job"), all_signals() as sent:
        result = job(write, record_skips=recorded)()
    about = {"job": "job", "run_id": result.run_id, "using": "default"}
    assert sent == [("skipped", {**about, "skip_reason": "locked", "held_by": None})]
    assert (result.run_id is not None) is recorded


def test_a_skip_carries_the_holder() -> None:
    def outer() -> None:
        with database_alias("replica"), all_signals() as sent:
            job(write, using="replica")()
        carried.extend(sent)

    carried: list[tuple[str, dict[str, Any]]] = []
    result = job(outer)()
    assert carried[0][1]["held_by"] == result.run_id


def test_a_failure_sends_its_error() -> None:
    with all_signals() as sent, pytest.raises(ZeroDivisionError) as raised:
        job(lambda: 1 / 0)()
    name, carried = sent[1]
    assert (name, carried["status"], carried["error"]) == ("failed", "failed", raised.value)


def test_a_lost_lock_is_a_failure_of_that_status() -> None:
    with all_signals() as sent, pytest.raises(Exception, match="lost its lock"):
        job(lambda: connection.close())()
    assert sent[1][1]["status"] == "lost"


def test_a_killed_run_is_told_by_the_attempt_that_finds_it() -> None:
    job(write)()
    killed = the_run()
    JobRun.objects.update(status="running", backend_pid=2_000_000_000)
    with all_signals() as sent:
        job(lambda: None)()
    assert sent[0] == (
        "failed",
        {"job": "job", "run_id": killed.pk, "using": "default", "status": "lost", "error": None},
    )


def test_an_error_after_the_commit_is_carried_by_success() -> None:
    with all_signals() as sent, pytest.raises(ZeroDivisionError) as raised:
        job(lambda: transaction.on_commit(lambda: 1 / 0))()
    assert [name for name, _ in sent] == ["acquired", "succeeded"]
    assert sent[1][1]["error"] is raised.value


def fail(**carried: Any) -> None:
    raise ValueError("receiver")


def break_transaction(**carried: Any) -> None:
    write("by the receiver")
    with connection.cursor() as cursor:
        cursor.execute("SELECT no_such_column")


def swallow(**carried: Any) -> None:
    with pytest.raises(DatabaseError):
        break_transaction()


@pytest.mark.parametrize("receiver", [fail, break_transaction])
@pytest.mark.parametrize("name", ["acquired", "succeeded"])
def test_a_receiver_that_raises_does_not_touch_the_run(
    name: str, receiver: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    with receiving(SIGNALS[name], receiver):
        assert job(write)()
    assert the_run().status == "succeeded"
    assert "written" in written()
    assert "Error calling" in caplog.text
    if name == "acquired":
        assert written() == ["written"]


def test_a_receiver_that_swallows_a_database_error_does_not_touch_the_run(caplog: pytest.LogCaptureFixture) -> None:
    with receiving(run_acquired, swallow):
        assert job(write)()
    assert the_run().status == "succeeded"
    assert written() == ["written"]
    assert "A receiver of run_acquired broke its savepoint" in caplog.text


def test_a_receiver_that_raises_hides_no_failure_and_no_skip(caplog: pytest.LogCaptureFixture) -> None:
    with receiving(run_failed, fail), pytest.raises(ZeroDivisionError):
        job(lambda: 1 / 0)()
    with receiving(run_skipped, fail), hold_lock("job"):
        assert not job(write)()
    assert caplog.text.count("Error calling") == 2


def test_a_receiver_works_in_the_runs_transaction() -> None:
    def audit(**carried: Any) -> None:
        write("audit")

    with receiving(run_acquired, audit):
        with pytest.raises(ZeroDivisionError):
            job(lambda: 1 / 0)()
        assert written() == []
        assert job(lambda: None)()
    assert written() == ["audit"]
    assert is_free()


def test_receivers_are_looked_after_without_a_lock_too() -> None:
    heard: list[Any] = []
    with without_locking(), receiving(run_acquired, lambda **kwargs: heard.append(kwargs["run"])):
        assert job(write)()
    assert len(heard) == 1
    assert the_run().status == "succeeded"


def open_block() -> Iterator[None]:
    with transaction.atomic():
        yield


KEPT: list[Iterator[None]] = []


def leave_a_block_open() -> None:
    KEPT.append(open_block())
    next(KEPT[-1])


@pytest.mark.parametrize("do", [lambda: connection.close(), lambda: sql("COMMIT"), leave_a_block_open])
def test_a_receiver_that_ends_the_transaction_lets_no_job_start(do: Callable[[], None]) -> None:
    def receive(**kwargs: Any) -> None:
        do()

    ran: list[int] = []
    expected = pytest.raises(LockLost, match="a receiver of run_acquired that ended or left open a transaction")
    with receiving(run_acquired, receive), expected:
        job(lambda: ran.append(1))()
    assert ran == []
    assert the_run().status == "lost"
    assert is_free()
    # Its end would be that of a block of another run.
    connection.close()
    KEPT.clear()
