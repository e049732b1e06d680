"""The check of all jobs: gathers what is wrong, keeps in mind what it has said, and says each thing once."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from django.db import Error, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from . import ledger, problems, registry
from .database import aware, read_committed
from .keys import make_key
from .ledger import Expectation
from .locks.postgres import PostgresLock
from .models import JobWatch
from .overview import CannotTell, Job, cannot_tell, databases, overview, require_postgresql
from .problems import Kind, Problem, Severity
from .slots import Schedule

logger = logging.getLogger("django_singlecron.alerts")

# The replica that has this lock says what is new. Others look as well, and leave that to it.
ALERTS = make_key("django_singlecron.alerts", "hashtextextended")


@dataclass(frozen=True)
class Look:
    """What a check looks at, and what it may do."""

    job: str | None = None
    """The name of one job; None for all."""
    failures: int = 1
    """How many runs in a row must have failed."""
    writes: bool = False
    """Whether it may keep in mind since when a job is watched."""
    tells: bool = False
    """Whether it may say, through logging, what is new; it needs `writes`."""

    def is_at(self, job: Job) -> bool:
        """Whether a job is looked at: by its name, or that of its task."""
        return self.job is None or self.job == job.name or (job.task is not None and self.job == job.task.name)


class _Finding(NamedTuple):
    """What was found in one database."""

    at: datetime
    jobs: Collection[str]
    problems: Sequence[Problem]
    watches: Mapping[str, JobWatch]
    expectations: Mapping[str, Expectation]


@dataclass(frozen=True)
class Report:
    """What a check found."""

    jobs: int = 0
    problems: Sequence[tuple[str, Problem]] = ()
    """Each with the alias of its database, the worst first."""
    obstacles: Sequence[str] = ()
    """Why something could not be checked."""
    databases: Mapping[str, datetime] = field(default_factory=dict)
    """When each was looked at, by its own clock."""

    @property
    def severity(self) -> Severity:
        """The worst of it; that something is wrong outweighs that something else is unknown when it is critical."""
        worst = max((problem.severity for _, problem in self.problems), default=Severity.OK)
        return Severity.UNKNOWN if self.obstacles and worst < Severity.CRITICAL else worst

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "status": self.severity.name.lower(),
            "jobs": self.jobs,
            "problems": [
                {
                    "job": problem.job,
                    "database": using,
                    "kind": problem.kind.value,
                    "severity": problem.severity.name.lower(),
                    "text": problem.text,
                    "since": problem.since.isoformat(),
                    "run_id": problem.run_id,
                }
                for using, problem in self.problems
            ],
            "obstacles": list(self.obstacles),
            "checked_at": {using: at.isoformat() for using, at in self.databases.items()},
        }


def check(look: Look, using: str | None = None) -> Report:
    """Check the jobs of a database, or of all that have jobs. Never raises because of a database's state."""
    failures = registry.autodiscover()
    obstacles = [f"The module {failed.module} cannot be imported: {failed.error}" for failed in failures]
    found: list[tuple[str, Problem]] = []
    looked_at: dict[str, datetime] = {}
    jobs = 0
    for alias in [using] if using else databases():
        try:
            finding = _check_database(alias, look)
        except CannotTell as error:
            obstacles.append(str(error))
            continue
        found += [(alias, problem) for problem in finding.problems]
        looked_at[alias] = finding.at
        jobs += len(finding.jobs)
    if look.job is not None and jobs == 0 and not obstacles:
        obstacles.append(f'There is no job "{look.job}".')
    found.sort(key=lambda pair: (-pair[1].severity, pair[1].job, pair[1].since))
    return Report(jobs, found, obstacles, looked_at)


def _check_database(using: str, look: Look) -> _Finding:
    require_postgresql(using)
    if not look.writes:
        return _look_at(using, look)
    connection = connections[using]
    is_own = not connection.in_atomic_block
    try:
        with transaction.atomic(using=using):
            if is_own:
                read_committed(connection)
            may_write = _take_lock(connection)
            finding = _look_at(using, look)
            if may_write:
                _remember(using, finding)
                if look.tells:
                    _tell(using, finding)
    except Error as error:
        raise cannot_tell(error, using) from error
    return finding


