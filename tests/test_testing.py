"""What users need in their own tests, used as they would. That no session is left behind, conftest.py asserts."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import BaseCommand
from django.db import connection
from django.test import TestCase, TransactionTestCase

from django_singlecron import InvalidName, InvalidTask, NotPostgreSQL, current_run, singleton_task
from django_singlecron.conf import get_settings
from django_singlecron.models import JobRun
from django_singlecron.testing import AlreadyHeld, hold_lock, without_locking
from tests.commandline.management.commands import probe, probe_decorated
from tests.support_core import sqlite

DOCS = Path(__file__).resolve().parent.parent / "docs" / "testing.md"

plain = singleton_task("plain")(lambda: "ran")
templated = singleton_task("bill:{tenant}:{kind}")(lambda tenant, kind="all": "ran")
keyed = singleton_task("keyed", key=(7, -42))(lambda: "ran")
hashed = singleton_task("hashed", key="hashtext")(lambda: "ran")
awkward = singleton_task("awkward:{key}:{using}")(lambda key, using: "ran")


class ByHandle(BaseCommand):
    @singleton_task("handled:{days}")
    def handle(self, *args: Any, days: int = 1, **options: Any) -> str:
        return "ran"


class Inherits(probe_decorated.Command):
    """Its name is its module's, `test_testing`."""


def check_it_holds(hold: Callable[[], Any], call: Callable[[], Any], another: Callable[[], Any]) -> None:
    with hold():
        assert not call()
        assert another()
        assert advisory_locks() == 1
    assert call()


def advisory_locks() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock'"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        count: int = cursor.fetchone()[0]
    return count


HELD: list[tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any]]] = [
    (lambda: hold_lock(plain), plain, keyed),
    (lambda: hold_lock("plain"), plain, keyed),
    (lambda: hold_lock(templated, 7), lambda: templated(kind="all", tenant="7"), lambda: templated(8)),
    (lambda: hold_lock(templated, kind="x", tenant=7), lambda: templated(7, "x"), lambda: templated(7)),
    (lambda: hold_lock("bill:7:all"), lambda: templated(7), lambda: templated(8)),
    (lambda: hold_lock(awkward, 1, 2), lambda: awkward(1, 2), lambda: awkward(2, 1)),
    (lambda: hold_lock(keyed), keyed, plain),
    (lambda: hold_lock("any name", key=(7, -42)), keyed, plain),
    (lambda: hold_lock(hashed), hashed, plain),
    (lambda: hold_lock("hashed", key="hashtext", using="default"), hashed, plain),
    (
        lambda: hold_lock(probe_decorated.Command),
        lambda: call_command(probe_decorated.Command(), "return", "x", verbosity=0),
        lambda: call_command(Inherits(), "return", "x"),
    ),
    (
        lambda: hold_lock(Inherits),
        lambda: call_command(Inherits(), "return", "x", verbosity=0),
        lambda: call_command(probe_decorated.Command(), "return", "x"),
    ),
    (lambda: hold_lock(ByHandle, days=3), lambda: ByHandle().handle(days=3, verbosity=0), lambda: ByHandle().handle()),
    (lambda: hold_lock(ByHandle), lambda: ByHandle().handle(verbosity=0), lambda: ByHandle().handle(days=3)),
]


@pytest.mark.parametrize(("hold", "call", "another"), HELD)
def test_hold_lock(db: None, hold: Any, call: Any, another: Any) -> None:
    check_it_holds(hold, call, another)


@pytest.mark.django_db(transaction=True)
def test_hold_lock_where_transactions_are_real() -> None:
    for held in HELD[:3]:
        check_it_holds(*held)


class InTestCase(TestCase):
    @classmethod
    def setUpTestData(cls) -> None:
        assert plain()

    def test_hold_lock(self) -> None:
        for held in HELD:
            check_it_holds(*held)

    def test_the_run_of_set_up_is_there_and_others_are_rolled_back(self) -> None:
        assert JobRun.objects.count() == 1
        with hold_lock(plain):
            assert not plain()
        assert JobRun.objects.filter(job="plain").count() == 2


