"""`manage.py singlecron doctor` on servers of its own: by TCP, with passwords, on a standby, on one that is down."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.faults.clusters import Cluster, Clusters, clusters_in_a_short_place
from tests.support.deadlines import wait_until
from tests.support_core import database_alias, real_database
from tests.support_doctor import IDS, KEEPALIVES, check, doctor, look, not_passed, nothing_used

pytestmark = [real_database, pytest.mark.usefixtures("django_db_setup")]

PASSWORD = "correct horse"


@pytest.fixture(scope="module")
def clusters() -> Iterator[Clusters]:
    with clusters_in_a_short_place() as clusters:
        yield clusters


@pytest.fixture(scope="module")
def primary(clusters: Clusters, django_db_setup: None, django_db_blocker: Any) -> Cluster:
    """A server that asks for a password by TCP."""
    with django_db_blocker.unblock():
        primary = clusters.primary()
        primary.fetch(f"ALTER ROLE postgres PASSWORD '{PASSWORD}'")
        rules = primary.data / "pg_hba.conf"
        rules.write_text("local all all trust\nlocal replication all trust\nhost all all all scram-sha-256\n")
        primary.fetch("SELECT pg_reload_conf()")
    return primary


@contextmanager
def at(cluster: Cluster, **changes: Any) -> Iterator[str]:
    with database_alias("own", **cluster.database(**changes)) as alias:
        yield alias


def by_tcp(**more: Any) -> dict[str, Any]:
    return {"HOST": "127.0.0.1", "PASSWORD": PASSWORD, **more}


class TestTcp:
    def test_all_is_passed_with_keepalives(self, primary: Cluster) -> None:
        with at(primary, **by_tcp(OPTIONS=KEEPALIVES)) as alias, nothing_used(alias):
            assert doctor("--database", alias, "--fail-level", "WARNING")[0] == 0
            found = look(alias)
        check(found["keepalive.server"], "passed", "free within 25 s, or 50 s when the server sends it an answer")
        assert found["keepalive.server"].figures == {"seconds": 25, "seconds_at_most": 50}
        check(found["keepalive.client"], "passed", "notices within 25 s .* or 50 s when it sends a statement")
        assert found["keepalive.client"].figures == {"seconds": 25, "seconds_at_most": 50}

    def test_nothing_is_left_of_its_sessions(self, primary: Cluster) -> None:
        with at(primary, **by_tcp()) as alias:
            assert doctor("--database", alias)[0] == 0
        query = "SELECT count(*) FROM pg_stat_activity WHERE client_addr IS NOT NULL"
        wait_until(lambda: primary.fetch(query) == [(0,)], what="no session is left")

    @pytest.mark.parametrize(
        ("options", "status", "says"),
        [
            ({}, "warning", r"hangs for \d+ s"),
            ({"keepalives": 0}, "warning", "hangs for ever"),
            ({**KEEPALIVES, "tcp_user_timeout": 0}, "warning", "hangs for 25 s, or .* a quarter of an hour"),
            ({**KEEPALIVES, "tcp_user_timeout": 60_000}, "passed", "within 60 s .* or 120 s"),
            ({**KEEPALIVES, "tcp_user_timeout": 90_000}, "warning", "hangs for 90 s, or 180 s"),
            # The count, 3, is not asked any more; the limit is, but not before the second keepalive.
            ({**KEEPALIVES, "keepalives_interval": 75}, "passed", "within 85 s .* or 110 s"),
        ],
    )
    def test_how_long_the_replica_waits(self, primary: Cluster, options: Any, status: str, says: str) -> None:
        with at(primary, **by_tcp(OPTIONS=options)) as alias:
            check(look(alias)["keepalive.client"], status, says)

    def test_a_role_that_lets_the_server_wait_longer(self, primary: Cluster) -> None:
        with at(primary, **by_tcp(OPTIONS={"options": "-c tcp_user_timeout=600000"})) as alias:
            check(look(alias)["keepalive.server"], "warning", "within 600 s, or 1200 s", "Lower tcp_user_timeout")

    @pytest.mark.parametrize(
        ("dropped", "says", "advises"),
        [
            ("tcp_user_timeout", "only when TCP gives up", "Only Linux"),
            ("tcp_keepalives_idle", r"did not take a run's keepalive settings: idle \d+ s, interval 5 s", "system"),
        ],
    )
    def test_a_server_whose_system_cannot(self, primary: Cluster, dropped: str, says: str, advises: str) -> None:
        stub = f"""
        CREATE SCHEMA shadow;
        CREATE FUNCTION shadow.set_config(name text, value text, local boolean) RETURNS text LANGUAGE sql AS $$
            SELECT CASE WHEN name <> '{dropped}' THEN pg_catalog.set_config(name, value, local) END
        $$
        """
        primary.fetch(stub)
        try:
            options = {"options": "-c search_path=shadow,pg_catalog,public"}
            with at(primary, **by_tcp(OPTIONS=options)) as alias:
                check(look(alias)["keepalive.server"], "warning", says, advises)
        finally:
            primary.fetch("DROP SCHEMA shadow CASCADE")


def test_a_database_without_tables(primary: Cluster) -> None:
    with at(primary, NAME="postgres") as alias:
        code, out = doctor("--database", alias)
    assert code == 1
    assert re.search(
        r"\nfailed    history.migrated   The history is not migrated: 0001_initial, 0002_slots, .+ not applied\.\n", out
    )
    assert "To do: Run: manage.py migrate django_singlecron --database own\n" in out
    assert "\nnot made  history.writable   It needs history.migrated, which is not proved: mend that first.\n" in out
    assert "\npassed    lock.transactions" in out


def test_the_password_is_wrong(primary: Cluster) -> None:
    with at(primary, **by_tcp(PASSWORD="battery staple")) as alias:
        code, out = doctor("--database", alias)
    assert code == 1
    assert re.search(r"\nfailed    connection         It cannot be reached: .*password authentication failed", out)
    assert "battery staple" not in out
    assert out.count("\nnot made  ") == len(IDS) - 3


def test_a_standby(clusters: Clusters, primary: Cluster) -> None:
    standby = clusters.standby(primary)
    with at(standby) as alias:
        code, out = doctor("--database", alias)
        found = look(alias)
    standby.stop()
    assert code == 1
    assert "\nfailed    primary            The server is a standby: it takes no writes, and its locks are not" in out
    assert "To do: Point the alias at the primary; with several hosts, set target_session_attrs" in out
    check(found["history.writable"], "failed", "read-only transaction", "takes writes")
    assert not_passed(found).keys() == {"primary", "history.writable", "history.slots"}
    assert primary.fetch("SELECT count(*) FROM pg_replication_slots WHERE active") == [(0,)]


def test_a_server_that_is_down_and_up_again(primary: Cluster) -> None:
    with at(primary, **by_tcp(OPTIONS=KEEPALIVES)) as alias:
        primary.stop()
        code, out = doctor("--database", alias)
        assert code == 1
        assert re.search(r"\nfailed    connection         It cannot be reached: .*[Rr]efused", out)
        primary.start()
        assert doctor("--database", alias)[0] == 0


def test_a_pooler_on_another_host(primary: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_singlecron.doctor.stack.Session.announced_pid", lambda self: 0)
    with at(primary, **by_tcp()) as alias:
        check(look(alias)["keepalive.server"], "warning", "noticed by the pooler", "tcp_keepidle = 10, .* = 25000")
