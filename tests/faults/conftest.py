"""Fixtures of the fault suite, and the table of what it injected where."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from pytest_django.plugin import DjangoDbBlocker

from tests.faults import jobs
from tests.faults.clusters import Cluster, Clusters, clusters_in_a_short_place
from tests.faults.proxy import Proxy
from tests.faults.replicas import Case, Workers
from tests.faults.server_cases import ServerCase, server_case
from tests.faults.steps import (
    AFTER_RECORD,
    AFTER_RUN,
    BEFORE_MARK,
    BEFORE_RECORD,
    LAST_IN_BODY,
    ON_COMMIT,
    POINTS,
    Point,
)
from tests.support.replicas import Replicas, database_url
from tests.support.sessions import Watcher

RECORDING = (BEFORE_RECORD.name, AFTER_RECORD.name)

# What a cell of the table says, the worst first.
MARKS = {"failed": "FAIL", "skipped": "skip", "passed": "ok"}

Table = dict[str, dict[str, list[str]]]
TABLE = pytest.StashKey[Table]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[TABLE] = {}


def pytest_make_parametrize_id(val: object) -> str | None:
    return val.name if isinstance(val, Point) else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: Any = yield
    marker = item.get_closest_marker("fault")
    if marker is not None and (report.when == "call" or report.outcome != "passed"):
        point = getattr(item, "callspec", None) and item.callspec.params.get("point")
        fault = marker.args[0].format(**getattr(getattr(item, "callspec", None), "params", {}))
        step = marker.kwargs.get("step") or (point.name if isinstance(point, Point) else point) or AFTER_RUN
        item.config.stash[TABLE].setdefault(fault, {}).setdefault(step, []).append(report.outcome)
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    table = config.stash[TABLE]
    if not table:
        return
    used = {step for steps in table.values() for step in steps}
    names = [point.name for point in POINTS]
    before_mark = names.index(BEFORE_MARK.name)
    ordered = [*names[:before_mark], LAST_IN_BODY, *names[before_mark:], ON_COMMIT, *RECORDING, AFTER_RUN]
    columns = [step for step in ordered if step in used] + sorted(used - set(ordered))
    terminalreporter.section("faults by steps")
    for number, step in enumerate(columns, 1):
        terminalreporter.write_line(f"{number:>4} {step}")
    width = max(map(len, table))
    terminalreporter.write_line(f"{'':{width}}" + "".join(f"{number:>5}" for number in range(1, len(columns) + 1)))
    for fault, steps in table.items():
        cells = [next((MARKS[worst] for worst in MARKS if worst in steps.get(step, [])), "") for step in columns]
        terminalreporter.write_line(f"{fault:{width}}" + "".join(f"{cell:>5}" for cell in cells))
    counts = [outcome for steps in table.values() for outcomes in steps.values() for outcome in outcomes]
    terminalreporter.write_line(
        f"{len(table)} faults, {sum(map(len, table.values()))} of them by step, {len(counts)} cases: "
        + ", ".join(f"{counts.count(outcome)} {outcome}" for outcome in ("passed", "failed", "skipped"))
    )


@pytest.fixture(scope="session")
def workers(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Workers]:
    """Forks replicas."""
    with django_db_blocker.unblock():
        url = database_url(connection)
    replicas = Replicas(url)
    workers = Workers(replicas)
    yield workers
    replicas.destroy()


@pytest.fixture
def proxy(transactional_db: None) -> Iterator[Proxy]:
    """Stands between replicas and the test's server."""
    host, port = connection.settings_dict["HOST"] or "localhost", connection.settings_dict["PORT"] or "5432"
    with Proxy(f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, int(port))) as proxy:
        yield proxy


@pytest.fixture
def case(workers: Workers, proxy: Proxy, watcher: Watcher, tmp_path: Path) -> Iterator[Case]:
    """Replicas, their proxy and their witness; the test ends with `case.check()`."""
    jobs.create_work(connection)
    case = Case(workers, proxy, watcher, tmp_path)
    yield case
    case.destroy()
    assert case.checked, "The test forgot to check."


@pytest.fixture(scope="session")
def clusters(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Clusters]:
    """Makes PostgreSQL servers."""
    with clusters_in_a_short_place() as clusters:
        yield clusters


@pytest.fixture(scope="session")
def shared_cluster(clusters: Clusters, django_db_blocker: DjangoDbBlocker) -> Cluster:
    """A server for the tests that leave it as it was."""
    with django_db_blocker.unblock():
        return clusters.primary("shared")


@pytest.fixture
def server(
    workers: Workers, shared_cluster: Cluster, tmp_path: Path, django_db_blocker: DjangoDbBlocker
) -> Iterator[ServerCase]:
    """Replicas on a server that the test may end and start again; the test ends with `server.check()`."""
    with django_db_blocker.unblock(), server_case(workers, shared_cluster, tmp_path) as case:
        yield case