class InTransactionTestCase(TransactionTestCase):
    def test_hold_lock(self) -> None:
        check_it_holds(*HELD[0])


@pytest.mark.parametrize(
    "transactional",
    [
        pytest.param(False, marks=pytest.mark.django_db),
        pytest.param(True, marks=pytest.mark.django_db(transaction=True)),
    ],
)
def test_the_run_is_the_same_in_each_kind_of_test(transactional: bool) -> None:
    def job() -> int:
        run = current_run()
        assert run is not None
        assert run.token is not None
        return advisory_locks()

    result = singleton_task("job")(job)()
    # In a test's own transaction the lock is let go at once, so that the test can go on.
    assert result.value == int(transactional)
    run = JobRun.objects.get()
    assert (run.status, run.lock, run.pk) == ("succeeded", "transaction", result.run_id)


def test_a_lock_that_is_held_already(transactional_db: None) -> None:
    with hold_lock(plain), pytest.raises(AlreadyHeld, match='The lock of the job "plain" is held already'):
        hold_lock(plain).__enter__()

    def job() -> None:
        with pytest.raises(AlreadyHeld):
            hold_lock("running").__enter__()

    assert singleton_task("running")(job)()


def test_the_lock_is_free_when_the_block_raised(db: None) -> None:
    for _ in range(20):
        with pytest.raises(ZeroDivisionError), hold_lock(plain):
            raise ZeroDivisionError
        assert plain().ran


def test_the_test_s_own_transaction_is_not_touched(db: None) -> None:
    JobRun.objects.all().delete()
    assert plain()
    with hold_lock(plain):
        assert connection.in_atomic_block
        assert JobRun.objects.count() == 1
    assert JobRun.objects.count() == 1


@pytest.mark.parametrize("target", [probe.Command, probe_decorated.Command(), plain.func, BaseCommand, None, 5, object])
def test_what_is_no_task_is_refused(target: Any) -> None:
    with pytest.raises(InvalidTask, match="is no singleton task, no command that is one, and no job's name"):
        hold_lock(target).__enter__()


def test_arguments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(TypeError, match="missing a required argument: 'tenant'"):
        hold_lock(templated).__enter__()
    with pytest.raises(InvalidName, match="is a list"):
        hold_lock(templated, []).__enter__()
    with pytest.raises(InvalidName, match="is empty"):
        hold_lock("").__enter__()
    with pytest.raises(InvalidTask, match="is not a lock key"):
        hold_lock("job", key="md5").__enter__()  # type: ignore[arg-type]


# Without locking


def test_without_locking(db: None, caplog: pytest.LogCaptureFixture, settings: Any) -> None:
    settings.SINGLECRON = {"OUTPUT_LIMIT": 5}
    with hold_lock(plain), without_locking():
        assert get_settings().output_limit == 5
        result = plain()
    assert JobRun.objects.get(pk=result.run_id).lock == JobRun.LockKind.NONE
    assert "runs without a lock" in caplog.text
    assert get_settings().locking
    del settings.SINGLECRON
    with without_locking():
        assert not get_settings().locking


@pytest.fixture
def lite(django_db_blocker: Any, tmp_path: Path) -> Iterator[str]:
    with django_db_blocker.unblock(), sqlite(tmp_path) as alias:
        yield alias


def test_without_locking_on_sqlite(lite: str) -> None:
    task = singleton_task("lite", using=lite)(lambda fail=False: 1 / (not fail))
    with pytest.raises(NotPostgreSQL, match="is sqlite, not PostgreSQL"):
        task()
    with without_locking():
        assert task().value == 1
        with pytest.raises(ZeroDivisionError):
            task(True)
    runs = JobRun.objects.using(lite).order_by("id")
    assert [(run.status, run.lock) for run in runs] == [("succeeded", "none"), ("failed", "none")]


# The snippets of the docs, which are tests themselves

for _snippet in re.findall(r"^```python\n(.*?)^```", DOCS.read_text(), re.MULTILINE | re.DOTALL):
    exec(compile(_snippet, str(DOCS), "exec"), globals())  # so that pytest collects them as tests of this module


def test_the_snippets_are_here() -> None:
    assert globals()["test_reminders"].__code__.co_filename == str(DOCS)
