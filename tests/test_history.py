"""The history while jobs run: who held the lock, who lost the race, who was killed, and what cannot be written."""

from __future__ import annotations

import datetime as dt
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, cast

import pytest
from django.db import OperationalError, connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from django_singlecron import RunResult, TransactionBroken
from django_singlecron.history import LOST_MESSAGE
from django_singlecron.models import JobRun
from django_singlecron.testing import hold_lock

from .support_core import (
    TAKES_LOCK,
    Session,
    before_statement,
    changed,
    database_alias,
    is_free,
    job,
    real_database,
    role,
    session,
    sql,
    the_run,
    trigger,
    write,
    written,
)

pytestmark = real_database

KEY = "SELECT hashtextextended('job', 0)"


def running_row(**values: Any) -> JobRun:
    """Record a run that reads "running", of a server session that is not there any more."""
    with session() as other:
        now, key = other.one("SELECT clock_timestamp()"), other.one(KEY)
    values = {
        "key": key,
        "started_at": now,
        "backend_pid": 2_000_000_000,
        "host": "killed",
        "pid": 7,
        "trigger": "function",
        **values,
    }
    # Not on this thread's connection, which may be in a run's transaction.
    with database_alias("recorder") as alias:
        row = JobRun.objects.using(alias).create(**{"job": "job", "outcome": "acquired", "status": "running", **values})
    row._state.db = "default"
    return row


def live(other: Session) -> dict[str, Any]:
    """Return what a row of the session `other` says of it."""
    other.connection.ensure_connection()
    return {"backend_pid": other.one("SELECT pg_backend_pid()")}


def test_a_run_does_not_need_the_migration_that_drops_a_column() -> None:
    with changed(
        "ALTER TABLE django_singlecron_jobrun ADD COLUMN backend_start timestamptz",
        "ALTER TABLE django_singlecron_jobrun DROP COLUMN backend_start",
    ):
        assert job(write)()
        with hold_lock("job"):
            assert not job(write)()
    assert sorted(JobRun.objects.values_list("status", flat=True)) == ["skipped", "succeeded"]


# Who holds it


def test_a_skip_names_the_run_that_holds_the_lock() -> None:
    results: list[Any] = []

    def outer() -> None:
        with database_alias("replica"):
            results.append(job(write, using="replica")())

    held = job(outer)()
    assert results == [RunResult("skipped", skip_reason="locked", held_by=held.run_id, run_id=results[0].run_id)]
    skip = JobRun.objects.skipped().get()
    assert (skip.held_by_id, skip.skip_reason, skip.status) == (held.run_id, "locked", "skipped")
    assert skip.finished_at is not None
    assert written() == []


def test_a_holder_that_left_no_record_is_not_made_up() -> None:
    with hold_lock("job"):
        result = job(write)()
    assert (result.ran, result.held_by, the_run().held_by_id) == (False, None, None)


def test_a_holder_is_known_by_its_session_though_others_read_running() -> None:
    with session() as other, session() as third:
        holder = running_row(**live(other))
        running_row(**live(third))
        other.connection.set_autocommit(False)
        assert other.one("SELECT pg_try_advisory_xact_lock(hashtextextended('job', 0))")
        result = job(write)()
        other.connection.rollback()
    assert result.held_by == holder.pk
    assert JobRun.objects.get(pk=result.run_id).held_by_id == holder.pk


def test_the_only_run_that_reads_running_since_long_is_the_holder_though_its_session_has_another_name() -> None:
    with session() as other:
        long_ago = other.one("SELECT clock_timestamp() - interval '2 seconds'")
        holder = running_row(started_at=long_ago, **live(other))
        with hold_lock("job"):
            result = job(write)()
    assert result.held_by == holder.pk


@contextmanager
def lock_that_is_let_go(then: Callable[[], None]) -> Iterator[Session]:
    """Hold the job's lock until an attempt that it kept from running asks who holds it."""
    with session() as other:
        other.connection.set_autocommit(False)
        assert other.one("SELECT pg_try_advisory_xact_lock(hashtextextended('job', 0))")

        def let_go() -> None:
            other.connection.rollback()
            then()

        with before_statement("SELECT held.pid", let_go):
            yield other
        other.connection.rollback()


