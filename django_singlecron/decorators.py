"""`@singleton_task`: what it accepts, and what it refuses."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from datetime import timedelta, tzinfo
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from django.core.management.base import BaseCommand

from . import registry
from .context import RunResult
from .exceptions import InvalidTask
from .keys import KeyOption
from .options import TaskOptions, check_options
from .slots import CalendarUnit
from .task import SingletonTask

P = ParamSpec("P")
T = TypeVar("T")
CommandT = TypeVar("CommandT", bound=BaseCommand)


class Decorator(Protocol):
    """What `singleton_task(…)` returns."""

    # The overloads overlap, since a class and a coroutine function are callables too; the first that fits counts.
    @overload
    def __call__(self, target: type[CommandT], /) -> type[CommandT]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, target: Callable[Concatenate[CommandT, P], str | None], /
    ) -> Callable[Concatenate[CommandT, P], str | None]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, target: Callable[P, Coroutine[Any, Any, T]], /
    ) -> SingletonTask[P, Coroutine[Any, Any, RunResult[T]]]: ...
    @overload
    def __call__(self, target: Callable[P, T], /) -> SingletonTask[P, RunResult[T]]: ...


@overload
def singleton_task(target: type[CommandT], /) -> type[CommandT]: ...  # type: ignore[overload-overlap]
@overload
def singleton_task(  # type: ignore[overload-overlap]
    target: Callable[Concatenate[CommandT, P], str | None], /
) -> Callable[Concatenate[CommandT, P], str | None]: ...
@overload
def singleton_task(  # type: ignore[overload-overlap]
    target: Callable[P, Coroutine[Any, Any, T]], /
) -> SingletonTask[P, Coroutine[Any, Any, RunResult[T]]]: ...
@overload
def singleton_task(target: Callable[P, T], /) -> SingletonTask[P, RunResult[T]]: ...
@overload
def singleton_task(
    name: str | None = None,
    /,
    *,
    key: KeyOption = "hashtextextended",
    using: str | None = None,
    timeout: timedelta | float | None = None,
    record_skips: bool | None = None,
    once_per: CalendarUnit | timedelta | None = None,
    schedule: str | None = None,
    timezone: str | tzinfo | None = None,
    retry: bool = True,
    min_interval: timedelta | float | None = None,
    grace: timedelta | float | None = None,
    max_duration: timedelta | float | None = None,
    http: bool = False,
) -> Decorator: ...


def singleton_task(target: Any = None, /, *, name: Any = None, **options: Any) -> Any:
    """Run a function or a management command on one replica at a time, inside a transaction, and record each attempt.

    Decorates a function, a coroutine function, a method, a `BaseCommand` subclass or its `handle()`, with options or
    without. A call tries the job's advisory lock. When another run holds it, the call is recorded as skipped and
    returns at once; otherwise the job runs in a transaction of its own, whose commit ends the lock. The call returns a
    `RunResult`, false when skipped; a command returns what its `handle()` returned.

    Arguments:
    - `name`, first or by keyword: the job's name, at most 200 characters, by default the command's name or
      `module.function`. It may hold arguments: `"bill:{tenant_id}"` makes a lock for each tenant.
    - `key`: how the lock's key follows from the name: `"hashtextextended"` (64 bits, the default) or `"hashtext"`
      (32 bits), both computed by PostgreSQL; or a fixed integer of 64 bits, or a pair of integers of 32 bits.
    - `using`: the alias of the database that holds the lock, the history and the work; by default the setting
      `SINGLECRON["DATABASE"]`, which is `"default"`.
    - `timeout`: a timedelta or seconds, at most 24 days, after which the run is ended and its work rolled back.
    - `record_skips`: whether skipped attempts leave a row; by default the setting `SINGLECRON["RECORD_SKIPS"]`.
    - `once_per`: `"minute"`, `"hour"`, `"day"`, `"week"`, `"month"` or a timedelta: the job succeeds at most once in
      each such slot. A run that failed leaves its slot open for the next attempt.
    - `schedule`: a cron expression of five fields or a nickname such as `"@daily"`: as `once_per`, with a slot for
      each time that it is due. It starts nothing by itself: cron, or whatever calls the job, does.
    - `timezone`: of `once_per` and `schedule`, a name or a tzinfo; by default the project's `TIME_ZONE`.
    - `retry`: False closes a slot at its first run, whatever becomes of it.
    - `min_interval`: a timedelta or seconds that must have passed since the job's last run started.
    - `grace`: how late after its due time a scheduled run counts as missed; a timedelta or seconds.
    - `max_duration`: how long a run may take before `singlecron check` reports it; a timedelta or seconds.
    - `http`: True lets a `POST` with a token start the job, where `django_singlecron.urls` is included.

    Raises `InvalidTask` or `InvalidName` for what cannot run under a lock. A call raises a `RunRefused` when nothing
    could run, and else whatever the job raised.

    """
    by_position = target if isinstance(target, str) else None
    if by_position is not None and name is not None:
        raise InvalidTask(f"The job has two names, {by_position!r} and {name!r}.")
    checked = check_options(name=by_position if name is None else name, **options)
    if target is None or by_position is not None:
        return lambda decorated: _decorate(decorated, checked)
    return _decorate(target, checked)


def _decorate(target: Any, options: TaskOptions) -> Any:
    if isinstance(target, type) and issubclass(target, BaseCommand):
        if isinstance(target.handle, SingletonTask):
            raise InvalidTask(f"{target.__qualname__} is a singleton task already.")
        task: SingletonTask[Any, Any] = SingletonTask(target.handle, options, target)
        target.handle = task  # type: ignore[method-assign]  # what a decorated handle() is, too
        registry.register(task)
        return target
    _refuse(target)
    task = SingletonTask(target, options)
    registry.register(task)
    return task


def _refuse(target: Any) -> None:
    if isinstance(target, SingletonTask):
        raise InvalidTask(f"{target!r} is a singleton task already.")
    if isinstance(target, type):
        raise InvalidTask(f"{target.__qualname__} is a class, but no BaseCommand. Decorate a function or its method.")
    if isinstance(target, staticmethod | classmethod):
        kind = type(target).__name__
        raise InvalidTask(f"Decorate the function itself: put @{kind} above @singleton_task.")
    if not inspect.isfunction(target):
        raise InvalidTask(
            f"{target!r} is no function. Decorate the function, before other libraries make a task or a partial of it."
        )
    if inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
        raise InvalidTask(f"{target.__qualname__} is a generator: calling it runs nothing. Let it return a list.")
