"""The check as a check of django-health-check, version 4: `"django_singlecron.contrib.health_check.Jobs"`."""

from __future__ import annotations

import dataclasses

from django.db import connections
from health_check.base import HealthCheck
from health_check.exceptions import ServiceUnavailable, ServiceWarning

from django_singlecron import watch
from django_singlecron.problems import Severity


@dataclasses.dataclass
class Jobs(HealthCheck):
    """Whether the jobs ran as they should. It writes nothing and mails nothing.

    Its messages name jobs and what is wrong with them, not what they raised.
    """

    job: str | None = None
    """The name of one job; None for all."""
    database: str | None = None
    """The alias of one database; None for all that have jobs."""
    failures: int = 1
    """How many runs in a row must have failed."""

    def run(self) -> None:
        """Check; raise what django-health-check shows."""
        already_open = {connection.alias for connection in connections.all() if connection.connection is not None}
        try:
            report = watch.check(watch.Look(self.job, self.failures), self.database)
        finally:
            # A thread of a pool runs this, and no request's end closes its connections.
            for connection in connections.all():
                if connection.alias not in already_open:
                    connection.close()
        if report.severity is Severity.OK:
            return
        said = [f"{problem.job}: {problem.kind.value}" for _, problem in report.problems]
        if report.obstacles:
            said.append("some jobs could not be checked")
        error = ServiceWarning if report.severity is Severity.WARNING else ServiceUnavailable
        raise error(", ".join(said))
