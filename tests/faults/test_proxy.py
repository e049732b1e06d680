"""The suite's own means: a run is stopped at each of its points, and goes on as if nothing had been."""

import pytest
from django.db.backends.postgresql.psycopg_any import is_psycopg3

from tests.faults.replicas import Case
from tests.faults.steps import POINTS, Point
from tests.support_core import real_database

pytestmark = real_database


# How the driver sends what a statement is about: in its text, or beside it, as prepared statements have it.
BINDINGS = [
    "client",
    pytest.param("server", marks=pytest.mark.skipif(not is_psycopg3, reason="psycopg2 binds in the client alone.")),
]


@pytest.mark.fault("a pause, binding in the {binding}")
@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("point", POINTS)
def test_a_run_that_is_held_up_succeeds(case: Case, point: Point, binding: str) -> None:
    options = {"server_side_binding": True} if binding == "server" else {}
    case.proxy.stop_at(point)
    [attempt] = case.attempts(1, database={**case.through_proxy, "OPTIONS": options})
    stopped = case.proxy.wait_until_stopped()
    assert stopped.point == point
    case.proxy.go_on()
    assert attempt.result().outcome == "acquired"
    case.check()
    assert attempt.row.status == "succeeded"
