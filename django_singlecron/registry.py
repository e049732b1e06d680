"""The singleton tasks that exist, and how those are found that nobody has imported yet."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from django.apps import apps
from django.conf import settings
from django.core.management import find_commands
from django.utils.module_loading import module_has_submodule

if TYPE_CHECKING:
    from .task import SingletonTask

_tasks: dict[str, SingletonTask[Any, Any]] = {}


class ImportFailure(NamedTuple):
    """A module that may hold tasks and cannot be imported."""

    module: str
    error: BaseException


def register(task: SingletonTask[Any, Any]) -> None:
    """Note a task, in place of one of the same module and name: a module that is imported again redefines its tasks.

    What is defined inside a function is no task of the project: it comes and goes with the calls.
    """
    if "<locals>" not in task.__qualname__:
        _tasks[f"{task.__module__}.{task.__qualname__}"] = task


def tasks() -> list[SingletonTask[Any, Any]]:
    """Return the tasks of the modules that are imported, by the place of their definition."""
    return [_tasks[place] for place in sorted(_tasks)]


def find(name: str) -> SingletonTask[Any, Any] | None:
    """Return the task whose job has this name, placeholders unfilled; import what may hold it if need be."""
    task = _find_imported(name)
    if task is None:
        autodiscover()
        task = _find_imported(name)
    return task


def _find_imported(name: str) -> SingletonTask[Any, Any] | None:
    return next((task for task in tasks() if task.name == name), None)


def autodiscover(*also: str) -> list[ImportFailure]:
    """Import what may hold tasks, and the modules `also`; return what could not be imported.

    That is each app's `cron` module, the modules that `CRONJOBS` names, and those of the apps' commands whose source
    speaks of singlecron.
    """
    failures = []
    for module in sorted({*also, *_cron_modules(), *_cronjobs_modules(), *_command_modules()}):
        if module in sys.modules:
            continue
        try:
            import_module(module)
        except (Exception, SystemExit) as error:  # a script that was not meant to be imported may exit
            failures.append(ImportFailure(module, error))
    return failures


def cronjob_targets() -> list[str]:
    """Return the dotted paths that django-crontab's `CRONJOBS` calls, as far as the settings name them."""
    jobs = getattr(settings, "CRONJOBS", None)
    # What cronjobs() gives cannot be iterated over here: it is made of the tasks that are being looked for.
    jobs = getattr(jobs, "written", jobs) or ()
    return [job[1] for job in jobs if isinstance(job, list | tuple) and len(job) > 1 and isinstance(job[1], str)]


def _cron_modules() -> Iterator[str]:
    for config in apps.get_app_configs():
        if config.module is not None and module_has_submodule(config.module, "cron"):
            yield f"{config.name}.cron"


def _cronjobs_modules() -> Iterator[str]:
    yield from getattr(getattr(settings, "CRONJOBS", None), "modules", ())
    for target in cronjob_targets():
        module, dot, _ = target.rpartition(".")
        if dot:
            yield module


def _command_modules() -> Iterator[str]:
    for config in apps.get_app_configs():
        if config.name == "django_singlecron" or config.name.startswith("django."):
            continue
        for name in find_commands(str(Path(config.path) / "management")):
            source = Path(config.path) / "management" / "commands" / f"{name}.py"
            if source.is_file() and b"singlecron" in source.read_bytes():
                yield f"{config.name}.management.commands.{name}"