def test_a_holder_that_was_killed_as_it_was_asked_for_is_named() -> None:
    with session() as killed:
        holder = running_row(**live(killed))
    with lock_that_is_let_go(lambda: None):
        result = job(write)()
    assert (result.ran, result.held_by) == (False, holder.pk)


def test_a_holder_whose_end_was_written_right_before_the_attempt_was_committing_and_is_named() -> None:
    holders: list[JobRun] = []

    def tell() -> None:
        skip = JobRun.objects.skipped().get()
        moment = skip.started_at - dt.timedelta(milliseconds=1)
        holders.append(running_row(status="succeeded", started_at=moment, finished_at=moment))

    with lock_that_is_let_go(tell):
        result = job(write)()
    assert (result.ran, result.held_by) == (False, holders[0].pk)


def test_a_holder_whose_row_was_deleted_is_not_made_up() -> None:
    with session() as other, session() as third:
        rivals = [running_row(**live(third)) for _ in range(2)]
        other.connection.set_autocommit(False)
        other.execute("SELECT set_config('application_name', %s, true)", f"singlecron/{rivals[-1].pk + 1000} job")
        assert other.one("SELECT pg_try_advisory_xact_lock(hashtextextended('job', 0))")
        result = job(write)()
        other.connection.rollback()
    assert (result.ran, result.held_by) == (False, None)


@pytest.mark.parametrize("loser", ["has lost", "left no row"])
def test_an_attempt_that_lost_meanwhile_is_not_taken_for_the_holder(loser: str) -> None:
    ended: list[JobRun] = []
    with session() as other:
        rival = running_row(**live(other))

    def tell() -> None:
        rivals = JobRun.objects.filter(pk=rival.pk)
        if loser == "has lost":
            rivals.update(outcome="skipped", status="skipped")
        else:
            rivals.delete()
        moment = JobRun.objects.skipped().latest("id").started_at - dt.timedelta(milliseconds=1)
        ended.append(running_row(status="succeeded", started_at=moment, finished_at=moment))

    with lock_that_is_let_go(tell):
        result = job(write)()
    assert (result.ran, result.held_by) == (False, ended[0].pk)


@pytest.mark.parametrize("seen", ["one after the other", "the same, with a gap"])
def test_sessions_that_let_go_as_they_are_looked_at_do_not_make_another_attempt_the_holder(seen: str) -> None:
    ended: list[JobRun] = []
    with session() as first, session() as second, session() as third:
        running_row(**live(third))

        def take(by: Session) -> None:
            by.connection.set_autocommit(False)
            assert by.one("SELECT pg_try_advisory_xact_lock(hashtextextended('job', 0))")

        def change() -> None:
            first.connection.rollback()
            take(second)

        def end() -> None:
            for holder in (first, second):
                holder.connection.rollback()
            ended.append(running_row(status="succeeded", finished_at=second.one("SELECT clock_timestamp()")))

        take(first)
        again = [first.connection.rollback, lambda: take(first)]
        looks = [change] if seen == "one after the other" else again
        # Neither session has a name or a row, as one whose run was just committed.
        with before_statement("SELECT held.pid", lambda: None, *looks, end):
            result = job(write)()
    assert (result.ran, result.held_by) == (False, ended[0].pk)


def test_skips_that_are_not_recorded_leave_no_row_and_name_the_holder_all_the_same() -> None:
    with session() as other:
        holder = running_row(**live(other))
        with hold_lock("job"):
            result = job(write, record_skips=False)()
    assert result == RunResult("skipped", skip_reason="locked", held_by=holder.pk)
    assert JobRun.objects.skipped().count() == 0


# The race between the probe and the lock


