"""Behind a real PgBouncer in transaction mode: what holds on a direct connection holds here."""

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.backends.postgresql.psycopg_any import IsolationLevel, is_psycopg3
from django.db.models.functions import Now

from django_singlecron import RunRefused, singleton_task
from django_singlecron.models import JobRun
from testproject.billing.models import Tenant
from tests.support.bodies import Body
from tests.support.deadlines import wait_until
from tests.support.orders import BRIEF_JOB, JOB, finish, run_of, start_holding
from tests.support.pgbouncer import PgBouncer, busy_clients, running
from tests.support.replicas import Replicas
from tests.support.sessions import Watcher
from tests.support.threads import in_threads

pytestmark = pytest.mark.django_db(transaction=True)

POOL_SIZES = pytest.mark.parametrize("pool_size", [1, 2, 20])


@pytest.fixture
def start_pgbouncer(transactional_db: None) -> Iterator[Callable[[int], PgBouncer]]:
    """Starts PgBouncer with a pool of a size, which ends with the test."""
    with ExitStack() as stack:
        yield lambda pool_size: stack.enter_context(running(connection, pool_size=pool_size))


@pytest.fixture
def bouncer(start_pgbouncer: Callable[[int], PgBouncer], pool_size: int) -> PgBouncer:
    return start_pgbouncer(pool_size)


@pytest.fixture
def busy(bouncer: PgBouncer) -> Iterator[None]:
    """Other clients keep the pool busy."""
    with busy_clients(bouncer, 3):
        yield


@pytest.fixture
def pooled_replicas(bouncer: PgBouncer) -> Iterator[Replicas]:
    """Starts processes whose database is behind PgBouncer."""
    replicas = Replicas(bouncer.url)
    yield replicas
    replicas.destroy()


@POOL_SIZES
@pytest.mark.usefixtures("busy")
def test_runs_never_overlap_and_every_attempt_is_recorded(bouncer: PgBouncer, pool_size: int) -> None:
    replicas, body = 12, Body()

    @singleton_task("pooled")
    def job() -> None:
        Tenant.objects.create(name=f"tenant {len(body.runs)}", monthly_fee=1)
        # With a pool of 1 the others cannot even try while the run has the one connection.
        body.run(wait_for_skips=0 if pool_size == 1 else replicas - 1)

    results = in_threads(replicas, lambda _: body.note(job()), through=bouncer.database)

    ran = {result.run_id for result in results if result.ran}
    assert ran == set(body.runs)
    assert pool_size == 1 or len(ran) == 1
    rows = JobRun.objects.for_job("pooled")
    assert {row.pk for row in rows.succeeded()} == ran
    assert len(ran) == Tenant.objects.count()
    assert rows.skipped().filter(held_by__in=ran).count() == replicas - len(ran) == rows.count() - len(ran)


@pytest.mark.parametrize("pool_size", [20])
@pytest.mark.timeout(300)
def test_of_300_attempts_at_once_one_runs_and_299_are_skipped(bouncer: PgBouncer) -> None:
    replicas, body = 300, Body()

    @singleton_task("pooled")
    def job() -> None:
        body.run(wait_for_skips=replicas - 1)

    results = in_threads(replicas, lambda _: body.note(job()), through=bouncer.database)

    [winner] = [result for result in results if result.ran]
    rows = JobRun.objects.for_job("pooled")
    assert rows.get(status="succeeded").pk == winner.run_id
    assert rows.skipped().filter(status="skipped", held_by=winner.run_id).count() == replicas - 1 == rows.count() - 1


@pytest.mark.parametrize("pool_size", [2])
@pytest.mark.parametrize("options", [{}, {"server_side_binding": True}], ids=["client binds", "server binds"])
def test_success_skip_and_failure_with_either_way_of_binding(bouncer: PgBouncer, options: dict[str, Any]) -> None:
    body = Body()
    through = {**bouncer.database, "OPTIONS": {**bouncer.database["OPTIONS"], **options}}

    @singleton_task("bill", timeout=timedelta(minutes=1))
    def bill(fail: bool) -> None:
        Tenant.objects.create(name=f"fail={fail}", monthly_fee=1)
        body.run(wait_for_skips=0 if fail else 1)
        if fail:
            raise ZeroDivisionError

    results = in_threads(2, lambda _: body.note(bill(False)), through=through)
    with pytest.raises(ZeroDivisionError):
        in_threads(1, lambda _: bill(True), through=through)

    assert sorted(result.ran for result in results) == [False, True]
    assert sorted(JobRun.objects.values_list("status", flat=True)) == ["failed", "skipped", "succeeded"]
    assert [tenant.name for tenant in Tenant.objects.all()] == ["fail=False"]


@pytest.mark.parametrize("options", [{}, {"isolation_level": IsolationLevel.REPEATABLE_READ}], ids=["", "isolation"])
def test_statement_mode_is_refused_before_the_job_runs(options: dict[str, Any]) -> None:
    body = Body()
    job = singleton_task("pooled by statement")(lambda: body.run())

    with running(connection, pool_size=2, pool_mode="statement") as bouncer:
        through = {**bouncer.database, "OPTIONS": {**bouncer.database["OPTIONS"], **options}}
        # psycopg2 does not tell what PgBouncer says before it closes the connection.
        words = "pool_mode = transaction" if is_psycopg3 else "did not run"
        with pytest.raises(RunRefused, match=words):
            in_threads(1, lambda _: job(), through=through)
    assert (JobRun.objects.get().status, body.runs) == ("failed", [])


