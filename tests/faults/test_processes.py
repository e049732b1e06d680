"""A replica's process is killed, interrupted, stopped, forked or starved, at each step of a run."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from pathlib import Path

import pytest
from django.db.models.functions import Now

from django_singlecron.models import JobRun
from tests.faults.jobs import FIRST, LAST
from tests.faults.marks import MOMENTS, at_each_moment, at_each_point
from tests.faults.replicas import Attempt, Case
from tests.faults.steps import (
    AFTER_ATTEMPT,
    AFTER_COMMIT,
    AFTER_LOCK,
    AFTER_RECORD,
    BEFORE_ATTEMPT,
    BEFORE_LOCK,
    BEFORE_RECORD,
    CONNECTING,
    LAST_IN_BODY,
    ON_COMMIT,
    POINTS,
    Point,
    Step,
)
from tests.support.deadlines import wait_until
from tests.support_core import is_free, real_database

pytestmark = real_database

# Where the run holds its lock.
HOLDING = POINTS[POINTS.index(AFTER_LOCK) : POINTS.index(AFTER_COMMIT)]

UNRECORDED = (CONNECTING, BEFORE_ATTEMPT)


def statuses(attempt: Attempt) -> list[str]:
    return [row.status for row in attempt.rows]


def is_pending(pid: int, number: signal.Signals) -> bool:
    """Whether a signal has yet to be taken by a process."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        # It died of it.
        return False
    status = dict(line.split(":\t") for line in lines)
    return bool((int(status["ShdPnd"], 16) | int(status["SigPnd"], 16)) >> (number - 1) & 1)


def is_faults_lock_free() -> bool:
    return is_free("faults-a")


def deliver(attempt: Attempt, number: signal.Signals) -> None:
    attempt.signal(number)
    wait_until(lambda: not is_pending(attempt.pid, number), what=f"{number.name} delivered")


class TestAnEndWithoutAWord:
    @at_each_point
    @pytest.mark.parametrize(
        "number",
        [
            pytest.param(signal.SIGKILL, marks=pytest.mark.fault("kill -9")),
            pytest.param(signal.SIGHUP, marks=pytest.mark.fault("SIGHUP")),
        ],
    )
    def test_by_a_signal(self, case: Case, point: Point, number: signal.Signals) -> None:
        killed, _ = case.stopped_at(point)
        killed.cut()
        killed.signal(number)
        assert killed.code() == -number
        wait_until(is_faults_lock_free, what="the lock free at once", seconds=10)
        case.check()
        expected = [] if point in UNRECORDED else ["succeeded"] if point == AFTER_COMMIT else ["lost"]
        assert statuses(killed) == expected

    @pytest.mark.fault("kill -9")
    @pytest.mark.parametrize("point", [BEFORE_RECORD, AFTER_RECORD])
    def test_while_a_failure_is_recorded(self, case: Case, point: Point) -> None:
        killed, _ = case.stopped_at(point, acts={LAST: ["raise"]})
        killed.signal(signal.SIGKILL)
        case.check()
        assert killed.row.status == ("lost" if point == BEFORE_RECORD else "failed")

    @pytest.mark.fault("kill -9 of who lost the race")
    @pytest.mark.parametrize("point", [BEFORE_RECORD, AFTER_RECORD])
    def test_while_a_lost_race_is_recorded(self, case: Case, point: Point) -> None:
        killed, _ = case.stopped_at(BEFORE_LOCK)
        winner = case.attempt(direct=True, acts={FIRST: ["wait for", "killed"]})
        winner.body()
        case.proxy.stop_at(point)
        case.proxy.go_on()
        case.proxy.wait_until_stopped()
        killed.signal(signal.SIGKILL)
        assert killed.code() == -signal.SIGKILL
        case.witness.note("killed")
        assert winner.result().outcome == "acquired"
        case.check()
        assert killed.row.status == ("lost" if point == BEFORE_RECORD else "skipped")

    @pytest.mark.fault("kill -9 of who is skipped", step=AFTER_ATTEMPT.name)
    def test_of_a_process_that_is_skipped(self, case: Case) -> None:
        winner = case.attempt(direct=True, acts={FIRST: ["wait for", "killed"]})
        winner.body()
        killed, _ = case.stopped_at(AFTER_ATTEMPT)
        killed.signal(signal.SIGKILL)
        case.witness.note("killed")
        case.check()
        assert (winner.row.status, killed.row.status) == ("succeeded", "skipped")

    @at_each_point
    @pytest.mark.fault("kill -9, {job}")
    @pytest.mark.parametrize("job", ["monthly", "once", "timed"])
    def test_the_next_attempt_runs_if_the_killed_one_did_not(self, case: Case, point: Point, job: str) -> None:
        killed, _ = case.stopped_at(point, job)
        killed.signal(signal.SIGKILL)
        killed.code()
        result = case.attempt(job, direct=True).result()
        case.check()
        took_slot = (job == "monthly" and point == AFTER_COMMIT) or (job == "once" and point not in UNRECORDED)
        assert (result.outcome, result.reason) == (("skipped", "already_ran") if took_slot else ("acquired", None))

    @pytest.mark.fault("kill -9")
    def test_after_the_run(self, case: Case) -> None:
        first, _ = case.attempts(2)
        first.result()
        first.signal(signal.SIGKILL)
        case.check()
        assert first.row.status == "succeeded"

    @at_each_moment
    @pytest.mark.parametrize(
        ("act", "code"),
        [
            pytest.param(["kill"], -9, marks=pytest.mark.fault("kill -9 by the job"), id="kill"),
            pytest.param(["os._exit", 7], 7, marks=pytest.mark.fault("os._exit"), id="os._exit"),
        ],
    )
    def test_by_the_job_itself(self, case: Case, point: str, act: list[object], code: int) -> None:
        ended = case.attempt(acts={MOMENTS[point]: act})
        assert ended.code() == code
        case.check()
        assert ended.row.status == "lost"

    @pytest.mark.fault("os._exit", step=ON_COMMIT)
    def test_once_committed(self, case: Case) -> None:
        ended = case.attempt(acts={FIRST: ["on_commit", "os._exit", 7]})
        assert ended.code() == 7
        case.check()
        assert ended.row.status == "succeeded"


