"""System checks: what is wrong with a project's settings, databases and tasks, each with an id, a hint and a docs line.

Ids are stable. They are listed in `docs/checks.md`.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, tzinfo
from typing import Any

from django.apps import AppConfig
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as CheckWarning
from django.core.exceptions import ImproperlyConfigured
from django.core.management import get_commands
from django.db import Error as DatabaseError
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone

from . import cronjobs, registry
from .conf import SETTING, Settings, find_problems, get_settings
from .models import JobRun
from .task import SingletonTask

DOCS = "https://github.com/django-singlecron/django-singlecron/blob/main/docs/checks.md"

MIN_TOKEN_LENGTH = 16

Tasks = Sequence[SingletonTask[Any, Any]]


def _error(number: str, message: str, hint: str, *, obj: object = None) -> Error:
    return Error(message, hint=f"{hint} See {DOCS}#{number.lower()}.", obj=obj, id=f"django_singlecron.{number}")


def _warning(number: str, message: str, hint: str, *, obj: object = None) -> CheckWarning:
    return CheckWarning(message, hint=f"{hint} See {DOCS}#{number.lower()}.", obj=obj, id=f"django_singlecron.{number}")


def check_setting(value: object) -> Iterator[CheckMessage]:
    """E001 and E002: an unknown key, or a value of the wrong type, in the setting."""
    for problem in find_problems(value):
        yield _error("E001" if problem.unknown_key else "E002", problem.message, problem.hint)


def check_imports(failures: Sequence[registry.ImportFailure]) -> Iterator[CheckMessage]:
    """E003: a module that holds tasks, or may, cannot be imported."""
    for failure in failures:
        yield _error(
            "E003",
            f"The module {failure.module} cannot be imported: {type(failure.error).__name__}: {failure.error}",
            "Its jobs cannot run before that is mended.",
        )


def check_databases(tasks: Tasks, databases: dict[str, Any], *, locking: bool) -> Iterator[CheckMessage]:
    """E004, E005 and E006: a task's database does not exist, has no advisory locks, or does not commit by itself."""
    by_alias: dict[str, list[SingletonTask[Any, Any]]] = defaultdict(list)
    for task in tasks:
        by_alias[task.using].append(task)
    for alias, users in sorted(by_alias.items()):
        who = ", ".join(f'"{task.name}"' for task in users)
        if alias not in databases:
            yield _error(
                "E004",
                f'The database "{alias}" of the job {who} is not in DATABASES.',
                f"There are: {', '.join(sorted(databases))}.",
            )
        elif locking and not _is_postgresql(alias):
            yield _error(
                "E005",
                f'The database "{alias}" of the job {who} is not PostgreSQL, and has no advisory locks.',
                f'Name another with using=; for development, set {SETTING} = {{"LOCKING": False}}.',
            )
        elif not databases[alias].get("AUTOCOMMIT", True):
            yield _error(
                "E006",
                f'The database "{alias}" of the job {who} has AUTOCOMMIT off, so its history would not be committed.',
                "Remove AUTOCOMMIT from its settings.",
            )


def check_names(tasks: Tasks) -> Iterator[CheckMessage]:
    """E007: two tasks of one name in one database, which would keep each other from running."""
    yield from _check_clashes(
        "E007",
        tasks,
        lambda task: task.name,
        lambda name: f'Two jobs are named "{name}", so one is skipped while the other runs',
        "Give each a name of its own.",
    )


def check_keys(tasks: Tasks) -> Iterator[CheckMessage]:
    """E008: two tasks of one fixed key in one database, which would keep each other from running."""
    fixed = [task for task in tasks if not isinstance(task.options.key, str)]
    yield from _check_clashes(
        "E008",
        fixed,
        lambda task: task.options.key,
        lambda key: f"Two jobs have the lock key {key}, so one is skipped while the other runs",
        "Give each a key of its own, or leave key= out.",
    )


def _check_clashes(
    number: str,
    tasks: Tasks,
    of: Callable[[SingletonTask[Any, Any]], object],
    message: Callable[[object], str],
    hint: str,
) -> Iterator[CheckMessage]:
    sharers: dict[tuple[str, object], list[SingletonTask[Any, Any]]] = defaultdict(list)
    for task in tasks:
        sharers[task.using, of(task)].append(task)
    for (_, shared), sharing in sharers.items():
        users = _without_overridden(sharing)
        if len(users) > 1:
            places = ", ".join(f"{task.__module__}.{task.__qualname__}" for task in users)
            yield _error(number, f"{message(shared)}: {places}.", hint)


def _without_overridden(tasks: Tasks) -> Tasks:
    """Return the tasks but for those of commands that another app's command of the same name stands in for."""
    apps = get_commands()
    loaded = {name: f"{apps.get(name or '')}.management.commands.{name}" for name in {t.command_name for t in tasks}}
    there = {task.command_name for task in tasks if task.__module__ == loaded[task.command_name]}
    return [task for task in tasks if task.command_name not in there or task.__module__ == loaded[task.command_name]]


def check_cronjobs(tasks: Tasks, targets: Sequence[str]) -> Iterator[CheckMessage]:
    """E009: django-crontab calls a coroutine function, which it does not await, so nothing would run."""
    coroutines = {f"{task.__module__}.{task.__qualname__}" for task in tasks if task.is_async}
    for target in targets:
        if target in coroutines:
            yield _error(
                "E009",
                f"CRONJOBS calls {target}, a coroutine function, which django-crontab does not await.",
                "Schedule a plain function, for instance one that calls it through asgiref.sync.async_to_sync.",
            )


