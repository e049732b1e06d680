"""The advisory lock: its keys, its guards, and that all of it goes with the transaction."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.db.backends.postgresql.psycopg_any import is_psycopg3

from django_singlecron import LockLost, current_run
from django_singlecron.keys import make_key
from django_singlecron.locks import Hold, Lock
from django_singlecron.locks.postgres import PostgresLock, application_name
from django_singlecron.models import JobRun
from django_singlecron.testing import hold_lock

from .support_core import database_alias, is_free, job, real_database, session, setting, the_run, write, written

pytestmark = real_database

LIMITS = [
    "application_name",
    "client_connection_check_interval",
    "idle_in_transaction_session_timeout",
    "singlecron.run",
    "statement_timeout",
    "transaction_timeout",
    "transaction_isolation",
]
GUARDS = [*LIMITS, "tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout"]

OPTIONS: list[Any] = [
    "hashtextextended",
    "hashtext",
    0,
    4242,
    -4242,
    -(2**63),
    2**63 - 1,
    (7, 42),
    (-7, -42),
    (-(2**31), 2**31 - 1),
    (2**31 - 1, -(2**31)),
]

# The advisory locks that the job's own session holds, as other sessions see them.
IN_THIS_DATABASE = """
FROM pg_locks
WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
HELD = f"SELECT array_agg(ARRAY[classid::bigint, objid::bigint, objsubid]) {IN_THIS_DATABASE}"


# The sessions of the runs that go on in the test's database.
OF_RUNS = "FROM pg_stat_activity WHERE application_name LIKE 'singlecron/%%' AND datname = current_database()"


def test_it_meets_the_protocol() -> None:
    lock: Lock = PostgresLock()
    assert lock.label == JobRun.LockKind.TRANSACTION


@pytest.mark.parametrize("option", OPTIONS, ids=repr)
@pytest.mark.parametrize("binding", ["client", "server"])
def test_every_kind_of_key_is_held_while_the_job_runs(option: Any, binding: str) -> None:
    seen: dict[str, Any] = {}
    with session() as other, database_alias("bound", OPTIONS={"server_side_binding": binding == "server"}):

        def look() -> None:
            seen["held"] = other.one(HELD)
            seen["again"] = other.one(lock.text, *lock.parameters)
            seen["run"] = current_run()

        lock = PostgresLock().try_exclusive(make_key("job", option))
        assert job(look, key=option, using="bound")()
        assert other.one(lock.text, *lock.parameters)
    run = the_run()
    assert seen["again"] is False
    assert run.key is not None
    [(classid, objid, objsubid)] = seen["held"]
    assert (classid, objid) == ((run.key >> 32) & 0xFFFF_FFFF, run.key & 0xFFFF_FFFF)
    assert objsubid == (2 if isinstance(option, tuple) else 1)
    assert run.key_pair == (option if isinstance(option, tuple) else None)
    assert seen["run"].key == run.key
    if isinstance(option, int):
        assert run.key == option


@pytest.mark.skipif(not is_psycopg3, reason="psycopg2 prepares no statements; with psycopg 3 this runs")
def test_a_connection_that_prepares_every_statement() -> None:
    with database_alias("prepared", OPTIONS={"server_side_binding": True, "prepare_threshold": 0}) as alias:
        task = job(lambda: write(using=alias), using=alias)
        assert [bool(task()), is_free()] == [True, True]
        with hold_lock("job"):
            assert not task()
    assert written() == ["written"]


@pytest.mark.skipif(not is_psycopg3, reason="psycopg2 has no such cursor; with psycopg 3 this runs")
def test_a_cursor_of_the_projects_own_that_binds_on_the_server() -> None:
    from django.db.backends.postgresql.base import ServerBindingCursor

    with database_alias("own", OPTIONS={"cursor_factory": ServerBindingCursor}) as alias:
        assert job(lambda: write(using=alias), using=alias)()
    assert written() == ["written"]


def test_the_guards_are_set_for_the_run_and_gone_after_it() -> None:
    connection.pg_version >= 170000 or pytest.skip("transaction_timeout came with PostgreSQL 17")
    seen: dict[str, Any] = {}
    before = {name: setting(name) for name in LIMITS}
    assert job(lambda: seen.update({name: setting(name) for name in LIMITS}), "nightly 🐘")()
    after = {name: setting(name) for name in LIMITS}
    run = the_run()
    assert seen == {
        "application_name": f"singlecron/{run.pk} nightly ?",
        "client_connection_check_interval": "100ms",
        "idle_in_transaction_session_timeout": "0",
        "singlecron.run": str(run.pk),
        "statement_timeout": "0",
        "transaction_timeout": "0",
        "transaction_isolation": "read committed",
    }
    # PostgreSQL keeps the name of a custom setting, with an empty value.
    assert {**after, "singlecron.run": before["singlecron.run"]} == before
    assert after["singlecron.run"] == ""


def test_a_timeout_sets_the_servers_own_deadlines_behind_it() -> None:
    connection.pg_version >= 170000 or pytest.skip("transaction_timeout came with PostgreSQL 17")
    seen: dict[str, Any] = {}
    assert job(lambda: seen.update({name: setting(name) for name in LIMITS}), timeout=30)()
    for name in ("idle_in_transaction_session_timeout", "statement_timeout", "transaction_timeout"):
        assert seen[name] == "31s"
        assert setting(name) == "0"


