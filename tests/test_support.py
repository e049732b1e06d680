"""The tests' own tools: that they notice what they are there to notice."""

import queue
import sys
from contextlib import ExitStack

import pytest
from django.db import OperationalError, connection, transaction

from tests.support.deadlines import wait_until
from tests.support.pgbouncer import busy_clients, running
from tests.support.replicas import Replicas
from tests.support.services import service_missing
from tests.support.sessions import Watcher, assert_nothing_left
from tests.support.threads import in_thread, in_threads


def test_a_deadline_that_passes_says_what_was_waited_for() -> None:
    with pytest.raises(AssertionError, match=r"Not within 0.01 s: the moon"):
        wait_until(lambda: False, what="the moon", seconds=0.01)


class TestServiceMissing:
    def test_skips_and_says_how_to_get_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("CI", raising=False)
        with pytest.raises(pytest.skip.Exception, match="apt-get install it"):
            service_missing("apt-get install it")

    def test_fails_in_ci(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CI", "true")
        with pytest.raises(pytest.fail.Exception, match="apt-get install it"):
            service_missing("apt-get install it")


@pytest.mark.django_db(transaction=True)
class TestNothingLeft:
    def test_names_a_session_and_its_lock(self, watcher: Watcher) -> None:
        left = connection.copy()
        try:
            with left.cursor() as cursor:
                cursor.execute("SET application_name = 'left behind'; SELECT pg_advisory_lock(-7)")
            with pytest.raises(AssertionError, match=r"Left behind: Session\(.*'left behind'.*AdvisoryLock\(.*key=-7"):
                assert_nothing_left(watcher, seconds=0.1)
        finally:
            left.close()
        assert_nothing_left(watcher)

    def test_a_lock_in_the_open_transaction_of_the_test_is_not_left_behind(self, watcher: Watcher) -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(7)")
            assert_nothing_left(watcher, seconds=0.1)


@pytest.mark.django_db(transaction=True)
class TestInThreads:
    def test_each_has_a_connection_of_its_own(self) -> None:
        def backend_pid(_: int) -> int:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                pid: int = cursor.fetchone()[0]
                return pid

        pids = in_threads(3, backend_pid)
        assert len({*pids, backend_pid(0)}) == 4

    def test_what_one_raised_is_raised(self) -> None:
        with pytest.raises(ZeroDivisionError):
            in_threads(3, lambda number: 1 // number)

    def test_one_that_does_not_end_is_told(self) -> None:
        ended: queue.Queue[None] = queue.Queue()
        with pytest.raises(AssertionError, match="1 of 2 threads have not ended"):
            in_threads(2, lambda number: ended.get() if number else None, seconds=1)
        ended.put(None)


class TestReplica:
    def test_one_that_ends_before_its_signal_is_told(self, replicas: Replicas) -> None:
        replica = replicas.start(sys.executable, "-c", "print('something else')")
        with pytest.raises(AssertionError, match=r"ended before it wrote 'holding': something else"):
            replica.expect("holding")

    def test_one_that_is_busy_is_ended_with_the_test_though_it_read_no_order(self, replicas: Replicas) -> None:
        replica = replicas.start(sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(600)")
        replica.expect("ready")
        replica.order("finish")
        replicas.destroy()
        assert replica.process.returncode == -9


@pytest.mark.django_db(transaction=True)
class TestPgBouncer:
    def test_an_error_of_a_busy_client_is_raised(self) -> None:
        with running(connection, pool_size=1) as bouncer:
            bouncer.database["NAME"] = "no such database"
            with pytest.raises(OperationalError, match="no such database"), ExitStack() as stack:
                stack.enter_context(busy_clients(bouncer, 2))

    def test_it_is_said_how_to_get_it_where_it_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("CI", raising=False)
        monkeypatch.setattr("shutil.which", lambda name, path: None)
        with pytest.raises(pytest.skip.Exception, match="apt-get install pgbouncer"), ExitStack() as stack:
            stack.enter_context(running(connection, pool_size=1))


def test_what_a_thread_raises_is_raised() -> None:
    def divide() -> float:
        return 1 / 0

    with pytest.raises(ZeroDivisionError):
        in_thread(divide)
