"""Real processes, really killed: what each end of a replica leaves in the database, in the history and as exit code."""

import signal
from collections.abc import Callable

import pytest
from django.db import connection, transaction

from django_singlecron.models import JobRun
from testproject.billing.models import Tenant
from tests.support.deadlines import wait_until
from tests.support.orders import BRIEF_JOB, JOB, finish, run_of, start_holding
from tests.support.replicas import Replica, Replicas
from tests.support.sessions import Watcher

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def holding(replicas: Replicas) -> Replica:
    """A replica whose job is going on."""
    return start_holding(replicas)


def assert_next_attempt_runs(replicas: Replicas, job: str = JOB) -> None:
    after = start_holding(replicas, job)
    finish(after)
    assert run_of(after).status == "succeeded"


class TestThreeReplicas:
    def test_one_runs_and_the_others_say_who_holds_the_lock_and_exit_with_0(
        self, replicas: Replicas, holding: Replica
    ) -> None:
        others = [replicas.manage(JOB), replicas.manage(JOB)]
        run = run_of(holding)
        for other in others:
            assert other.end() == 0
            assert other.out == ""
            since = run.started_at.isoformat(sep=" ", timespec="seconds")
            assert other.err == f"Skipped: run {run.pk} on {run.host} (pid {run.pid}) holds its lock since {since}.\n"
            skipped = run_of(other)
            assert (skipped.outcome, skipped.status, skipped.held_by) == ("skipped", "skipped", run)
        finish(holding)
        assert run_of(holding).status == "succeeded"
        assert Tenant.objects.count() == 1

    def test_started_at_once_exactly_one_runs(self, replicas: Replicas) -> None:
        started = [replicas.manage(JOB) for _ in range(3)]
        wait_until(lambda: JobRun.objects.skipped().count() == 2, what="two skipped attempts")
        [winner] = [replica for replica in started if run_of(replica).outcome == "acquired"]
        finish(winner)
        assert [replica.end() for replica in started] == [0, 0, 0]
        assert {run.held_by for run in JobRun.objects.skipped()} == {run_of(winner)}
        assert Tenant.objects.count() == 1


class TestKilled:
    def test_the_lock_is_free_at_once_and_the_next_attempt_marks_the_run_as_lost(
        self, replicas: Replicas, holding: Replica, watcher: Watcher
    ) -> None:
        holding.send(signal.SIGKILL)
        assert holding.end() == -signal.SIGKILL
        wait_until(lambda: not watcher.advisory_locks(), what="the killed replica's lock freed", seconds=10)

        killed = run_of(holding)
        assert killed.status == "running"
        assert killed.backend_pid not in {session.pid for session in watcher.sessions()}
        assert Tenant.objects.count() == 0

        assert_next_attempt_runs(replicas)
        killed.refresh_from_db()
        assert killed.status == "lost"
        assert killed.finished_at is not None
        assert "killed" in killed.error_message
        assert Tenant.objects.count() == 1

    def test_a_process_that_ends_itself_at_once_is_lost_too(self, replicas: Replicas, holding: Replica) -> None:
        holding.order("os-exit 7")
        assert holding.end() == 7
        assert_next_attempt_runs(replicas)
        assert run_of(holding).status == "lost"
        assert Tenant.objects.count() == 1


def ordered(line: str) -> Callable[[Replica], None]:
    return lambda replica: replica.order(line)


def sent(number: signal.Signals) -> Callable[[Replica], None]:
    return lambda replica: replica.send(number)


@pytest.mark.parametrize(
    ("end", "code", "error_class", "message"),
    [
        pytest.param(sent(signal.SIGTERM), 143, "django_singlecron.interrupts.Terminated", "SIGTERM", id="SIGTERM"),
        pytest.param(sent(signal.SIGINT), -signal.SIGINT, "KeyboardInterrupt", "", id="Ctrl-C"),
        pytest.param(ordered("exit 3"), 3, "SystemExit", "3", id="sys.exit"),
        pytest.param(ordered("raise"), 1, "tests.jobs.orders.Disobedience", "as ordered", id="an error"),
    ],
)
def test_a_run_that_is_ended_is_recorded_as_what_ended_it(
    replicas: Replicas,
    holding: Replica,
    watcher: Watcher,
    end: Callable[[Replica], None],
    code: int,
    error_class: str,
    message: str,
) -> None:
    end(holding)
    assert holding.end() == code
    assert watcher.advisory_locks() == []
    run = run_of(holding)
    assert (run.status, run.error_class) == ("failed", error_class)
    assert message in run.error_message
    assert run.traceback.startswith("Traceback (most recent call last):")
    assert "follow_orders" in run.traceback
    assert f"holding {run.pk}" in run.output
    assert Tenant.objects.count() == 0
    assert_next_attempt_runs(replicas)


