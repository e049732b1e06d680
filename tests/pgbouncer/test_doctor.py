"""The doctor behind a real PgBouncer, in each of its modes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import connection
from django.db.backends.postgresql.psycopg_any import is_psycopg3

from django_singlecron.doctor import stack
from tests.support.pgbouncer import PgBouncer, busy_clients, running
from tests.support.sessions import Watcher
from tests.support_core import database_alias, real_database
from tests.support_doctor import check, doctor, look, not_passed, nothing_used

pytestmark = real_database


@contextmanager
def through(pool_mode: str, pool_size: int = 20) -> Iterator[PgBouncer]:
    with (
        running(connection, pool_size=pool_size, pool_mode=pool_mode) as bouncer,
        database_alias("pooled", **bouncer.database),
    ):
        yield bouncer


@pytest.mark.parametrize("clients", [0, 3])
def test_transaction_mode_is_safe_and_session_locks_are_warned_about(clients: int, watcher: Watcher) -> None:
    with through("transaction") as bouncer, busy_clients(bouncer, clients), nothing_used():
        code, out = doctor("--database", "pooled")
        found = look("pooled")
        assert watcher.advisory_locks() == []
    assert code == 0, out
    assert not_passed(found) == {"pooler": "warning"}
    check(
        found["pooler"],
        "warning",
        r"transaction mode .* session-level advisory locks \(pg_advisory_lock\) do not exclude through it",
        r"idle_transaction_timeout .* DISABLE_SERVER_SIDE_CURSORS to True\. Then accept this warning: --accept pooler",
    )
    assert found["pooler"].figures == {"mode": "transaction"}


def test_options_of_django_that_are_in_order_or_not() -> None:
    with running(connection, pool_size=5) as bouncer:
        options = {"DISABLE_SERVER_SIDE_CURSORS": True, "OPTIONS": {}}
        with database_alias("pooled", **{**bouncer.database, **options}):
            assert "DISABLE" not in look("pooled")["pooler"].advice


@pytest.mark.skipif(not is_psycopg3, reason="psycopg2 prepares nothing")
@pytest.mark.parametrize(
    ("mode", "status", "says"),
    [("transaction", "warning", "another job's lock"), ("session", "passed", "a session of its own")],
)
def test_prepared_statements_belong_to_sessions_of_ones_own(mode: str, status: str, says: str) -> None:
    # A threshold that the doctor itself does not reach.
    options = {"server_side_binding": True, "prepare_threshold": 1_000}
    with (
        running(connection, pool_size=5, pool_mode=mode) as bouncer,
        database_alias("pooled", **{**bouncer.database, "OPTIONS": options}),
    ):
        check(look("pooled")["prepared"], status, says)


def test_session_mode_is_as_a_direct_connection() -> None:
    with through("session"), nothing_used():
        code, out = doctor("--database", "pooled", "--fail-level", "WARNING", "--accept", "keepalive.server")
        found = look("pooled")
    assert code == 0, out
    check(found["pooler"], "passed", "A pooler is between, in session mode")
    assert found["pooler"].figures == {"mode": "session"}


def test_statement_mode_is_refused() -> None:
    with through("statement"), nothing_used():
        code, out = doctor("--database", "pooled")
    assert code == 1
    # PgBouncer says so and hangs up, and psycopg 2 hears only that.
    assert re.search(
        r"\nfailed    pooler             A transaction of several statements is refused, as by a pooler in statement "
        "mode: (transaction blocks not allowed in statement pooling mode|server closed the connection)",
        out,
    )
    assert "To do: A run needs a transaction: set PgBouncer's pool_mode to transaction or session.\n" in out
    assert "\nnot made  lock.excludes      It needs pooler, which is not proved: mend that first.\n" in out
    assert "\npassed    clock " in out


def test_a_pool_of_one_connection_lets_no_second_replica_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack, "CONNECT_SECONDS", 2)
    monkeypatch.setattr(stack, "ANSWER_SECONDS", 2)
    with through("transaction", pool_size=1):
        check(look("pooled")["lock.excludes"], "failed", "no answer within 2 s while the first was in a", "two server")
    with through("session", pool_size=1):
        check(look("pooled")["pooler"], "failed", "no answer within 4 s while the first was open", "two server")
