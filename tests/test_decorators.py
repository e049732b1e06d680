"""What `@singleton_task` accepts and refuses, and what is left of the function."""

import asyncio
import copy
import functools
import inspect
import math
import pickle
from collections.abc import AsyncIterator, Iterator
from datetime import date, timedelta
from typing import Any
from uuid import UUID

import pytest

from django_singlecron import (
    InvalidName,
    InvalidTask,
    RunResult,
    SingletonTask,
    singleton_task,
)
from django_singlecron.models import JobRun
from testproject.billing.cron import send_reminders
from testproject.billing.models import Tenant
from tests.commandline.management.commands import probe, probe_decorated

from .support_core import job_names


@singleton_task
def module_level(tenant_id: int = 7, *, dry_run: bool = False) -> str:
    """Bill one tenant."""
    return f"{tenant_id} {dry_run}"


class Service:
    def __init__(self, rate: int) -> None:
        self.rate = rate

    @singleton_task("service:{tenant_id}")
    def bill(self, tenant_id: int) -> int:
        return self.rate * tenant_id

    @singleton_task
    def handle(self) -> str:
        return "no command"

    @classmethod
    @singleton_task
    def of_class(cls) -> str:
        return cls.__name__

    @staticmethod
    @singleton_task
    def static(number: int) -> int:
        return number


# What may be decorated


def test_bare_and_empty_parentheses_and_options_are_the_same() -> None:
    def job() -> None: ...

    name = f"{__name__}.test_bare_and_empty_parentheses_and_options_are_the_same.<locals>.job"
    for task in (singleton_task(job), singleton_task()(job), singleton_task(record_skips=True)(job)):
        assert isinstance(task, SingletonTask)
        assert task.name == name
        assert task.func is job


def test_options_may_stand_beside_the_function() -> None:
    task = singleton_task(lambda: None, name="job", key=(1, -2), using="other", timeout=1.5, record_skips=False)
    assert task.options.key == (1, -2)
    assert task.options.timeout == timedelta(seconds=1.5)
    assert (task.name, task.using, task.options.record_skips) == ("job", "other", False)


def test_one_decorator_may_decorate_several_functions() -> None:
    decorate = singleton_task("job:{a}")
    first, second = decorate(lambda a: a), decorate(lambda a: -a)
    assert first is not second
    assert first.func(1) == -second.func(1)


def test_a_call_gives_a_result_and_func_the_bare_function(db: None) -> None:
    result = module_level(3, dry_run=True)
    assert result == RunResult("acquired", value="3 True", run_id=result.run_id)
    assert result
    assert module_level.func() == "7 False"
    assert job_names() == [f"{__name__}.module_level"]


def test_functions_keep_what_functools_wraps_keeps() -> None:
    assert module_level.__name__ == module_level.__qualname__ == "module_level"
    assert module_level.__module__ == __name__
    assert module_level.__doc__ == "Bill one tenant."
    assert module_level.__annotations__["tenant_id"] is int
    assert module_level.__wrapped__ is module_level.func
    assert inspect.signature(module_level) == inspect.signature(module_level.func)
    assert str(inspect.signature(Service(1).bill)) == "(tenant_id: int) -> int"
    assert inspect.getdoc(module_level) == "Bill one tenant."
    assert inspect.unwrap(module_level) is module_level.func
    assert repr(module_level) == f"<singleton task '{__name__}.module_level': {__name__}.module_level>"


def test_attributes_of_the_function_do_not_displace_the_task_s_own() -> None:
    def job() -> None: ...

    job.func = job.options = job.name = job._template = job.colour = "mine"  # type: ignore[attr-defined]
    task = singleton_task("job")(job)
    assert (task.name, task.func, task.options.name, task.colour) == ("job", job, "job", "mine")


@pytest.mark.parametrize("task", [module_level, Service.bill, send_reminders, probe_decorated.Command.handle])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickling_is_by_reference(task: Any, protocol: int) -> None:
    assert pickle.loads(pickle.dumps(task, protocol)) is task


def test_copies_are_the_task() -> None:
    assert copy.copy(module_level) is copy.deepcopy(module_level) is module_level


def test_methods(db: None) -> None:
    assert Service(10).bill(3).value == 30
    assert Service.bill(Service(10), tenant_id=4).value == 40
    assert Service.of_class().value == "Service"
    assert Service(1).of_class().value == "Service"
    assert Service.static(5).value == Service(1).static(5).value == 5
    assert isinstance(Service.bill, SingletonTask)
    assert job_names()[:2] == ["service:3", "service:4"]


def test_a_method_called_handle_of_no_command_is_a_method(db: None) -> None:
    assert Service(1).handle().value == "no command"
    assert job_names() == [Service.handle.name] == [f"{__name__}.Service.handle"]


def test_a_lambda_with_a_name(db: None) -> None:
    task = singleton_task("sum:{a}")(lambda a, b=2: a + b)
    assert task(1).value == 3
    assert job_names() == ["sum:1"]


def generator() -> Iterator[int]:
    yield 1


async def asynchronous_generator() -> AsyncIterator[int]:
    yield 1


