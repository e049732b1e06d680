"""django-crontab's `CRONJOBS`: made of the tasks' own `schedule=`, or compared with it where both are written.

The settings import this module, so it imports no task before `CRONJOBS` is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta, timezone, tzinfo
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, overload
from zoneinfo import ZoneInfo

from cronsim import CronSim
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.core.management import get_commands

from . import registry
from .exceptions import InvalidTask
from .slots import make_schedule

if TYPE_CHECKING:
    from .task import SingletonTask

CALL_COMMAND = "django.core.management.call_command"

# By whose zone cron's daemon fires.
LOCALTIME = Path("/etc/localtime")

_LAST = (59, 23, 31, 12, 7)
_DAY, _WEEKDAY = 2, 4

Job = Sequence[Any]
"""An entry of `CRONJOBS`: expression, dotted path, and what django-crontab takes besides."""


def cronjobs(*modules: str) -> CronJobs:
    """Return django-crontab's `CRONJOBS` for the tasks that have a `schedule=`, for use in the settings.

    Arguments: the modules or packages whose tasks are meant; by default all tasks that are found: those in each app's
    `cron` module and the commands. Other entries are added to it: `CRONJOBS += [("30 3 * * *", "shop.cron.tidy")]`.
    """
    return CronJobs(modules)


class CronJobs(Sequence[Job]):
    """A list of cron jobs that finds its tasks when it is read.

    Reading it raises `ImproperlyConfigured` while the apps are being loaded, and when a module of its tasks cannot be
    imported: without their lines, a crontab would be taken for whole.
    """

    def __init__(self, modules: Iterable[str] = (), written: Iterable[Job] = ()) -> None:
        self.modules = tuple(modules)
        self.written = tuple(written)
        """The entries that the settings added."""

    def covers(self, module: str) -> bool:
        """Whether tasks of a module are meant."""
        return not self.modules or any(f"{module}.".startswith(f"{meant}.") for meant in self.modules)

    def __add__(self, others: Iterable[Job]) -> CronJobs:
        return CronJobs(self.modules, (*self.written, *others))

    def __radd__(self, others: Iterable[Job]) -> CronJobs:
        return CronJobs(self.modules, (*others, *self.written))

    def __len__(self) -> int:
        return len(self._read())

    @overload
    def __getitem__(self, index: int) -> Job: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Job]: ...
    def __getitem__(self, index: int | slice) -> Job | Sequence[Job]:
        return self._read()[index]

    def __iter__(self) -> Iterator[Job]:
        return iter(self._read())

    def __repr__(self) -> str:
        # Without the tasks: a page that shows the settings imports none.
        call = f"cronjobs({', '.join(map(repr, self.modules))})"
        return f"{call} + {list(self.written)!r}" if self.written else call

    def _read(self) -> list[Job]:
        if not apps.models_ready:
            raise ImproperlyConfigured(
                "CRONJOBS is made of the tasks, so it cannot be read before the apps are loaded. "
                "To add entries to it, write CRONJOBS += [(…), (…)]."
            )
        for failure in registry.autodiscover(*self.modules):
            if self.covers(failure.module):
                raise ImproperlyConfigured(
                    f"CRONJOBS cannot be made: {failure.module} cannot be imported: {failure.error!r}"
                ) from failure.error
        made = [job_of(task) for task in registry.tasks() if self.covers(task.__module__) and obstacle(task) is None]
        return [*made, *self.written]


def job_of(task: SingletonTask[Any, Any]) -> Job:
    """Return the entry that starts a task by its schedule."""
    expression = crontab_expression(task.options.schedule)
    if task.command_name is not None:
        return (expression, CALL_COMMAND, [task.command_name])
    return (expression, target_of_task(task))


def obstacle(task: SingletonTask[Any, Any]) -> str | None:
    """Return why django-crontab cannot start a task by its schedule; None when it can."""
    if task.options.schedule is None:
        return "it has no schedule="
    if crontab_expression(task.options.schedule) is None:
        return f"cron has no expression for {task.options.schedule!r}"
    if task.command_name is not None:
        return None if task.command_name in get_commands() else f"there is no command {task.command_name!r}"
    if task.is_async:
        return "django-crontab does not await coroutine functions"
    if "." in task.__qualname__:
        return "it is a method"
    try:
        signature(task.func).bind()
    except TypeError as error:
        return f"it needs arguments: {error}"
    return None


def crontab_expression(expression: object) -> str | None:
    """Return a cron expression as every cron and django-crontab read it: five fields, and a range before each step.

    None when cron has no words for it: the last day of the month, the second Friday. Raises `InvalidTask` when it is
    no cron expression.
    """
    fields = make_schedule(expression, timezone.utc).expression.upper().split()
    if set("LW") & set(fields[_DAY]) or set("L#") & set(fields[_WEEKDAY]):
        return None
    return " ".join(
        ",".join(_with_range(part, last) for part in field.split(","))
        for field, last in zip(fields, _LAST, strict=True)
    )


def _with_range(part: str, last: int) -> str:
    first, slash, step = part.partition("/")
    return f"{first}-{last}/{step}" if slash and first != "*" and "-" not in first else part


class Disagreement(NamedTuple):
    """A task that `CRONJOBS` starts by other expressions than its own."""

    task: SingletonTask[Any, Any]
    expressions: list[str]


def find_disagreements(tasks: Iterable[SingletonTask[Any, Any]], jobs: Iterable[Job]) -> Iterator[Disagreement]:
    """Yield each task with a schedule that is started, but never by that schedule."""
    by_target = _expressions_by_target(jobs)
    for task in tasks:
        expressions = by_target.get(target_of_task(task))
        if task.options.schedule is None or not expressions:
            continue
        own = _meaning(task.options.schedule)
        if all(_meaning(expression) != own for expression in expressions):
            yield Disagreement(task, expressions)


def find_started(tasks: Iterable[SingletonTask[Any, Any]], jobs: Iterable[Job]) -> Iterator[SingletonTask[Any, Any]]:
    """Yield each task with a schedule that an entry of `CRONJOBS` starts."""
    targets = _expressions_by_target(jobs)
    return (task for task in tasks if task.options.schedule is not None and target_of_task(task) in targets)


def target_of_task(task: SingletonTask[Any, Any]) -> str:
    """Return what a crontab's line calls: `manage.py` with the name of a command, or the path of a function."""
    if task.command_name is not None:
        return f"manage.py {task.command_name}"
    return f"{task.__module__}.{task.__qualname__}"