@pytest.mark.parametrize("record_skips", [True, False])
@pytest.mark.parametrize("rival", ["runs", "ended", "unrecorded"])
def test_who_loses_the_race_after_the_probe_is_skipped(record_skips: bool, rival: str) -> None:
    with session() as other:
        rivals: list[JobRun] = []

        def take_the_lock() -> None:
            other.connection.set_autocommit(False)
            assert other.one("SELECT pg_try_advisory_xact_lock(hashtextextended('job', 0))")
            if rival != "unrecorded":
                rivals.append(running_row(**rival_session))

        def end() -> None:
            other.connection.rollback()
            ended = "UPDATE django_singlecron_jobrun SET status = 'succeeded', finished_at = clock_timestamp()"
            other.execute(f"{ended} WHERE id = %s", rivals[0].pk)
            other.connection.commit()

        rival_session = live(other)
        with before_statement(TAKES_LOCK, take_the_lock):
            if rival == "ended":
                with before_statement("SELECT held.pid", end):
                    result = job(write, record_skips=record_skips)()
            else:
                result = job(write, record_skips=record_skips)()
        other.connection.rollback()
        other.connection.set_autocommit(True)
    holder = rivals[0].pk if rivals else None
    own = JobRun.objects.exclude(pk=holder)
    assert (result.ran, result.skip_reason, result.held_by) == (False, "locked", holder)
    if record_skips:
        row = own.get()
        assert result.run_id == row.pk
        assert (row.outcome, row.status, row.skip_reason, row.held_by_id) == ("skipped", "skipped", "locked", holder)
        assert row.finished_at is not None
    else:
        assert result.run_id is None
        assert not own.exists()
    assert written() == []
    assert is_free()


# Killed runs


def test_a_run_whose_session_is_gone_is_found_lost_by_the_next(caplog: pytest.LogCaptureFixture) -> None:
    killed = running_row()
    assert job(write)()
    killed.refresh_from_db()
    assert (killed.status, killed.error_message) == ("lost", LOST_MESSAGE)
    assert killed.finished_at is not None
    assert f'Job "job" lost: run {killed.pk} on killed (pid 7)' in caplog.text


# In the future it began when the server's clock has been set back since.
@pytest.mark.parametrize(("age", "status"), [(11, "lost"), (0, "running"), (-5, "running"), (-3600, "lost")])
def test_behind_a_pooler_where_sessions_stay_a_run_is_lost_when_it_is_old(age: int, status: str) -> None:
    with session() as other:
        started = other.one("SELECT clock_timestamp() - make_interval(secs => %s)", age)
        row = running_row(**live(other), started_at=started)
        assert job(write)()
    row.refresh_from_db()
    assert row.status == status


def test_another_session_of_the_same_server_process_id_does_not_pass_for_the_killed_one() -> None:
    with session() as other:
        started = other.one("SELECT backend_start - interval '1 second' FROM pg_stat_get_activity(pg_backend_pid())")
        row = running_row(**live(other), started_at=started)
        assert job(write)()
    row.refresh_from_db()
    assert row.status == "lost"


GRANTS = (
    "GRANT SELECT, INSERT, UPDATE, DELETE ON django_singlecron_jobrun, billing_tenant TO {}",
    "GRANT USAGE ON django_singlecron_jobrun_id_seq, billing_tenant_id_seq TO {}",
)


def test_a_session_of_another_role_is_not_taken_for_gone_because_its_start_is_hidden() -> None:
    with session() as other:
        row = running_row(**live(other))
        with role("limited", *(grant.format("limited") for grant in GRANTS)) as alias:
            assert job(lambda: write(using=alias), using=alias)()
    row.refresh_from_db()
    assert row.status == "running"
    assert written() == ["written"]


@pytest.mark.parametrize("option", ["hashtextextended", "hashtext", -4242, -(2**63), (-7, -42), (7, -42)], ids=repr)
def test_no_run_is_called_lost_while_somebody_holds_its_key(option: Any) -> None:
    # This process was stopped between its probe and its cleaning up, and another replica runs by now.
    task = job(write, key=option)
    task()
    done = the_run()
    row = running_row(key=done.key, key_is_pair=done.key_is_pair)
    with ExitStack() as stack:
        hold = partial(stack.enter_context, hold_lock("job", key=option))
        with before_statement("UPDATE django_singlecron_jobrun AS run", hold):
            result = task()
    row.refresh_from_db()
    assert not result.ran
    assert row.status == "running"
    task2 = job(lambda: None, key=option)
    assert task2()
    row.refresh_from_db()
    assert row.status == "lost"


def test_runs_of_another_key_space_are_none_of_its_business() -> None:
    pair = running_row(key=42, key_is_pair=True)
    assert job(write, key=42)()
    pair.refresh_from_db()
    assert pair.status == "running"