def test_a_stricter_limit_of_the_role_stays() -> None:
    connection.pg_version >= 170000 or pytest.skip("transaction_timeout came with PostgreSQL 17")
    seen: dict[str, Any] = {}
    strict = "-c statement_timeout=5s -c transaction_timeout=6s -c idle_in_transaction_session_timeout=7s"
    with database_alias("strict", OPTIONS={"options": strict}):
        look = {"statement_timeout", "transaction_timeout", "idle_in_transaction_session_timeout"}
        job(lambda: seen.update({name: setting(name, "strict") for name in look}), using="strict", timeout=30)()
        after = {name: setting(name, "strict") for name in look}
    assert seen == {
        "statement_timeout": "5s",
        "transaction_timeout": "6s",
        "idle_in_transaction_session_timeout": "31s",
    }
    assert after == {**seen, "idle_in_transaction_session_timeout": "7s"}


def test_a_role_that_ends_idle_transactions_does_not_end_a_quiet_job() -> None:
    with database_alias("hasty", OPTIONS={"options": "-c idle_in_transaction_session_timeout=50"}), session() as other:
        assert job(lambda: other.execute("SELECT pg_sleep(0.3)"), using="hasty")()
    assert the_run().status == "succeeded"


def test_the_keepalives_are_in_the_statement_that_takes_the_lock() -> None:
    # On a Unix socket the server shows 0 for them, so the statement itself is looked at.
    hold = Hold(1, "job", None)
    text = PostgresLock().acquire(make_key("job", 1), hold).text
    for guard in ("('tcp_keepalives_idle', '10', true)", "('tcp_keepalives_interval', '5', true)"):
        assert guard in text
    assert "('tcp_keepalives_count', '3', true)" in text
    assert "('tcp_user_timeout', '25000', true)" in text


def test_nothing_is_set_for_the_session() -> None:
    hold = Hold(1, "job", dt.timedelta(seconds=1))
    statement = PostgresLock().acquire(make_key("job", "hashtext"), hold)
    with session() as other:
        for name in GUARDS:
            other.one("SELECT current_setting(%s, true)", name)
        before = {name: other.one("SELECT current_setting(%s, true)", name) for name in GUARDS}
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement.text, statement.parameters)
            assert cursor.fetchone()[0] is True
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT count(*) {IN_THIS_DATABASE}")
            assert cursor.fetchone() == (0,)
        assert {name: setting(name) or None for name in GUARDS} == {n: v or None for n, v in before.items()}


def test_the_name_in_pg_stat_activity_is_ascii_and_fits() -> None:
    name = application_name(7, "ünï" * 100)
    assert name.startswith("singlecron/7 ?n??n?")
    assert len(name) == 63


def test_others_see_the_run_by_its_name() -> None:
    seen: dict[str, Any] = {}
    with session() as other:
        job(
            lambda: seen.update(name=other.one(f"SELECT application_name {OF_RUNS}")),
            "nightly",
        )()
    assert seen["name"] == f"singlecron/{the_run().pk} nightly"


def test_tokens_grow_from_run_to_run() -> None:
    tokens: list[int | None] = []

    def note() -> None:
        run = current_run()
        assert run is not None
        tokens.append(run.token)

    for _ in range(3):
        job(note)()
    assert tokens == sorted({token for token in tokens if token is not None})
    assert list(JobRun.objects.order_by("id").values_list("token", flat=True)) == tokens


def test_a_run_that_lost_its_lock_has_no_token_any_more() -> None:
    # Drawn then, it would be higher than that of a run that began since.
    def work() -> None:
        run = current_run()
        assert run is not None
        connection.cursor().execute("ROLLBACK")
        _ = run.token

    with pytest.raises(LockLost, match="has lost its lock"):
        job(work)()
    assert (the_run().status, the_run().token) == ("lost", None)


def test_a_job_that_has_not_written_keeps_no_snapshot() -> None:
    seen: list[Any] = []
    activity = f"SELECT backend_xmin {OF_RUNS}"
    with session() as other:
        for _ in range(3):
            job(lambda: seen.append(other.one(activity)))()
    assert seen == [None, None, None]


def test_a_job_that_has_not_written_has_no_transaction_id() -> None:
    # As a token that is drawn would give it one now and then: a sequence writes to the log for every 33rd value.
    seen: list[Any] = []
    activity = f"SELECT backend_xid {OF_RUNS}"
    with session() as other:
        for _ in range(66):
            job(lambda: seen.append(other.one(activity)))()
    assert seen == [None] * 66


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("where", ["project", "session", "database"])
def test_a_run_sees_what_the_one_before_it_committed_whatever_the_isolation_level(level: str, where: str) -> None:
    from django.db.backends.postgresql.psycopg_any import IsolationLevel

    options: dict[str, Any] = {}
    if where == "project":
        options = {"isolation_level": IsolationLevel[level.replace(" ", "_")]}
    elif where == "session":
        options = {"options": f"-c default_transaction_isolation={level.lower().replace(' ', chr(92) + ' ')}"}
    name = connection.settings_dict["NAME"]
    seen: list[Any] = []
    with session() as other, database_alias("isolated", OPTIONS=options):
        if where == "database":
            other.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = '{level.lower()}'")
        try:

            def look() -> None:
                seen.append(written("isolated"))
                other.execute("INSERT INTO billing_tenant (name, monthly_fee) VALUES ('another''s', 1)")
                seen.append(written("isolated"))
                seen.append(setting("transaction_isolation", "isolated"))
                write("own", "isolated")

            assert job(look, using="isolated")()
            with connections["isolated"].cursor() as cursor:
                cursor.execute("BEGIN; SHOW transaction_isolation")
                cursor.execute("ROLLBACK")
        finally:
            other.execute(f"ALTER DATABASE {name} RESET default_transaction_isolation")
    assert seen == [[], ["another's"], "read committed"]
    assert written() == ["another's", "own"]
    assert is_free()