class TestInterruption:
    """A signal that Python turns into an exception, in the job or round it."""

    @at_each_point
    @pytest.mark.fault("SIGTERM")
    def test_by_sigterm(self, case: Case, point: Point) -> None:
        ended, _ = case.stopped_at(point)
        deliver(ended, signal.SIGTERM)
        in_job = point.in_body or point.step == Step.MARK
        if in_job:
            case.proxy.go_on()
        # Outside the job the process dies of it, as it would without a run.
        assert ended.code() == (143 if in_job else -signal.SIGTERM)
        case.check()
        without_exception = [] if point in UNRECORDED else ["succeeded"] if point == AFTER_COMMIT else ["lost"]
        assert statuses(ended) == (["failed"] if in_job else without_exception)

    @at_each_point
    @pytest.mark.fault("SIGINT")
    def test_by_ctrl_c(self, case: Case, point: Point) -> None:
        ended, _ = case.stopped_at(point)
        if point.step == Step.ATTEMPT:
            # Its caller never knew its row.
            ended.cut()
        deliver(ended, signal.SIGINT)
        # The request that was sent before the signal is done nevertheless.
        case.proxy.go_on()
        assert ended.result().error == "KeyboardInterrupt"
        case.check()
        if point == CONNECTING:
            assert ended.rows == []
        elif point.step == Step.ATTEMPT:
            assert ended.row.status == "lost"
        else:
            assert ended.row.status == ("succeeded" if point.step == Step.COMMIT else "failed")
            assert ended.row.error_class == "KeyboardInterrupt"

    @pytest.mark.fault("{name}")
    @pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
    @pytest.mark.parametrize("point", [BEFORE_RECORD, AFTER_RECORD])
    def test_while_a_failure_is_recorded(self, case: Case, point: Point, name: str) -> None:
        ended, _ = case.stopped_at(point, acts={LAST: ["raise"]})
        deliver(ended, signal.Signals[name])
        if name == "SIGTERM":
            # What is stopped never gets to the server: the proxy drops it when it sees that its client is gone.
            assert ended.code() == -signal.SIGTERM
        else:
            case.proxy.go_on()
        case.check()
        assert ended.row.status == ("lost" if name == "SIGTERM" and point == BEFORE_RECORD else "failed")

    @pytest.mark.fault("{name}")
    @pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
    def test_after_the_run(self, case: Case, name: str) -> None:
        first, second = case.attempts(2)
        first.result()
        deliver(first, signal.Signals[name])
        second.go()
        assert first.code() != 0
        case.check()
        assert first.row.status == "succeeded"


class TestStopped:
    """A process that is stopped, goes on after others tried, and is never in anybody's way, nor anybody in its."""

    @at_each_point
    @pytest.mark.fault("SIGSTOP, SIGCONT")
    def test_others_try_meanwhile(self, case: Case, point: Point) -> None:
        stopped, _ = case.stopped_at(point)
        stopped.signal(signal.SIGSTOP)
        others = [case.attempt(direct=True), case.attempt(direct=True)]
        outcomes = {other.result().outcome for other in others}
        stopped.signal(signal.SIGCONT)
        case.proxy.go_on()
        assert stopped.result().outcome == "acquired"
        assert (outcomes == {"skipped"}) == (point in HOLDING)
        case.check()
        assert stopped.row.status == "succeeded"
        held_by = {other.row.held_by_id for other in others if other.row.status == "skipped"}
        assert point not in HOLDING or held_by == {stopped.row.pk}

    @pytest.mark.fault("SIGSTOP for long")
    @pytest.mark.parametrize("point", [AFTER_ATTEMPT, BEFORE_LOCK])
    def test_a_run_that_was_taken_for_dead_puts_its_record_right(self, case: Case, point: Point) -> None:
        stopped, _ = case.stopped_at(point)
        stopped.signal(signal.SIGSTOP)
        # As if that were some time ago.
        JobRun.objects.update(started_at=Now() - timedelta(minutes=1))
        other = case.attempt(direct=True)
        assert other.result().outcome == "acquired"
        assert stopped.row.status == "lost"
        stopped.signal(signal.SIGCONT)
        case.proxy.go_on()
        assert stopped.result().outcome == "acquired"
        case.check()
        assert (stopped.row.status, stopped.row.error_message) == ("succeeded", "")

    @pytest.mark.fault("SIGSTOP, session ended meanwhile")
    @pytest.mark.parametrize("point", [point for point in POINTS if point in HOLDING])
    def test_a_run_whose_lock_went_while_it_was_stopped_commits_nothing(self, case: Case, point: Point) -> None:
        stopped, at = case.stopped_at(point)
        stopped.signal(signal.SIGSTOP)
        stopped.cut()
        case.end_session(at.backend_pid)
        other = case.attempt(direct=True)
        assert other.result().outcome == "acquired"
        assert stopped.row.status == "lost"
        stopped.signal(signal.SIGCONT)
        case.proxy.go_on()
        assert stopped.result().outcome == "raised"
        case.check()
        assert stopped.row.status == "failed"