@pytest.mark.parametrize("end", ["succeeds", "fails"])
def test_a_run_that_was_taken_for_lost_puts_its_record_right(end: str) -> None:
    def work() -> None:
        with session() as other:
            other.execute("UPDATE django_singlecron_jobrun SET status = 'lost', error_message = 'lost'")
        if end == "fails":
            raise ValueError("own")

    if end == "fails":
        with pytest.raises(ValueError, match="own"):
            job(work)()
        assert (the_run().status, the_run().error_message) == ("failed", "own")
    else:
        assert job(work)()
        assert (the_run().status, the_run().error_message) == ("succeeded", "")


# When the history itself is disturbed


@pytest.mark.parametrize("end", ["succeeds", "fails"])
def test_a_row_that_was_deleted_while_the_job_ran_is_written_anew(end: str) -> None:
    def work(tenant: int) -> None:
        with session() as other:
            other.execute("DELETE FROM django_singlecron_jobrun")
        write()
        if end == "fails":
            raise ValueError("own")

    task = job(work, "bill:{tenant}", key=(7, 42))
    if end == "fails":
        with pytest.raises(ValueError, match="own"):
            task(tenant=7)
    else:
        assert task(tenant=7)
    row = the_run()
    assert (row.job, row.arguments, row.outcome, row.key_pair) == ("bill:7", "tenant=7", "acquired", (7, 42))
    assert row.status == ("failed" if end == "fails" else "succeeded")
    assert row.error_message == ("own" if end == "fails" else "")
    assert row.finished_at is not None


@pytest.fixture
def elsewhere() -> Iterator[Session]:
    """Another schema with a history of its own, in which the next run's number is that of a lost run."""
    columns = "id, job, status, outcome, host, pid, trigger, started_at"
    with session() as owner:
        number = owner.one("SELECT last_value + 1 FROM django_singlecron_jobrun_id_seq")
        owner.execute("CREATE SCHEMA elsewhere")
        owner.execute(
            "CREATE TABLE elsewhere.django_singlecron_jobrun (LIKE public.django_singlecron_jobrun INCLUDING ALL)"
        )
        row = f"({columns}) VALUES ({number}, 'other', 'lost', 'acquired', 'here', 1, 'function', now())"
        owner.execute(f"INSERT INTO elsewhere.django_singlecron_jobrun {row}")
        try:
            yield owner
        finally:
            owner.execute("DROP SCHEMA elsewhere CASCADE")


def in_elsewhere(owner: Session) -> str | None:
    row = "concat_ws(' ', job, status, nullif(error_class, ''))"
    return cast("str | None", owner.one(f"SELECT string_agg({row}, ',') FROM elsewhere.django_singlecron_jobrun"))


SEE_ELSEWHERE = "SET search_path = elsewhere, public"


@pytest.mark.parametrize("has_row", [True, False])
def test_a_job_that_leaves_the_search_path_changed_does_not_write_into_another_schemas_history(
    elsewhere: Session, has_row: bool
) -> None:
    def work() -> None:
        write()
        sql(SEE_ELSEWHERE)

    if not has_row:
        elsewhere.execute("DELETE FROM elsewhere.django_singlecron_jobrun")
    with pytest.raises(TransactionBroken, match="left search_path changed"):
        job(work)()
    assert in_elsewhere(elsewhere) == ("other lost" if has_row else None)
    assert (the_run().status, written()) == ("failed", [])


def test_nor_does_a_hook_that_leaves_it_so_and_raises(elsewhere: Session) -> None:
    def hook() -> None:
        sql(SEE_ELSEWHERE)
        raise ZeroDivisionError

    def work() -> None:
        write()
        transaction.on_commit(hook)

    with pytest.raises(ZeroDivisionError):
        job(work)()
    assert in_elsewhere(elsewhere) == "other lost"
    assert (the_run().status, the_run().error_class, written()) == ("succeeded", "ZeroDivisionError", ["written"])


