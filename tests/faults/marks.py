"""Where in a run the tests of the suite inject: parametrisations that several of its modules share."""

from __future__ import annotations

import pytest

from tests.faults.jobs import BETWEEN, FIRST, LAST
from tests.faults.steps import AFTER_WRITE, BEFORE_WRITE, LAST_IN_BODY, POINTS, Point

# The moments at which a body does something itself, as the table names them.
MOMENTS = {BEFORE_WRITE.name: FIRST, AFTER_WRITE.name: BETWEEN, LAST_IN_BODY: LAST}


def at_points(*points: Point) -> pytest.MarkDecorator:
    """Run the test once for each of these points."""
    return pytest.mark.parametrize("point", points)


at_each_point = at_points(*POINTS)
at_each_moment = pytest.mark.parametrize("point", MOMENTS)