def _expressions_by_target(jobs: Iterable[Job]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for job in jobs:
        if isinstance(job, list | tuple) and len(job) > 1 and isinstance(job[1], str):
            found.setdefault(_target_of_job(job), []).append(str(job[0]))
    return found


def _target_of_job(job: Job) -> str:
    path = str(job[1])
    arguments = job[2] if len(job) > 2 else None
    if path == CALL_COMMAND and isinstance(arguments, list | tuple) and arguments:
        return f"manage.py {arguments[0]}"
    return path


def _meaning(expression: str) -> object:
    """Return what is the same for two expressions that mean the same, however they are written."""
    try:
        schedule = make_schedule(expression, timezone.utc)
    except InvalidTask:
        return expression  # @reboot, or nothing at all
    cron = CronSim(schedule.expression, datetime(1970, 1, 1, tzinfo=timezone.utc))
    weekdays = {day % 7 if isinstance(day, int) else day for day in cron.weekdays}
    return (cron.minutes, cron.hours, cron.days, cron.months, weekdays, cron.day_and)


def machine_zone(localtime: Path = LOCALTIME) -> tzinfo:
    """Return the machine's time zone, in which cron fires whatever Django's is; UTC where there is none."""
    name = str(localtime.resolve()).rpartition("zoneinfo/")[2]
    try:
        with localtime.open("rb") as file:
            return ZoneInfo.from_file(file, key=name)
    except (OSError, ValueError):
        return timezone.utc


def fires_at_other_times(task: SingletonTask[Any, Any], machine: tzinfo, now: datetime) -> bool:
    """Whether cron in the zone `machine` fires a task's schedule at other moments of the coming year than it is due."""
    plan = task.options.plan()
    if plan is None:
        return False
    offsets: dict[tuple[timedelta | None, timedelta | None], datetime] = {}
    for days in range(366):
        moment = now + timedelta(days=days)
        both = moment.astimezone(plan.zone).utcoffset(), moment.astimezone(machine).utcoffset()
        offsets.setdefault(both, moment)
    return any(
        own != other and _next_due(task, plan.zone, moment) != _next_due(task, machine, moment)
        for (own, other), moment in offsets.items()
    )


def _next_due(task: SingletonTask[Any, Any], zone: tzinfo, moment: datetime) -> datetime:
    slots = make_schedule(task.options.schedule, zone).since(moment)
    next(slots)
    return next(slots)
