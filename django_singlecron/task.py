"""What a decorated function is: a task, which runs under its lock when it is called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from datetime import datetime
from types import MethodType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar, cast, overload

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.core.management.base import BaseCommand

from . import crontab, registry
from .conf import get_settings
from .context import RunResult
from .exceptions import InvalidName, InvalidSlot, InvalidTask
from .keys import NameTemplate, bind_arguments
from .options import TaskOptions
from .slots import FIRST_YEAR, LAST_YEAR, UTC

if TYPE_CHECKING:
    from typing_extensions import Self


P = ParamSpec("P")
MethodP = ParamSpec("MethodP")
R = TypeVar("R")


class Request(NamedTuple):
    """What one call asks for beside the job's arguments."""

    force: bool = False
    slot: datetime | None = None
    on_acquired: Callable[[int], object] | None = None
    """Told the run's id before it starts, for callers that want it however the run ends."""


class SingletonTask(Generic[P, R]):
    """A function that runs under its lock when it is called. Made by `singleton_task`, which see.

    It holds the options and nothing of any call, so threads may share it.
    """

    def __init__(
        self, func: Callable[..., Any], options: TaskOptions, command_class: type[BaseCommand] | None = None
    ) -> None:
        functools.update_wrapper(self, func)
        self.__qualname__: str = func.__qualname__
        self.func = func
        """The undecorated function."""
        self.options = options
        self._signature = inspect.signature(func)
        self.command_class: type[BaseCommand] | None = None
        """The management command whose `handle()` it is; None for any other function."""
        self._is_async = iscoroutinefunction(func)
        if command_class is None:
            self._template = self._make_template(func.__module__, f"{func.__module__}.{func.__qualname__}")
        else:
            self._belong_to(command_class)
        if self._is_async:
            markcoroutinefunction(self)

    def _belong_to(self, command_class: type[BaseCommand]) -> None:
        """Be the `handle` of a command class, whichever function that is: an inherited one, or another's wrapper."""
        if self._is_async:
            raise InvalidTask(f"{self.func.__qualname__} is a coroutine function; Django's commands are not awaited.")
        self.command_class = command_class
        self.__module__ = command_class.__module__
        self.__qualname__ = f"{command_class.__qualname__}.handle"
        self._template = self._make_template(command_class.__module__, _command_name(command_class))

    def _make_template(self, module: str, default: str) -> NameTemplate:
        name = self.options.name
        if name is None and ("<lambda>" in default or module == "__main__"):
            raise InvalidName(
                f"{self.__qualname__} of the module {module} has no name that is the same on every replica. "
                'Give it one: @singleton_task("nightly-billing").'
            )
        # A module's or function's name holds no braces.
        return NameTemplate(default if name is None else name, self._signature, self.func.__qualname__)

    @property
    def name(self) -> str:
        """The job's name, with its placeholders."""
        return self._template.text

    @property
    def has_placeholders(self) -> bool:
        """Whether the job's name holds arguments, so that it stands for many jobs."""
        return self._template.has_placeholders

    def may_be_named(self, job: str) -> bool:
        """Whether some call of it is the job of this name."""
        return self._template.matches(job)

    @property
    def using(self) -> str:
        """The alias of the job's database."""
        return self.options.using or get_settings().database

    @property
    def command_name(self) -> str | None:
        """The name of the management command whose `handle()` it is; None for any other function."""
        return None if self.command_class is None else _command_name(self.command_class)

    @property
    def is_async(self) -> bool:
        """Whether calling it gives a coroutine."""
        return self._is_async

    def arguments_of_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return a call's arguments by name.

        Raises `TypeError`, as the call would, when they do not fit the function.
        """
        return bind_arguments(self._signature, args, kwargs)

    def name_of_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the job's name for one call, placeholders filled in.

        Raises `TypeError` when they need arguments that do not fit the function, `InvalidName` when what is given
        cannot name a lock.
        """
        if not self._template.has_placeholders:
            return self._template.text
        return self._template.render(self.arguments_of_call(args, kwargs))

    def name_for(self, command_class: type[BaseCommand]) -> str:
        """Return the job's name, with its placeholders, for a command that has this task or inherits it."""
        return _command_name(command_class) if self.options.name is None else self.name

    def name_of_command(self, command: BaseCommand, args: tuple[Any, ...], options: dict[str, Any]) -> str:
        """Return the job's name for one call of a command's `handle()`; by default the name of the command.

        Raises as `name_of_call`.
        """
        if self.options.name is None:
            return _command_name(type(command))
        return self.name_of_call((command, *args), options)

    def is_handle_of(self, command: BaseCommand) -> bool:
        """Whether it is the `handle()` of a command, or of a class that the command's inherits from.

        Raises `InvalidTask` when that is hidden by another decorator, from Django too.
        """
        if any(vars(base).get("handle") is self for base in type(command).__mro__):
            return True
        if self.func.__name__ == "handle":
            raise InvalidTask(
                f"The handle() of {type(command).__module__} has a decorator above @singleton_task, which hides from "
                "Django that it is one. Put @singleton_task on top, or on the class."
            )
        return False

    def __set_name__(self, owner: type, name: str) -> None:
        if name == "handle" and issubclass(owner, BaseCommand):
            self._belong_to(owner)
            registry.register(self)

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...
    @overload
    def __get__(
        self: SingletonTask[Concatenate[Any, MethodP], R], instance: object, owner: type | None = None
    ) -> Callable[MethodP, R]: ...
    def __get__(self, instance: object | None, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return cast("R", self._run(args, kwargs, Request()))

    def run(self, /, *args: Any, force: bool = False, slot: datetime | None = None, **kwargs: Any) -> R:
        """Call the task with its arguments, for a given slot or regardless of slots.

        Arguments: `force` True runs it even though its slot is taken or its last run is too recent, and says so in the
        history; the lock is asked for all the same. `slot` is the slot to run for, one of the task's own, in place of
        the present one.

        Raises `InvalidSlot` when the task has no such slot, or that is still to come; else as a call.
        """
        return cast("R", self._run(args, kwargs, Request(force, None if slot is None else self.check_slot(slot))))

    def check_slot(self, moment: datetime) -> datetime:
        """Return `moment` as a slot of this task; a moment without a time zone is in the task's.

        Raises `InvalidSlot` when the task has none that begins or is due then.
        """
        plan = self.options.plan()
        if plan is None:
            raise InvalidSlot(f'The job "{self.name}" has no slots: it has neither once_per= nor schedule=.')
        if not FIRST_YEAR <= moment.year <= LAST_YEAR:
            raise InvalidSlot(
                f'{moment.isoformat()} is no slot of the job "{self.name}": years are {FIRST_YEAR} to {LAST_YEAR}.'
            )
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=plan.zone)
        slots = plan.since(moment)
        slot, following = next(slots), next(slots)
        # In UTC: Python takes no two times for equal of which one is of a zone's repeated hour.
        if slot != moment.astimezone(UTC):
            around = " and ".join(near.astimezone(plan.zone).isoformat() for near in (slot, following))
            raise InvalidSlot(f'{moment.isoformat()} is no slot of the job "{self.name}". The nearest are {around}.')
        return slot

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any], request: Request) -> Any:
        if self._is_async:
            return self._run_async(args, kwargs, request)
        # Imported by the call: models cannot be imported while the apps that hold tasks are being loaded.
        from .calling import run_command, run_function

        try:
            if args and isinstance(args[0], BaseCommand) and self.is_handle_of(args[0]):
                return run_command(self, args[0], args[1:], kwargs, request).result.value
            return run_function(self, args, kwargs, request).result
        except BaseException as error:
            crontab.keep_exit_code(error)
            raise

    def __repr__(self) -> str:
        return f"<singleton task {self.name!r}: {self.__module__}.{self.__qualname__}>"

    def __reduce__(self) -> str:
        # Pickled by reference, as the function itself would be.
        return self.__qualname__

    def check_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise `TypeError` when a call with these arguments would, `InvalidName` when they cannot name a lock."""
        self.arguments_of_call(args, kwargs)
        self.name_of_call(args, kwargs)

    async def _run_async(self, args: tuple[Any, ...], kwargs: dict[str, Any], request: Request) -> RunResult[Any]:
        from .calling import run_function

        # The run's statements go through one thread, as Django's own async interface sends them.
        outcome = await sync_to_async(run_function, thread_sensitive=True)(self, args, kwargs, request)
        return outcome.result


def _command_name(command_class: type[BaseCommand]) -> str:
    return command_class.__module__.rpartition(".")[2]
