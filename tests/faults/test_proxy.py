"""The suite's own means: a run is stopped at each of its points, and goes on as if nothing had been."""

import pytest

from tests.faults.replicas import Case
from tests.faults.steps import POINTS, Point
from tests.support_core import real_database

pytestmark = real_database


@pytest.mark.fault("a pause")
@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name)
def test_a_run_that_is_held_up_succeeds(case: Case, point: Point) -> None:
    attempt, stopped = case.stopped_at(point)
    assert stopped.point == point
    case.proxy.go_on()
    assert attempt.result().outcome == "acquired"
    case.check()
    assert attempt.row.status == "succeeded"