def test_nor_a_run_of_another_schema_whose_session_ended(elsewhere: Session, caplog: pytest.LogCaptureFixture) -> None:
    elsewhere.execute("INSERT INTO public.django_singlecron_jobrun SELECT * FROM elsewhere.django_singlecron_jobrun")
    elsewhere.execute("TRUNCATE elsewhere.django_singlecron_jobrun")
    sql(SEE_ELSEWHERE)
    with pytest.raises(OperationalError):
        job(lambda: sql("SELECT pg_terminate_backend(pg_backend_pid())"))()
    # The new session sees the other one.
    assert (the_run().job, the_run().status, the_run().error_class) == ("other", "lost", "")
    assert "search_path leads to another history" in caplog.text
    assert in_elsewhere(elsewhere) == "job running"


def test_an_end_that_cannot_be_recorded_does_not_mask_the_jobs_error(caplog: pytest.LogCaptureFixture) -> None:
    with (
        trigger("BEFORE UPDATE", "IF new.status = 'failed' THEN RAISE 'disk full'; END IF; RETURN new;"),
        pytest.raises(ZeroDivisionError),
    ):
        job(lambda: 1 / 0)()
    assert the_run().status == "running"
    assert 'it will read "lost"' in caplog.text
    assert "disk full" in caplog.text
    assert 'Job "job" failed' in caplog.text
    # As at the end of its process; a run whose server session is there reads "running" for ten seconds more.
    connection.close()
    assert job(write)()
    assert JobRun.objects.earliest("id").status == "lost"


def test_a_success_that_cannot_be_recorded_is_no_success() -> None:
    with (
        trigger("BEFORE UPDATE", "IF new.status = 'succeeded' THEN RAISE 'disk full'; END IF; RETURN new;"),
        pytest.raises(Exception, match="disk full"),
    ):
        job(write)()
    assert the_run().status == "failed"
    assert written() == []


def test_a_table_that_goes_away_while_the_job_runs(caplog: pytest.LogCaptureFixture) -> None:
    def work() -> None:
        with session() as other:
            other.execute("ALTER TABLE django_singlecron_jobrun RENAME TO away")
        raise ValueError("own")

    try:
        with pytest.raises(ValueError, match="own"):
            job(work)()
    finally:
        with session() as other:
            other.execute("ALTER TABLE away RENAME TO django_singlecron_jobrun")
    assert "is not all recorded" in caplog.text


def test_a_commit_that_fails_is_a_failed_run() -> None:
    with session() as other:
        other.execute(
            "ALTER TABLE billing_tenant ADD CONSTRAINT late UNIQUE (monthly_fee) DEFERRABLE INITIALLY DEFERRED"
        )
        try:
            with pytest.raises(Exception, match="late"):
                job(lambda: [write("a"), write("b")])()
        finally:
            other.execute("ALTER TABLE billing_tenant DROP CONSTRAINT late")
    assert the_run().status == "failed"
    assert written() == []