def check_tokens(tokens: Sequence[str]) -> Iterator[CheckMessage]:
    """E010: a token that can be guessed, by which whoever guesses it may run jobs."""
    short = sum(len(token) < MIN_TOKEN_LENGTH for token in tokens)
    if short:
        yield _error(
            "E010",
            f'{SETTING}["TOKENS"] has {short} of {len(tokens)} tokens that are shorter than {MIN_TOKEN_LENGTH} '
            "characters.",
            'Make each with: python -c "import secrets; print(secrets.token_urlsafe(32))".',
        )


def check_locking(settings: Settings, *, debug: bool) -> Iterator[CheckMessage]:
    """W001: jobs run without a lock although the project is not being developed on."""
    if not settings.locking and not debug:
        yield _warning(
            "W001",
            f'{SETTING}["LOCKING"] is False: jobs run on every replica whose cron fires.',
            "Leave it out, unless there is but one replica and will be.",
        )


def check_history(tasks: Tasks, databases: Sequence[str]) -> Iterator[CheckMessage]:
    """W002: the history is not migrated in the database of a task. A warning, since an error would stop `migrate`."""
    for alias in sorted({task.using for task in tasks} & set(databases)):
        try:
            missing = _lacks_history(connections[alias])
        except DatabaseError as error:
            yield _warning(
                "W003",
                f'Whether the history is migrated in the database "{alias}" is unknown: {str(error).strip()}',
                "Jobs refuse to run while the database cannot be reached.",
            )
            continue
        if missing:
            yield _warning(
                "W002",
                f'The history is not migrated in the database "{alias}", so its jobs refuse to run.',
                f"Run: manage.py migrate django_singlecron --database {alias}.",
            )


def _lacks_history(connection: BaseDatabaseWrapper) -> bool:
    """Whether a database has no history, or one that migrations are missing of."""
    table = JobRun._meta.db_table
    with connection.cursor() as cursor:
        if table not in connection.introspection.table_names(cursor):
            return True
        columns = {column.name for column in connection.introspection.get_table_description(cursor, table)}
    return not {field.column for field in JobRun._meta.concrete_fields} <= columns


def check_schedules(tasks: Tasks, jobs: Sequence[cronjobs.Job]) -> Iterator[CheckMessage]:
    """W004: django-crontab starts a task by other expressions than its own `schedule=`."""
    for task, expressions in cronjobs.find_disagreements(tasks, jobs):
        shown = " and ".join(f'"{expression}"' for expression in expressions)
        target, own = cronjobs.target_of_task(task), task.options.schedule
        yield _warning(
            "W004",
            f'CRONJOBS starts {target} at {shown}, but its schedule= is "{own}".',
            "Write it once: CRONJOBS = cronjobs(), from django_singlecron.cronjobs.",
        )


def check_zones(tasks: Tasks, jobs: Sequence[cronjobs.Job], machine: tzinfo, now: datetime) -> Iterator[CheckMessage]:
    """W005: cron, which fires by the machine's time zone, starts a task at other moments than it is due."""
    for task in cronjobs.find_started(tasks, jobs):
        if cronjobs.fires_at_other_times(task, machine, now):
            zone = task.options.timezone or timezone.get_default_timezone()
            yield _warning(
                "W005",
                f"cron on this machine fires in {machine}, so {cronjobs.target_of_task(task)} is not started when it "
                f'is due: schedule="{task.options.schedule}" is in {zone}.',
                f'Give the machine that time zone, or the task timezone="{machine}" and a schedule in it.',
            )


def check_left_out(tasks: Tasks, jobs: object) -> Iterator[CheckMessage]:
    """W006: a task with a schedule has no entry in what `cronjobs()` makes, since django-crontab cannot start it."""
    if not isinstance(jobs, cronjobs.CronJobs):
        return
    started = set(map(id, cronjobs.find_started(tasks, jobs.written)))
    for task in tasks:
        if task.options.schedule is None or id(task) in started or not jobs.covers(task.__module__):
            continue
        if obstacle := cronjobs.obstacle(task):
            yield _warning(
                "W006",
                f"cronjobs() leaves {cronjobs.target_of_task(task)} out: {obstacle}.",
                "Add an entry that starts it, or start it by other means and name the modules: cronjobs(…).",
            )


def _is_postgresql(alias: str) -> bool:
    return connections[alias].vendor == "postgresql"


def run_checks(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Check the setting, and with it the tasks and their databases when it can be read."""
    found = list(check_setting(getattr(django_settings, SETTING, {})))
    if found:
        return found
    failures = registry.autodiscover()
    tasks, settings = registry.tasks(), get_settings()
    # What cronjobs() gives cannot be read while modules are missing.
    written = None if failures else getattr(django_settings, "CRONJOBS", None)
    jobs: Sequence[cronjobs.Job] = list(written or ())
    return [
        *check_imports(failures),
        *check_databases(tasks, django_settings.DATABASES, locking=settings.locking),
        *check_names(tasks),
        *check_keys(tasks),
        *check_cronjobs(tasks, registry.cronjob_targets()),
        *check_tokens(settings.tokens),
        *check_locking(settings, debug=django_settings.DEBUG),
        *check_schedules(tasks, jobs),
        *check_zones(tasks, jobs, cronjobs.machine_zone(), timezone.now()),
        *check_left_out(tasks, written),
    ]


def run_database_checks(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Check that the history is there, in the databases that Django was told to check."""
    if sys.argv[1:2] == ["migrate"]:
        # It runs this check first, and is about to mend what would be found.
        return []
    try:
        get_settings()
    except ImproperlyConfigured:
        return []
    registry.autodiscover()
    return list(check_history(registry.tasks(), databases or ()))