class Schedule:
    def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (lambda: None, "no name that is the same on every replica"),
        (generator, "is a generator"),
        (asynchronous_generator, "is a generator"),
        (functools.partial(print), "is no function"),
        (functools.lru_cache(generator), "is no function"),
        (staticmethod(print), "put @staticmethod above @singleton_task"),
        (classmethod(print), "put @classmethod above @singleton_task"),
        (property(print), "is no function"),
        (print, "is no function"),
        (dict.get, "is no function"),
        (Service(1).static, "is a singleton task already"),
        (Service(1).bill, "is no function"),
        (Schedule(), "is no function"),
        (Schedule, "is a class, but no BaseCommand"),
        (Service, "is a class, but no BaseCommand"),
        (probe.Command(), "is no function"),
        (module_level, "is a singleton task already"),
        (probe_decorated.Command, "is a singleton task already"),
        (5, "is no function"),
        (b"name", "is no function"),
        (inspect, "is no function"),
    ],
)
def test_what_cannot_run_under_a_lock_is_refused_when_decorated(target: Any, says: str) -> None:
    for decorate in (singleton_task, singleton_task()):
        with pytest.raises(InvalidTask, match=says):
            decorate(target)


def test_a_generator_that_hides_behind_a_function_is_refused_by_the_run(db: None) -> None:
    for make in (generator, asynchronous_generator):
        task = singleton_task("hidden")(lambda: make())  # noqa: B023  # called at once
        with pytest.raises(InvalidTask, match="returned a generator, so none of its code ran"):
            task()
        assert JobRun.objects.latest().status == JobRun.Status.FAILED
    assert list(generator()) == [asyncio.run(anext(asynchronous_generator()))]


def test_a_function_of_the_main_module_needs_a_name() -> None:
    def job() -> None: ...

    job.__module__ = "__main__"
    with pytest.raises(InvalidName, match="no name that is the same"):
        singleton_task(job)
    assert singleton_task("job")(job).name == "job"


def test_a_command_of_the_main_module_needs_a_name() -> None:
    with pytest.raises(InvalidName, match="no name that is the same"):
        singleton_task(type("Command", (probe.Command,), {"__module__": "__main__"}))


# Names


@pytest.mark.parametrize(
    "name", ["O'Brien */ --", "🐘 nightly", "a", "x" * 200, '"; DROP TABLE x; --', "100 %s %d %%", "$1", "\\", "Ünï"]
)
def test_names_are_exact(db: None, name: str) -> None:
    task = singleton_task(name)(lambda: 1)
    assert task().ran
    assert task.name == name
    assert job_names() == [name]


def test_doubled_braces_are_literal(db: None) -> None:
    task = singleton_task("{{literal}} }}{{")(lambda: 1)
    task()
    assert task.name == "{literal} }{"
    assert job_names() == ["{literal} }{"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "is empty"),
        (" \u2003", "is empty"),
        ("x" * 201, "201 characters long"),
        ("x" * 10_000, "10,000 characters long"),
        ("x" * 10_000 + "{a}", "10,000 characters long"),
        ("a\x00b", "control character"),
        ("a\n{a}", "control character"),
        ("\ud800", "control character"),
        ("{missing}", "no argument of"),
        ("{a.b.c}{missing[0]}", "no argument of"),
        ("{}", "Placeholders name one argument"),
        ("{0}", "Placeholders name one argument"),
        ("{a!r}", "without conversions"),
        ("{a!s}", "without conversions"),
        ("{a:{b}}", "Placeholders name one argument"),
        ("{a b}", "Placeholders name one argument"),
        ("{", "malformed"),
        ("}", "malformed"),
        ("{a", "malformed"),
        ("{a!}", "malformed"),
    ],
)
def test_names_that_cannot_name_a_lock_are_refused_when_decorated(name: str, says: str) -> None:
    for decorate in (singleton_task(name), singleton_task(name=name)):
        with pytest.raises(InvalidName, match=says):
            decorate(lambda a, b=1: None)


@pytest.mark.parametrize(
    ("template", "arguments", "name"),
    [
        ("job:{a}", (7,), "job:7"),
        ("job:{a:03d}", (7,), "job:007"),
        ("job:{a:%Y-%m}", (date(2026, 3, 1),), "job:2026-03"),
        ("job:{a[0]}", ((1, 2),), "job:1"),
        ("job:{a.year}", (date(2026, 3, 1),), "job:2026"),
        ("{a}", (UUID(int=0),), "00000000-0000-0000-0000-000000000000"),
        ("{a}", ("O'Brien */ -- {b} %s",), "O'Brien */ -- {b} %s"),
    ],
)
def test_arguments_in_names(db: None, template: str, arguments: tuple[Any, ...], name: str) -> None:
    task = singleton_task(template)(lambda a: a)
    assert task(*arguments).ran
    assert task.name == template
    assert job_names() == [name]