class Proxy:
    """A way to the server that goes away once it has passed a COMMIT on and seen it answered."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.cut = False
        self.threads = [threading.Thread(target=self.accept)]
        self.threads[0].start()

    def accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self.pass_on, args=(client,))
            self.threads.append(thread)
            thread.start()

    def pass_on(self, client: socket.socket) -> None:
        with client, self.connect() as server:
            client.settimeout(10)
            while asked := client.recv(1 << 20):
                server.sendall(asked)
                answer = server.recv(1 << 20)
                # The whole statement, for "READ COMMITTED" has the word too.
                if b"COMMIT\x00" in asked and not self.cut:
                    self.cut = True
                    return
                client.sendall(answer)

    def connect(self) -> socket.socket:
        host, port = connection.settings_dict["HOST"], connection.settings_dict["PORT"] or 5432
        local = host.startswith("/")
        server = socket.socket(socket.AF_UNIX if local else socket.AF_INET)
        server.settimeout(10)
        server.connect(f"{host}/.s.PGSQL.{port}" if local else (host or "127.0.0.1", int(port)))
        return server

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for thread in self.threads:
            thread.join(10)


def test_a_commit_whose_answer_got_lost_is_recorded_as_what_it_was() -> None:
    proxy = Proxy()
    options = {"sslmode": "disable", "gssencmode": "disable"}
    try:
        with database_alias("far", HOST="127.0.0.1", PORT=str(proxy.port), OPTIONS=options) as alias:
            with pytest.raises(OperationalError):
                job(lambda: write(using=alias), using=alias)()
            row = JobRun.objects.using(alias).get()
    finally:
        proxy.close()
    assert proxy.cut
    assert row.status == "succeeded"
    assert row.error_class == "django.db.utils.OperationalError"
    assert written() == ["written"]


@contextmanager
def running(seconds: float) -> Iterator[tuple[Session, int]]:
    """A session with an attempt that it made so many seconds ago and that reads "running"; no lock yet."""
    with session() as other:
        run_id = other.one(
            "INSERT INTO django_singlecron_jobrun"
            " (job, key, outcome, status, host, pid, trigger, started_at, backend_pid)"
            " SELECT 'job', hashtextextended('job', 0), 'acquired', 'running', 'elsewhere', 1, 'function',"
            " clock_timestamp() - %s * interval '1 second', pg_backend_pid() RETURNING id",
            seconds,
        )
        other.connection.set_autocommit(False)
        yield other, run_id
        other.connection.rollback()


def take_lock(other: Session, name: str) -> None:
    assert other.one("SELECT pg_try_advisory_xact_lock(hashtextextended('job', 0))")
    other.execute("SELECT set_config('application_name', %s, true)", name)


def test_a_holder_that_began_long_ago_is_named_without_another_look() -> None:
    with running(60) as (holding, holder):
        take_lock(holding, "of its own")
        connection.ensure_connection()
        with CaptureQueriesContext(connection) as queries:
            result = job(write)()
    assert (result.held_by, len(queries)) == (holder, 1)


@pytest.mark.parametrize("recorded", [True, False])
def test_the_holder_is_named_beside_a_younger_attempt_that_is_about_to_lose(recorded: bool) -> None:
    with running(5) as (holding, holder), running(0):
        take_lock(holding, f"singlecron/{holder} job")
        assert job(write, record_skips=recorded)().held_by == holder


def test_an_attempt_that_takes_seconds_to_find_that_it_lost_is_not_taken_for_the_holder() -> None:
    with running(0) as (holding, holder), running(5):
        take_lock(holding, f"singlecron/{holder} job")
        # The statement that tries the lock does not see it: here since its end is written, else since it is too new.
        with session() as other:
            other.execute("UPDATE django_singlecron_jobrun SET status = 'succeeded' WHERE id = %s", holder)
        assert job(write)().held_by == holder


# Attempts that the server wants to be made again


CONFLICT = "USING ERRCODE = 'serialization_failure'"


@pytest.mark.parametrize("times", [1, 4])
def test_an_attempt_that_conflicts_is_made_again(times: int) -> None:
    body = f"IF nextval('counter') <= {times} THEN RAISE 'again' {CONFLICT}; END IF; RETURN new;"
    with trigger("BEFORE INSERT", body):
        assert job(write)()
    assert the_run().status == "succeeded"


def test_an_attempt_that_conflicts_under_a_strict_default_is_made_read_committed_and_so_is_the_run() -> None:
    body = f"IF current_setting('transaction_isolation') <> 'read committed' THEN RAISE 'again' {CONFLICT}; END IF;"
    seen: list[str] = []
    with (
        trigger("BEFORE INSERT", body + "RETURN new;"),
        database_alias("strict", OPTIONS={"options": r"-c default_transaction_isolation=repeatable\ read"}) as alias,
        connections[alias].cursor() as cursor,
    ):

        def look() -> None:
            cursor.execute("SHOW transaction_isolation")
            seen.append(cursor.fetchone()[0])

        connections[alias].close_at = None
        assert job(look, using=alias)()
    assert seen == ["read committed"]


def test_an_attempt_that_conflicts_for_ever_is_given_up() -> None:
    from django_singlecron import DatabaseUnavailable

    with (
        trigger("BEFORE INSERT", f"RAISE 'again' {CONFLICT};"),
        pytest.raises(DatabaseUnavailable, match="again"),
    ):
        job(write)()
    assert written() == []


def test_inside_a_transaction_nothing_is_made_again() -> None:
    from django_singlecron.database import try_again

    calls: list[int] = []

    def operation() -> None:
        calls.append(1)
        with connection.cursor() as cursor:
            cursor.execute("DO $$ BEGIN RAISE 'again' USING ERRCODE = 'deadlock_detected'; END $$")

    with pytest.raises(OperationalError, match="again"), transaction.atomic():
        try_again(connection, operation)
    assert calls == [1]