def _take_lock(connection: BaseDatabaseWrapper) -> bool:
    statement = PostgresLock().try_exclusive(ALERTS)
    with connection.cursor() as cursor:
        cursor.execute(statement.text, statement.parameters)
        return bool(cursor.fetchone()[0])


def _look_at(using: str, look: Look) -> _Finding:
    seen = overview(using)
    now = seen.live.at
    jobs = [job for job in seen.jobs if look.is_at(job) and not problems.is_forgotten(job, now)]
    try:
        watches = {watch.job: watch for watch in JobWatch.objects.using(using).order_by("job")}
        expectations = {job.name: _expect(job, schedule, watches, now) for job in jobs if (schedule := job.schedule)}
        slots = ledger.find(using, problems.wanted_slots(expectations.values(), now))
        of_locks = problems.of_locks(seen)
    except Error as error:
        raise cannot_tell(error, using) from error
    found = [
        problem
        for job in jobs
        for problem in problems.of_job(job, expectations.get(job.name), slots, seen, look.failures)
    ]
    names = {job.name for job in jobs}
    found += [problem for problem in of_locks if look.job is None or problem.job in names]
    if look.job is not None:
        watches = {name: watch for name, watch in watches.items() if name in names}
    return _Finding(now, names, found, watches, expectations)


def _expect(job: Job, schedule: Schedule, watches: Mapping[str, JobWatch], now: datetime) -> Expectation:
    """Say since when a job is to run: since it was first seen, and with another schedule from then on."""
    watch = watches.get(job.name)
    if watch is None:
        since = job.past.first_slot if job.past and job.past.first_slot else now
    else:
        since = aware(watch.watched_since) if watch.schedule == _name_of(schedule) else now
    return Expectation(job.name, schedule, job.task.options.grace if job.task else None, since)


def _remember(using: str, finding: _Finding) -> None:
    """Keep in mind since when the jobs are watched that are new, or have a new schedule."""
    new = [
        JobWatch(job=job, schedule=_name_of(expected.plan), watched_since=expected.since, problem="")
        for job, expected in finding.expectations.items()
        if job not in finding.watches or finding.watches[job].schedule != _name_of(expected.plan)
    ]
    JobWatch.objects.using(using).bulk_create(
        new, update_conflicts=True, unique_fields=["job"], update_fields=["schedule", "watched_since"]
    )


def _tell(using: str, finding: _Finding) -> None:
    """Log each job that turned bad and each that is well again, and keep in mind that it was said.

    That a job is late is not worth a mail: either it runs within its grace, or it is missed.
    """
    bad: dict[str, list[str]] = {}
    for problem in finding.problems:
        if problem.kind is not Kind.LATE:
            bad.setdefault(problem.job, []).append(f"{problem.kind.value}: {problem.text}")
    texts = {job: "; ".join(said) for job, said in bad.items()}
    before = {job: watch for job, watch in finding.watches.items() if watch.problem}
    rows = JobWatch.objects.using(using)
    for job, text in texts.items():
        if job not in before:
            if not _say('Job "%s" is in trouble. %s', job, text, using=using):
                continue
            new = {"problem": text, "changed_at": finding.at}
            rows.update_or_create(job=job, defaults=new, create_defaults={**new, "watched_since": finding.at})
        elif before[job].problem != text:
            rows.filter(job=job).update(problem=text)
    for job in sorted(before.keys() - texts.keys()):
        state = "is well again" if job in finding.jobs else "is not watched any more: it is gone"
        if _say('Job "%s" %s. It was: %s', job, state, before[job].problem, using=using):
            rows.filter(job=job).update(problem="", changed_at=finding.at)


def _say(message: str, job: str, *args: str, using: str) -> bool:
    """Log it; False when a handler could not, such as a mail's without its server, so that the next check tries."""
    try:
        logger.error(message, job, *args, extra={"job": job, "using": using})
    except Exception:
        traceback.print_exc()
        return False
    return True


def _name_of(schedule: Schedule) -> str:
    """Return what tells a schedule from another."""
    return f"{schedule.expression} {schedule.zone}"