@pytest.mark.fault("{name}")
@pytest.mark.parametrize(
    ("name", "act", "error", "code"),
    [
        ("an error", ["raise"], "JobFailed", 1),
        ("sys.exit(3)", ["sys.exit", 3], "SystemExit", 3),
        ("sys.exit(text)", ["sys.exit", "text"], "SystemExit", 1),
        ("out of memory", ["memory", False], "MemoryError", 1),
        ("out of memory for good", ["memory", True], "MemoryError", 1),
        ("disk full for output", ["print", True], "OSError", 1),
        ("a forked child comes back", ["fork", "return"], None, 0),
        ("a forked child exits", ["fork", "os._exit"], None, 0),
        ("a forked child raises SystemExit", ["fork", "sys.exit"], None, 0),
        ("a forked child queries", ["fork", "query"], None, 0),
    ],
)
@at_each_moment
def test_what_a_body_does_to_its_process(
    case: Case, name: str, point: str, act: list[object], error: str | None, code: int
) -> None:
    [attempt] = case.attempts(1, stdout="/dev/full", acts={MOMENTS[point]: act})
    result = attempt.result()
    assert (result.outcome, result.error) == (("raised", error) if error else ("acquired", None))
    assert attempt.code() == code
    case.check()
    assert attempt.row.status == ("failed" if error else "succeeded")
    assert attempt.row.error_class.endswith(error or "")


@pytest.mark.fault("{name}")
@pytest.mark.parametrize("point", [ON_COMMIT])
@pytest.mark.parametrize(
    ("name", "act", "error"),
    [
        ("an error", ["raise"], "JobFailed"),
        ("sys.exit(3)", ["sys.exit", 3], "SystemExit"),
        ("out of memory", ["memory", False], "MemoryError"),
        ("disk full for output", ["print", True], "OSError"),
    ],
)
def test_what_an_on_commit_hook_does_to_its_process(
    case: Case, name: str, point: str, act: list[object], error: str
) -> None:
    [attempt] = case.attempts(1, stdout="/dev/full", acts={FIRST: ["on_commit", *act]})
    assert attempt.result().error == error
    case.check()
    assert attempt.row.status == "succeeded"
    assert attempt.row.error_class.endswith(error)


@pytest.mark.fault("sys.exit(0)")
@pytest.mark.parametrize("point", [LAST_IN_BODY])
def test_sys_exit_with_0_is_a_success(case: Case, point: str) -> None:
    attempt = case.attempt(acts={MOMENTS[point]: ["sys.exit", 0]})
    assert attempt.code() == 0
    case.check()
    assert attempt.row.status == "succeeded"


@pytest.mark.fault("output that fails at exit")
@at_each_moment
def test_output_that_is_lost_at_the_exit_is_no_error_of_the_run(case: Case, point: str) -> None:
    [attempt] = case.attempts(1, stdout="/dev/full", acts={MOMENTS[point]: ["print", False]})
    assert attempt.code() != 0
    case.check()
    assert attempt.row.status == "succeeded"


@pytest.mark.fault("file size limit")
@at_each_moment
def test_a_file_that_the_job_may_not_write(case: Case, point: str, tmp_path: Path) -> None:
    attempt = case.attempt(acts={MOMENTS[point]: ["fill a file", str(tmp_path / "file")]})
    assert attempt.result().error == "OSError"
    case.check()
    assert attempt.row.status == "failed"


@pytest.mark.fault("kill -9, a forked child lives on")
@at_each_moment
def test_a_child_that_outlives_a_killed_run_does_not_keep_its_lock(case: Case, point: str, tmp_path: Path) -> None:
    pid_file = tmp_path / "child"
    killed = case.attempt(acts={MOMENTS[point]: ["leave a child", str(pid_file)]})
    assert killed.code() == -signal.SIGKILL
    child = int(pid_file.read_text())
    try:
        wait_until(is_faults_lock_free, what="the lock free", seconds=10)
        case.check()
    finally:
        os.kill(child, signal.SIGKILL)
    assert killed.row.status == "lost"
