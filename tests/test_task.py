"""What a decorated function or command is, and what its calls give."""

import asyncio
from collections.abc import Coroutine
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.core.management import call_command
from django.core.management.base import AppCommand, BaseCommand, LabelCommand, no_translations
from django.db import connections

from django_singlecron import (
    InvalidSlot,
    InvalidTask,
    RunResult,
    SingletonTask,
    current_run,
    registry,
    singleton_task,
)
from django_singlecron.models import JobRun
from testproject.billing.cron import send_reminders
from tests.commandline.management.commands import probe

from .support_core import job_names

# Coroutine functions


async def closing(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Await, then close the connection of the thread in which the run was."""
    try:
        return await coroutine
    finally:
        await sync_to_async(connections.close_all)()


def test_a_coroutine_function_is_awaited_under_its_lock(transactional_db: None) -> None:
    @singleton_task("async:{number}")
    async def job(number: int) -> str:
        await asyncio.sleep(0)
        run = current_run()
        assert run is not None
        return f"{run.name} {number}"

    assert job.is_async
    assert iscoroutinefunction(job)
    assert not send_reminders.is_async
    assert not iscoroutinefunction(send_reminders)
    result = asyncio.run(closing(job(2)))
    assert result.value == "async:2 2"
    assert JobRun.objects.get().status == JobRun.Status.SUCCEEDED


def test_a_method_may_be_a_coroutine_function(transactional_db: None) -> None:
    class Fetcher(BaseCommand):
        @singleton_task("fetch")
        async def fetch(self) -> int:
            return 4

        def handle(self, *args: Any, **options: Any) -> str:
            result = async_to_sync(self.fetch)()
            assert isinstance(result, RunResult)
            return str(result.value)

    assert call_command(Fetcher(), verbosity=0) == "4"


def test_a_coroutine_function_that_fails(transactional_db: None) -> None:
    @singleton_task("async")
    async def job() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(closing(job()))
    assert JobRun.objects.get().status == JobRun.Status.FAILED


def test_a_function_that_returns_a_coroutine_is_awaited(db: None) -> None:
    async def inner() -> int:
        return 3

    assert singleton_task("returns")(lambda: inner())().value == 3


def test_a_coroutine_function_as_handle_is_refused() -> None:
    async def handle(self: Any, *args: Any, **options: Any) -> None: ...

    with pytest.raises(InvalidTask, match="commands are not awaited"):
        singleton_task(type("Command", (BaseCommand,), {"handle": handle}))
    # Python before 3.12 puts what __set_name__ raises into a RuntimeError.
    with pytest.raises((InvalidTask, RuntimeError)) as raised:
        type("Command", (BaseCommand,), {"handle": singleton_task("name")(handle)})
    assert "commands are not awaited" in str(raised.value) + str(raised.value.__cause__)


# Commands


def make_command(base: type[BaseCommand], module: str = "shop.management.commands.restock", **members: Any) -> Any:
    return type("Command", (base,), {"__module__": module, **members})


def test_a_decorated_class_is_the_class_and_its_parent_is_left_alone() -> None:
    class Command(probe.Command):
        pass

    assert singleton_task(Command) is Command
    assert isinstance(Command.handle, SingletonTask)
    assert Command.handle.func is probe.Command.handle
    assert not isinstance(probe.Command.handle, SingletonTask)


def test_a_decorated_class_may_have_options(db: None) -> None:
    command = singleton_task("probe:{action}", key="hashtext")(make_command(probe.Command))
    call_command(command(), "return", "said", verbosity=0)
    assert job_names() == ["probe:return"]


def test_a_decorated_handle_and_a_decorated_class_are_the_same(db: None) -> None:
    @singleton_task
    def handle(self: Any, *args: Any, **options: Any) -> str:
        return "said"

    by_handle = make_command(BaseCommand, handle=handle)
    by_class = singleton_task(make_command(BaseCommand, handle=handle.func))
    for command in (by_handle, by_class):
        assert call_command(command()) == "said"
        assert command.handle.name == "restock"
    assert job_names() == ["restock", "restock"]


def test_a_command_that_inherits_a_decorated_handle_has_a_name_of_its_own(db: None) -> None:
    parent = singleton_task(make_command(probe.Command))
    call_command(make_command(parent, "shop.management.commands.reorder")(), "return", "x")
    call_command(parent(), "return", "x")
    assert job_names() == ["reorder", "restock"]


def test_a_handle_may_come_from_a_mixin_or_be_assigned(db: None) -> None:
    class Mixin:
        @singleton_task
        def handle(self, *args: Any, **options: Any) -> str:
            return "mixed in"

    assert call_command(type("Command", (Mixin, BaseCommand), {"__module__": "shop.mixed"})()) == "mixed in"
    assigned = make_command(BaseCommand)
    assigned.handle = singleton_task("assigned")(lambda self, **options: "assigned")
    assert call_command(assigned()) == "assigned"
    assert job_names() == ["mixed", "assigned"]


def test_a_handle_that_calls_its_parents_decorated_one(db: None) -> None:
    parent = singleton_task(make_command(probe.Command))

    def handle(self: Any, *args: Any, **options: Any) -> str:
        return super(child, self).handle(*args, **options) + "!"

    child = make_command(parent, "shop.management.commands.reorder", handle=handle)
    assert call_command(child(), "return", "said") == "said!"
    assert job_names() == ["reorder"]


def test_label_and_app_commands_are_named_after_themselves(db: None) -> None:
    labels = singleton_task(
        make_command(LabelCommand, "shop.relabel", handle_label=lambda self, label, **options: label.upper())
    )
    app = singleton_task(
        make_command(AppCommand, "shop.audit", handle_app_config=lambda self, config, **options: config.label)
    )
    assert call_command(labels(), "a", "b") == "A\nB"
    assert call_command(app(), "billing") == "billing"
    assert job_names() == ["relabel", "audit"]
    assert [labels.handle.name, app.handle.name] == ["relabel", "audit"]
    assert JobRun.objects.first().arguments == "args=('a', 'b')"


def test_a_handle_under_another_decorator_is_named_after_its_command(db: None) -> None:
    @no_translations
    def handle(self: Any, *args: Any, **options: Any) -> str:
        return "untranslated"

    by_class = singleton_task(make_command(BaseCommand, handle=handle))
    by_handle = make_command(BaseCommand, "shop.other", handle=singleton_task(handle))
    assert call_command(by_class()) == call_command(by_handle()) == "untranslated"
    assert job_names() == ["restock", "other"]
    assert {by_class.handle, by_handle.handle} <= set(registry.tasks())


@pytest.fixture(autouse=True)
def _registry_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))


def test_other_methods_of_a_command_are_methods(db: None) -> None:
    class Command(BaseCommand):
        @singleton_task("step:{number}")
        def step(self, number: int) -> str:
            return f"step {number}"

        def handle(self, *args: Any, **options: Any) -> str:
            result = self.step(2)
            assert isinstance(result, RunResult)
            return result.value

    assert call_command(Command()) == "step 2"
    assert singleton_task("given")(lambda command: command)(Command()).run_id
    assert job_names() == ["step:2", "given"]


# Slots


def test_run_is_a_call_that_may_be_forced_or_given_a_slot(db: None) -> None:
    task = singleton_task("closing:{month}", once_per="day")(lambda month, force=None: (month, force))
    assert task.run(1).value == (1, None)
    assert task.run(1).outcome == "skipped"
    assert task.run(1, force=True).value == (1, None)
    yesterday = datetime.now(timezone.utc).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)
    assert task.run(month=1, slot=yesterday).ran
    assert task.run(1, slot=yesterday.replace(tzinfo=None)).outcome == "skipped"
    with pytest.raises(InvalidSlot, match=r"is no slot of the job .* The nearest are .* and "):
        task.run(1, slot=yesterday + timedelta(hours=1))
    with pytest.raises(InvalidSlot, match="has no slots: it has neither once_per= nor schedule="):
        singleton_task("slotless")(lambda: None).run(slot=yesterday)
    assert JobRun.objects.count() == 5


def test_a_keyword_may_be_called_self(db: None) -> None:
    task = singleton_task("named")(lambda **named: named)
    assert task(self=1).value == {"self": 1}
