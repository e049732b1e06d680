"""The examinations, in their order, and how they are made: none hides another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from django.db import Error

from .. import registry
from . import limits, locks, records, server
from .report import Line, Report, Status, Unsound, Verdict, failed, not_made
from .stack import TOTAL_SECONDS, NoAnswer, Stack, advice_on, reason_of


class Examination(NamedTuple):
    """One thing to prove. Ids are stable, and listed in `docs/doctor.md`."""

    id: str
    make: Callable[[Stack], Verdict]
    needs: tuple[str, ...] = ()
    """The ids of those without which it cannot be made."""


EXAMINATIONS = (
    Examination("locking", server.locking),
    Examination("tasks", server.tasks),
    Examination("connection", server.connection),
    Examination("pooler", server.pooler, ("connection",)),
    Examination("prepared", server.prepared, ("pooler",)),
    Examination("primary", server.primary, ("connection",)),
    Examination("lock.excludes", locks.excludes, ("pooler",)),
    Examination("lock.commit", locks.free_after_commit, ("lock.excludes",)),
    Examination("lock.rollback", locks.free_after_rollback, ("lock.excludes",)),
    Examination("lock.killed", locks.free_after_kill, ("lock.excludes",)),
    Examination("lock.transactions", locks.survives_transactions, ("lock.excludes",)),
    Examination("history.migrated", records.migrated, ("pooler",)),
    Examination("history.database", records.in_place, ("lock.excludes", "history.migrated")),
    Examination("history.writable", records.writable, ("pooler", "history.migrated")),
    Examination("history.slots", records.slots, ("history.writable",)),
    Examination("timeouts", limits.timeouts, ("pooler", "history.migrated")),
    Examination("keepalive.server", limits.of_server, ("pooler",)),
    Examination("keepalive.client", limits.of_client, ("connection",)),
    Examination("clock", server.clock, ("connection",)),
    Examination("connections", server.room, ("connection",)),
)


def examine(alias: str, accepted: Collection[str] = ()) -> Report:
    """Make every examination of a database. Never raises because of its state.

    Arguments: `accepted`, the ids of those whose warnings do not count.
    """
    failures = registry.autodiscover()
    keys = [task.options.key for task in registry.tasks() if task.using == alias]
    algorithms = {key if isinstance(key, str) else "pair" if isinstance(key, tuple) else "integer" for key in keys}
    stack = Stack(alias, algorithms, failures)
    try:
        lines = list(_examine(stack))
    finally:
        stack.close()
    return Report(alias, lines, stack.seconds, accepted)


def _examine(stack: Stack) -> Iterator[Line]:
    unproved: set[str] = set()
    for examination in EXAMINATIONS:
        verdict = _make(examination, stack, unproved)
        if verdict.status in (Status.FAILED, Status.NOT_MADE):
            unproved.add(examination.id)
            # Whatever state they are in: the next examination gets new ones.
            stack.close()
        yield Line(examination.id, verdict)


def _make(examination: Examination, stack: Stack, unproved: Collection[str]) -> Verdict:
    lacking = [need for need in examination.needs if need in unproved]
    if lacking:
        return not_made(f"It needs {lacking[0]}, which is not proved: mend that first.")
    if stack.seconds > TOTAL_SECONDS:
        return not_made(f"The {TOTAL_SECONDS:g} s for all of them were over: mend what takes so long.")
    try:
        return examination.make(stack)
    except Unsound as unsound:
        return unsound.verdict
    except (Error, NoAnswer) as error:
        return failed(f"The database did not let it be examined: {reason_of(error)}.", advice_on(error))
    except Exception as error:
        return failed(
            f"The examination broke down: {type(error).__name__}: {reason_of(error)}.",
            "What it examines is not proved. Report it as a bug of django-singlecron.",
        )