def test_sys_exit_with_0_is_a_success(holding: Replica) -> None:
    holding.order("exit 0")
    assert holding.end() == 0
    assert run_of(holding).status == "succeeded"
    assert Tenant.objects.count() == 1


@pytest.mark.parametrize(("how", "code"), [("exit", 0), ("return", 1)])
def test_a_child_that_the_job_forks_does_not_touch_the_run(
    holding: Replica, watcher: Watcher, how: str, code: int
) -> None:
    holding.order(f"fork {how}")
    assert holding.expect("child") == str(code)
    assert len(watcher.advisory_locks()) == 1
    assert run_of(holding).status == "running"
    finish(holding)
    assert run_of(holding).status == "succeeded"
    assert JobRun.objects.count() == Tenant.objects.count() == 1


class TestWrappedCommand:
    """`singlecron run clearsessions` twice at once: the first waits inside for a table that the test has locked."""

    @pytest.mark.parametrize(
        ("options", "code", "says_so"),
        [
            ([], 0, True),
            (["--skip-exit-code", "75"], 75, True),
            (["--verbosity", "0"], 0, False),
            (["--skip-exit-code", "75", "--verbosity", "0"], 75, False),
        ],
        ids=["by default", "skip-exit-code", "silenced", "both"],
    )
    def test_the_loser_says_who_holds_the_lock(
        self, replicas: Replicas, watcher: Watcher, options: list[str], code: int, says_so: bool
    ) -> None:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("LOCK TABLE django_session")
            winner = replicas.manage("singlecron", "run", *options, "clearsessions")
            watcher.wait_for_run()
            loser = replicas.manage("singlecron", "run", *options, "clearsessions")
            assert loser.end() == code
        assert winner.end() == 0, winner.err

        run = run_of(winner)
        assert (run.job, run.status, run.command) == ("clearsessions", "succeeded", "manage.py singlecron run")
        assert run_of(loser).held_by == run
        since = run.started_at.isoformat(sep=" ", timespec="seconds")
        said = f"Skipped: run {run.pk} on {run.host} (pid {run.pid}) holds its lock since {since}.\n"
        assert loser.err == (said if says_so else "")
        assert winner.out == winner.err == loser.out == ""


class TestTimeout:
    @pytest.mark.parametrize("doing", ["reading its input", "waiting for the database"])
    def test_the_run_is_ended_when_its_time_is_up(self, replicas: Replicas, watcher: Watcher, doing: str) -> None:
        replica = start_holding(replicas, BRIEF_JOB)
        if doing == "waiting for the database":
            replica.order("sleep")
        assert replica.end() == 1
        wait_until(lambda: not watcher.advisory_locks(), what="the lock freed", seconds=10)
        run = run_of(replica)
        assert (run.status, run.error_class) == ("failed", "django_singlecron.exceptions.RunTimedOut")
        assert "exceeded its timeout of 1 s" in run.error_message
        assert Tenant.objects.count() == 0

    def test_the_server_ends_the_run_of_a_process_that_is_stopped(self, replicas: Replicas, watcher: Watcher) -> None:
        stopped = start_holding(replicas, BRIEF_JOB)
        stopped.send(signal.SIGSTOP)
        wait_until(lambda: not watcher.advisory_locks(), what="the lock freed by the server", seconds=10)
        assert Tenant.objects.count() == 0
        finish(start_holding(replicas))
        stopped.send(signal.SIGCONT)
        assert stopped.end() == 1
        run = run_of(stopped)
        assert (run.status, run.error_class) == ("failed", "django_singlecron.exceptions.RunTimedOut")
        assert Tenant.objects.count() == 1


def test_a_stopped_process_keeps_its_lock_and_finishes_once_it_goes_on(replicas: Replicas, holding: Replica) -> None:
    holding.send(signal.SIGSTOP)
    other = replicas.manage(JOB)
    assert other.end() == 0
    assert run_of(other).held_by == run_of(holding)
    holding.send(signal.SIGCONT)
    finish(holding)
    assert run_of(holding).status == "succeeded"
    assert Tenant.objects.count() == 1