@POOL_SIZES
@pytest.mark.usefixtures("busy")
def test_a_replica_skips_while_another_runs_and_a_failure_is_rolled_back(
    pooled_replicas: Replicas, pool_size: int
) -> None:
    holding = start_holding(pooled_replicas)
    if pool_size > 1:
        other = pooled_replicas.manage(JOB)
        assert other.end() == 0
        assert run_of(other).held_by == run_of(holding)
    holding.order("raise")
    assert holding.end() == 1
    run = run_of(holding)
    assert (run.status, run.error_message) == ("failed", "as ordered")
    assert Tenant.objects.count() == 0


class TestKilled:
    @POOL_SIZES
    @pytest.mark.usefixtures("busy")
    def test_the_lock_is_free_at_once_and_the_next_attempt_runs(
        self, pooled_replicas: Replicas, watcher: Watcher
    ) -> None:
        holding = start_holding(pooled_replicas)
        holding.send(signal.SIGKILL)
        assert holding.end() == -signal.SIGKILL
        wait_until(lambda: not watcher.run_sessions(), what="the killed replica's transaction ended", seconds=10)
        assert run_of(holding).status == "running"

        after = start_holding(pooled_replicas)
        finish(after)
        assert run_of(after).status == "succeeded"
        assert Tenant.objects.count() == 1

    @pytest.mark.parametrize("pool_size", [1])
    def test_it_is_lost_as_soon_as_its_server_session_is_gone(self, pooled_replicas: Replicas) -> None:
        holding = start_holding(pooled_replicas)
        holding.send(signal.SIGKILL)
        holding.end()
        # The pool's one connection recorded the attempt and ran the job.
        finish(start_holding(pooled_replicas))
        assert run_of(holding).status == "lost"

    @pytest.mark.parametrize("pool_size", [2])
    def test_it_is_lost_by_its_age_when_another_session_recorded_its_attempt(
        self, pooled_replicas: Replicas, bouncer: PgBouncer
    ) -> None:
        holding = start_holding(pooled_replicas)
        killed = JobRun.objects.filter(pid=holding.pid)
        (session,) = ask_as_new_client(bouncer, "SELECT pg_backend_pid()")
        killed.update(backend_pid=session, started_at=Now())
        holding.send(signal.SIGKILL)
        holding.end()

        finish(start_holding(pooled_replicas))
        assert killed.get().status == "running"

        killed.update(started_at=killed.get().started_at - timedelta(seconds=11))
        finish(start_holding(pooled_replicas))
        assert killed.get().status == "lost"


def ask_as_new_client(bouncer: PgBouncer, query: str) -> tuple[Any, ...]:
    def ask(_: int) -> tuple[Any, ...]:
        with connection.cursor() as cursor:
            cursor.execute(query)
            row: tuple[Any, ...] = cursor.fetchone()
            return row

    return in_threads(1, ask, through=bouncer.database)[0]


class TestTimeout:
    @pytest.mark.parametrize("pool_size", [1])
    @pytest.mark.parametrize("doing", ["reading its input", "waiting for the database"])
    def test_the_run_is_ended_and_recorded_when_its_time_is_up(self, pooled_replicas: Replicas, doing: str) -> None:
        replica = start_holding(pooled_replicas, BRIEF_JOB)
        if doing == "waiting for the database":
            replica.order("sleep")
        assert replica.end() == 1
        run = run_of(replica)
        assert (run.status, run.error_class) == ("failed", "django_singlecron.exceptions.RunTimedOut")
        finish(start_holding(pooled_replicas, BRIEF_JOB))
        assert Tenant.objects.count() == 1

    @pytest.mark.parametrize("pool_size", [1])
    def test_the_server_ends_the_run_of_a_process_that_is_stopped(self, pooled_replicas: Replicas) -> None:
        stopped = start_holding(pooled_replicas, BRIEF_JOB)
        stopped.send(signal.SIGSTOP)
        # It waits in PgBouncer for the one connection until the server ends the stopped process's transaction.
        finish(start_holding(pooled_replicas, BRIEF_JOB))
        stopped.send(signal.SIGCONT)
        assert stopped.end() == 1
        assert run_of(stopped).status == "failed"
        assert Tenant.objects.count() == 1


# What a run sets, and what else a session may keep.
SESSION_STATE = """
SELECT pg_backend_pid(),
       nullif(current_setting('singlecron.run', true), ''),
       (SELECT array_agg(name || '=' || setting ORDER BY name) FROM pg_settings
        WHERE source NOT IN ('default', 'override', 'configuration file', 'command line', 'environment variable')
          -- A transaction's own, and always that of the present one, whatever an earlier one set it to.
          AND name <> 'transaction_isolation'),
       (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
          AND database = (SELECT oid FROM pg_database WHERE datname = current_database())),
       (SELECT count(*) FROM pg_prepared_statements),
       (SELECT count(*) FROM pg_cursors WHERE name <> '')
"""


@pytest.mark.parametrize("pool_size", [1])
def test_the_next_client_of_the_server_connection_finds_nothing_of_a_run(bouncer: PgBouncer) -> None:
    @singleton_task("leaves nothing", timeout=timedelta(minutes=1))
    def job(fail: bool) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('application_name'), current_setting('statement_timeout')")
            assert cursor.fetchone() == (f"singlecron/{JobRun.objects.latest().pk} leaves nothing", "61s")
        if fail:
            raise ZeroDivisionError

    before = ask_as_new_client(bouncer, SESSION_STATE)
    in_threads(1, lambda _: job(False), through=bouncer.database)
    after_success = ask_as_new_client(bouncer, SESSION_STATE)
    with pytest.raises(ZeroDivisionError):
        in_threads(1, lambda _: job(True), through=bouncer.database)
    after_failure = ask_as_new_client(bouncer, SESSION_STATE)

    assert before == after_success == after_failure
