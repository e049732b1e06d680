"""The jobs of a database at one moment: what their tasks say, what the history holds, what runs.

Three queries, whatever the number of jobs and of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from django.db import Error, connections
from django.utils.connection import ConnectionDoesNotExist
from django.utils.timezone import get_default_timezone

from . import monitoring, registry
from .capture import error_message
from .conf import get_settings
from .database import aware, sqlstate
from .exceptions import SinglecronError
from .models import JobRun
from .monitoring import Live
from .slots import Plan, Schedule

if TYPE_CHECKING:
    from .task import SingletonTask

# So many of a job's newest runs are looked at when its failures in a row are counted.
RECENT = 50

# From job to job along an index, and for each a seek in an index for each answer.
_HISTORY = f"""
WITH RECURSIVE names (job) AS (
    (SELECT run.job FROM django_singlecron_jobrun AS run ORDER BY run.job LIMIT 1)
    UNION ALL
    SELECT (SELECT run.job FROM django_singlecron_jobrun AS run WHERE run.job > names.job ORDER BY run.job LIMIT 1)
    FROM names WHERE names.job IS NOT NULL
)
SELECT names.job, attempt.started_at, attempt.key, attempt.key_is_pair, first.slot, last.slot,
       recent.ids, recent.statuses,
       ended.id, ended.status, ended.host, ended.started_at, ended.finished_at, ended.error_class, ended.error_message
FROM names
CROSS JOIN LATERAL (
    SELECT run.started_at, run.key, run.key_is_pair FROM django_singlecron_jobrun AS run
    WHERE run.job = names.job ORDER BY run.job, run.id DESC LIMIT 1
) AS attempt
LEFT JOIN LATERAL (
    SELECT run.slot FROM django_singlecron_jobrun AS run
    WHERE run.job = names.job AND run.slot IS NOT NULL ORDER BY run.job, run.slot LIMIT 1
) AS first ON true
LEFT JOIN LATERAL (
    SELECT run.slot FROM django_singlecron_jobrun AS run
    WHERE run.job = names.job AND run.slot IS NOT NULL ORDER BY run.job DESC, run.slot DESC LIMIT 1
) AS last ON true
CROSS JOIN LATERAL (
    SELECT array_agg(run.id) AS ids, array_agg(run.status::text) AS statuses
    FROM (SELECT run.id, run.status FROM django_singlecron_jobrun AS run
          WHERE run.job = names.job AND run.outcome = 'acquired' ORDER BY run.job, run.id DESC LIMIT {RECENT}) AS run
) AS recent
LEFT JOIN LATERAL (
    SELECT run.id, run.status, run.host, run.started_at, run.finished_at, run.error_class,
           left(run.error_message, 200) AS error_message
    FROM django_singlecron_jobrun AS run
    WHERE run.job = names.job AND run.outcome = 'acquired' AND run.status <> 'running'
    ORDER BY run.job, run.id DESC LIMIT 1
) AS ended ON true
WHERE names.job IS NOT NULL
"""  # noqa: S608  # of constants alone

# Far more than run at any time. The bound is for a table that was tampered with.
_MOST_RUNNING = 1_000


class CannotTell(SinglecronError):
    """The database could not be asked, or has no history."""


class Run(NamedTuple):
    """A run that has ended, or was killed."""

    id: int
    status: str
    host: str
    started_at: datetime
    finished_at: datetime | None
    error_class: str = ""
    error_message: str = ""

    @property
    def duration(self) -> timedelta | None:
        """How long it took; None when it was killed and nobody knows."""
        return None if self.finished_at is None else self.finished_at - self.started_at

    @property
    def error(self) -> str:
        """What it raised, on one line; empty when nothing."""
        return " ".join(f"{self.error_class}: {self.error_message}".split()).strip(": ")


class Past(NamedTuple):
    """What the history holds of a job."""

    attempted_at: datetime
    key: int | None
    key_is_pair: bool
    first_slot: datetime | None
    last_slot: datetime | None
    recent: Sequence[tuple[int, str]]
    """The newest runs and their statuses as they are recorded, the newest first."""
    ended: Run | None


@dataclass(frozen=True)
class Job:
    """A job that a task or the history knows."""

    name: str
    task: SingletonTask[Any, Any] | None
    """None for a command that is only wrapped by `singlecron run`, and for a job that is no more."""
    past: Past | None
    running: JobRun | None
    """The run that is going on."""
    last: Run | None
    """The newest run that is over, be it that it was killed."""
    failures: int
    """How many of the newest runs failed or were lost, in a row; at most `RECENT`."""

    @property
    def plan(self) -> Plan | None:
        """Its slots."""
        return self.task.options.plan() if self.task else None

    @property
    def schedule(self) -> Schedule | None:
        """Its slots, when it is to run in each of them."""
        plan = self.plan
        return plan if isinstance(plan, Schedule) else None

    @property
    def zone(self) -> tzinfo:
        """The time zone in which people read its times."""
        plan = self.plan
        return plan.zone if plan else get_default_timezone()


@dataclass(frozen=True)
class Overview:
    """The jobs of one database at one moment."""

    using: str
    live: Live
    jobs: Sequence[Job]
    running: Sequence[JobRun]
    """The runs that read "running", the killed ones among them with the status `lost`."""

    @property
    def lost(self) -> set[int]:
        """The runs that were killed and still read "running"."""
        return {run.pk for run in self.running if run.status == JobRun.Status.LOST}


def databases() -> list[str]:
    """Return the aliases that have jobs: the setting's, and those that tasks name."""
    aliases = {get_settings().database, *(task.using for task in registry.tasks())}
    return sorted(aliases)


