"""Read by type checkers, never run: what the public names look like from a user's code."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import BaseCommand
from typing_extensions import assert_type

from django_singlecron import Run, RunResult, SingletonTask, current_run, singleton_task


@singleton_task
def bare(tenant_id: int, *, dry_run: bool = False) -> str:
    return ""


@singleton_task("bill:{tenant_id}", key="hashtext", using="default", timeout=timedelta(hours=1), record_skips=False)
def named(tenant_id: int) -> None: ...


@singleton_task(timeout=30, key=(1, 2), http=True)
async def coroutine(tenant_id: int) -> bytes:
    return b""


@singleton_task
class Command(BaseCommand):
    def extra(self) -> int:
        return 1


class OtherCommand(BaseCommand):
    @singleton_task
    def handle(self, *args: Any, **options: Any) -> str | None:
        return None


class Service:
    @singleton_task("service:{tenant_id}")
    def bill(self, tenant_id: int) -> float:
        return 0.0


assert_type(bare(1, dry_run=True), RunResult[str])
assert_type(bare(1).value, str | None)
assert_type(named(tenant_id=1), RunResult[None])
coroutine_call: Coroutine[Any, Any, RunResult[bytes]] = coroutine(1)
assert_type(Command(), Command)
assert_type(Command().extra(), int)
said: str | None = OtherCommand().handle()
assert_type(Service().bill(1), RunResult[float])
assert_type(bare.func, Callable[..., Any])
assert_type(bare.name, str)

bare("one")  # type: ignore[arg-type]
bare(1, dry=True)  # type: ignore[call-arg]
singleton_task(timeout="1h")  # type: ignore[call-overload]
singleton_task(key="md5")  # type: ignore[call-overload]


def read(task: SingletonTask[[int], RunResult[str]]) -> None:
    run: Run | None = current_run()
    if run is not None:
        assert_type(run.started_at, datetime)
        assert_type(run.token, int | None)
    assert_type(task(1).ran, bool)