@pytest.mark.parametrize(
    ("template", "value", "says"),
    [
        ("{a:03d}", "seven", "cannot write"),
        ("{a:03d}", None, "cannot write"),
        ("{a:99999999999999999999}", 1, "cannot write"),
        ("{a}", [1], "is a list"),
        ("{a}", object(), "is a object"),
        ("{a.missing}", 1, "which this call does not give"),
        ("{a[9]}", (1,), "which this call does not give"),
        ("{a}", Tenant(), "unsaved Tenant"),
        ("{a}", "x" * 201, "201 characters long"),
        ("{a}", "", "is empty"),
        ("{a}", "\x1b[31m", "control character"),
    ],
)
def test_arguments_that_cannot_name_a_lock_are_refused_before_anything_ran(
    db: None, template: str, value: object, says: str
) -> None:
    ran: list[object] = []
    task = singleton_task(template)(lambda a: ran.append(a))
    with pytest.raises(InvalidName, match=says):
        task(value)
    assert ran == job_names() == []


def test_the_same_call_gives_the_same_key_however_it_is_written(db: None) -> None:
    task = singleton_task("bill:{tenant}:{kind}:{extra}")(lambda tenant, kind="all", *, extra=None: None)
    tenant = Tenant.objects.create(name="Ada", monthly_fee=1)
    for call in (
        lambda: task(tenant),
        lambda: task(tenant.pk),
        lambda: task(str(tenant.pk)),
        lambda: task(tenant, "all"),
        lambda: task(kind="all", tenant=tenant),
        lambda: task(tenant, extra=None),
        lambda: task(Tenant.objects.only("pk").get()),
    ):
        assert call().ran
    assert set(job_names()) == {f"bill:{tenant.pk}:all:None"}
    assert JobRun.objects.values("key").distinct().count() == 1


def test_any_keyword_may_be_in_the_name_of_a_function_that_takes_any(db: None) -> None:
    task = singleton_task("any:{tenant}")(lambda **anything: anything)
    assert task(tenant=3).value == {"tenant": 3}
    with pytest.raises(InvalidName, match=r"needs \{tenant\}"):
        task(other=3)
    assert job_names() == ["any:3"]


def test_wrong_arguments_raise_as_the_function_would_before_anything_ran(db: None) -> None:
    for arguments in ((), (1, 2), ("x",)):
        with pytest.raises(TypeError, match="argument"):
            singleton_task("job")(lambda a, *, b: None)(*arguments)
    assert not JobRun.objects.exists()


# Options


@pytest.mark.parametrize(
    ("timeout", "expected"),
    [
        (None, None),
        (1, timedelta(seconds=1)),
        (0.25, timedelta(milliseconds=250)),
        (timedelta(hours=1), timedelta(hours=1)),
        (timedelta(days=24), timedelta(days=24)),
        (24 * 86400, timedelta(days=24)),
    ],
)
def test_timeouts(timeout: Any, expected: timedelta | None) -> None:
    assert singleton_task("job", timeout=timeout)(lambda: None).options.timeout == expected


@pytest.mark.parametrize(
    "timeout",
    [
        *(0, -1, 1e-9, math.nan, math.inf, -math.inf, 10**400, 24 * 86400 + 1),
        *(True, False, "1h", b"1", [1]),
        *(timedelta(0), timedelta(seconds=-1), timedelta(days=24, microseconds=1), timedelta.max),
    ],
)
def test_timeouts_that_are_none(timeout: Any) -> None:
    with pytest.raises(InvalidTask, match="timeout= is a timedelta or a number of seconds"):
        singleton_task("job", timeout=timeout)


@pytest.mark.parametrize("key", ["hashtextextended", "hashtext", 0, 4242, -(2**63), 2**63 - 1, (-(2**31), 2**31 - 1)])
def test_keys(db: None, key: Any) -> None:
    task = singleton_task("job", key=key)(lambda: None)
    assert task.options.key == key
    assert task().ran


@pytest.mark.parametrize(
    "key", ["md5", "", None, True, 1.0, 2**63, -(2**63) - 1, (1,), (1, 2, 3), (1, 2**31), (1, True), [1, 2], ("a", "b")]
)
def test_keys_that_are_none(key: Any) -> None:
    with pytest.raises(InvalidTask, match="is not a lock key"):
        singleton_task("job", key=key)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": 5}, "name is text; 5 is a int"),
        ({"name": b"job"}, "name is text"),
        ({"using": ""}, "is not the alias of a database"),
        ({"using": 3}, "is not the alias of a database"),
        ({"record_skips": 1}, "is neither True nor False"),
        ({"record_skips": "no"}, "is neither True nor False"),
    ],
)
def test_options_of_the_wrong_type(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidTask, match=says):
        singleton_task(**options)


def test_two_names_are_refused() -> None:
    with pytest.raises(InvalidTask, match="has two names, 'a' and 'b'"):
        singleton_task("a", name="b")


def test_unknown_options_are_refused() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'time_out'"):
        singleton_task(time_out=3)


def test_options_follow_the_settings_where_they_are_not_given(settings: Any) -> None:
    task = singleton_task("job")(lambda: None)
    assert task.using == "default"
    settings.SINGLECRON = {"DATABASE": "other"}
    assert task.using == "other"
    assert singleton_task("job", using="default")(lambda: None).using == "default"
