"""The job's own code: called, awaited where it is a coroutine, and looked at when it is back."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from asgiref.sync import async_to_sync

from .calls import Call
from .capture import CapturedLogging
from .context import RunContext, run_context
from .exceptions import InvalidTask
from .interrupts import Deadline


def call_body(call: Call, context: RunContext, deadline: Deadline | None) -> tuple[Any, SystemExit | None]:
    """Run the job's code, to its end if it is a coroutine; meanwhile `current_run()` is the context's run.

    What it logs goes to the run's tail. Returns what it returned, and the `sys.exit(0)` by which it ended, a way to
    succeed, to go on outward after the commit. Raises whatever else it raises.
    """
    pid = os.getpid()
    outside = run_context.set(context)
    try:
        with CapturedLogging():
            value = call.body(context.tail)
            if inspect.iscoroutine(value):
                value = async_to_sync(_await)(value, deadline)
    except SystemExit as error:
        # As the interpreter reads it: only an integer is a code.
        succeeded = error.code is None or (isinstance(error.code, int) and error.code == 0)
        if not succeeded or os.getpid() != pid:
            raise
        return None, error
    finally:
        run_context.reset(outside)
    if inspect.isgenerator(value) or inspect.isasyncgen(value):
        raise InvalidTask(f'The job "{call.job}" returned a generator, so none of its code ran.')
    if hasattr(type(value), "__await__"):
        raise InvalidTask(
            f'The job "{call.job}" returned a {type(value).__name__}, which waits to be awaited. Let it be a coroutine '
            "function, or await that."
        )
    return value, None


async def _await(coroutine: Coroutine[Any, Any, Any], deadline: Deadline | None) -> Any:
    task = asyncio.current_task()
    if deadline is not None and task is not None:
        deadline.interrupt_with(partial(_cancel, task, asyncio.get_running_loop()))
    return await coroutine


def _cancel(task: asyncio.Task[Any], loop: asyncio.AbstractEventLoop) -> None:
    # A loop that is closed by now has ended the coroutine.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(task.cancel)