def overview(using: str) -> Overview:
    """Look at the jobs of a database.

    Raises `CannotTell` when it is not in `DATABASES`, is not PostgreSQL, cannot be reached, or is not migrated.
    """
    require_postgresql(using)
    try:
        live = cast("Live", monitoring.look(using))
        # The runs before the history: one that ends in between reads "running" in the first and not in the second.
        running = JobRun.objects.using(using).running().without_texts().order_by("status", "-pk")[:_MOST_RUNNING]
        runs = monitoring.tell_lost(running, live)
        past = _read_history(using)
    except Error as error:
        raise cannot_tell(error, using) from error
    tasks = [task for task in registry.tasks() if task.using == using]
    names = {*past, *(task.name for task in tasks if not task.has_placeholders)}
    jobs = [_make_job(name, _task_of(name, tasks), past.get(name), runs) for name in sorted(names)]
    return Overview(using, live, jobs, runs)


def require_postgresql(using: str) -> None:
    """Raise `CannotTell` when there is no such database, or it is not PostgreSQL. Sends nothing."""
    try:
        vendor = connections[using].vendor
    except ConnectionDoesNotExist as error:
        raise CannotTell(f'There is no database "{using}" in DATABASES.') from error
    if vendor != "postgresql":
        raise CannotTell(f'The database "{using}" is {vendor}, not PostgreSQL, and its jobs are not watched.')


def cannot_tell(error: Error, using: str) -> CannotTell:
    """Say why a database could not be asked."""
    reason = " ".join(error_message(error).split())
    if sqlstate(error) in ("42P01", "42703"):
        return CannotTell(
            f'The history is not migrated in the database "{using}". '
            f"Run: manage.py migrate django_singlecron --database {using}"
        )
    return CannotTell(f'The database "{using}" cannot be asked: {reason}')


def _read_history(using: str) -> dict[str, Past]:
    with connections[using].cursor() as cursor:
        cursor.execute(_HISTORY)
        return {
            job: Past(
                *(
                    aware(attempted_at),
                    key,
                    key_is_pair,
                    first_slot and aware(first_slot),
                    last_slot and aware(last_slot),
                ),
                list(zip(ids or (), statuses or (), strict=True)),
                _make_run(*ended) if ended[0] else None,
            )
            for job, attempted_at, key, key_is_pair, first_slot, last_slot, ids, statuses, *ended in cursor.fetchall()
        }


def _make_run(
    run_id: int, status: str, host: str, started_at: datetime, finished_at: datetime | None, *error: str
) -> Run:
    return Run(run_id, status, host, aware(started_at), finished_at and aware(finished_at), *error)


def _task_of(name: str, tasks: Iterable[SingletonTask[Any, Any]]) -> SingletonTask[Any, Any] | None:
    """Return the task that gives the name; of several templates that may, the longest."""
    fitting = [task for task in tasks if task.may_be_named(name)]
    return max(fitting, key=lambda task: (not task.has_placeholders, len(task.name)), default=None)


def _make_job(name: str, task: SingletonTask[Any, Any] | None, past: Past | None, runs: Sequence[JobRun]) -> Job:
    own = {run.pk: run for run in runs if run.job == name}
    recent = past.recent if past else ()
    statuses = [(run, own[run].status if run in own and status == "running" else status) for run, status in recent]
    running = next((own[run] for run, status in statuses if status == "running" and run in own), None)
    last = past.ended if past else None
    lost = next((own[run] for run, status in statuses if status == "lost" and run in own), None)
    if lost is not None and (last is None or lost.pk > last.id):
        last = _make_run(lost.pk, lost.status, lost.host, lost.started_at, None)
    over = [status for _, status in statuses if status != "running"]
    failures = over.index("succeeded") if "succeeded" in over else len(over)
    return Job(name, task, past, running, last, failures)
