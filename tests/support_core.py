"""What the tests of the run's own modules share: second sessions, more aliases, small jobs, simple questions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from asgiref.sync import sync_to_async
from django.core.management import call_command
from django.db import connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import load_backend

from django_singlecron import SingletonTask, registry, singleton_task
from django_singlecron.models import JobRun
from testproject.billing.models import Tenant

T = TypeVar("T")

WAIT = 10

TAKES_LOCK = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"
"""How that begins by which a run takes its lock: a message, or with psycopg2 the first of three."""

# Jobs commit, as in production. Flushing the tables of these apps alone takes a fraction of the time.
real_database = pytest.mark.django_db(transaction=True, available_apps=["django_singlecron", "testproject.billing"])


@dataclass
class Session:
    """A connection of its own to the database, as another process would have it."""

    connection: BaseDatabaseWrapper

    def execute(self, sql: str, *parameters: Any) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(sql, parameters or None)

    def one(self, sql: str, *parameters: Any) -> Any:
        """Return the first column of the first row."""
        with self.connection.cursor() as cursor:
            cursor.execute(sql, parameters or None)
            return cursor.fetchone()[0]


@contextmanager
def session(alias: str = "default") -> Iterator[Session]:
    connection = connections[alias].copy()
    try:
        yield Session(connection)
    finally:
        connection.close()


@contextmanager
def database_alias(alias: str, **changes: Any) -> Iterator[str]:
    """Add an alias in this thread, whose settings are those of the test database with `changes`."""
    settings = {**connections["default"].settings_dict, **changes}
    connections[alias] = load_backend(settings["ENGINE"]).DatabaseWrapper(settings, alias)
    try:
        yield alias
    finally:
        connections[alias].close()
        del connections[alias]


@contextmanager
def sqlite(directory: Path, *, migrated: bool = True) -> Iterator[str]:
    """Give an alias of an SQLite database in a file: Django never closes one in memory."""
    lite = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(directory / "lite"), "OPTIONS": {}}
    with database_alias("lite", **lite) as alias:
        if migrated:
            call_command("migrate", database=alias, verbosity=0)
        yield alias


@contextmanager
def role(name: str, *statements: str, **options: str) -> Iterator[str]:
    """Make a role, run `statements` for it, and give an alias whose sessions are of that role."""
    with session() as owner:
        owner.execute(f"CREATE ROLE {name}")
        try:
            for statement in statements:
                owner.execute(statement)
            with database_alias(name, OPTIONS={"options": f"-c role={name}"}) as alias:
                yield alias
        finally:
            owner.execute(f"DROP OWNED BY {name}")
            owner.execute(f"DROP ROLE {name}")


def job_names() -> list[str]:
    """Return the jobs of all attempts, in their order."""
    return list(JobRun.objects.order_by("id").values_list("job", flat=True))


def job(function: Callable[..., Any], name: str = "job", **options: Any) -> SingletonTask[Any, Any]:
    task: SingletonTask[Any, Any] = singleton_task(name, **options)(function)
    # A function of a module would be a task of the project from here on, for every test.
    registry._tasks.pop(f"{task.__module__}.{task.__qualname__}", None)
    return task


def write(name: str = "written", using: str = "default") -> None:
    """Do a job's work."""
    Tenant.objects.using(using).create(name=name, monthly_fee=1)


def written(using: str = "default") -> list[str]:
    """Return the work that is committed, or seen by this connection's transaction."""
    return list(Tenant.objects.using(using).order_by("name").values_list("name", flat=True))


def is_free(name: str = "job") -> bool:
    """Whether another session could have the job's lock."""
    with session() as other:
        free: bool = other.one("SELECT pg_try_advisory_xact_lock(hashtextextended(%s, 0))", name)
    return free


def the_run() -> JobRun:
    """Return the one attempt that there is."""
    return JobRun.objects.get()


def sql(statement: str, *parameters: Any) -> None:
    """Send a statement on this thread's connection."""
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters or None)


def setting(name: str, using: str = "default") -> str | None:
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT current_setting(%s, true)", [name])
        value: str | None = cursor.fetchone()[0]
    return value


def run_async(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine, and close the connections of the thread that its database work was done in."""

    async def run() -> T:
        try:
            return await coroutine
        finally:
            await sync_to_async(connections.close_all)()

    return asyncio.run(run())


@contextmanager
def changed(do: str, undo: str) -> Iterator[None]:
    """Let another session send one statement before the block, and another after it."""
    with session() as owner:
        owner.execute(do)
        try:
            yield
        finally:
            owner.execute(undo)


@contextmanager
def before_statement(start: str, *interfere: Callable[[], Any]) -> Iterator[None]:
    """Call `interfere` right before the connection sends statements that begin with `start`, the n-th before the n-th.

    Fails when there were fewer.
    """
    todo = list(interfere)

    def wrapper(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.strip().startswith(start) and todo:
            todo.pop(0)()
        return execute(sql, params, many, context)

    with connection.execute_wrapper(wrapper):
        yield
    assert not todo


@contextmanager
def trigger(when: str, body: str) -> Iterator[None]:
    """Let the server do `body` (PL/pgSQL) when the history's rows change; `counter` is a sequence to count with."""
    with session() as owner:
        owner.execute("CREATE SEQUENCE counter")
        owner.execute(f"CREATE FUNCTION interfere() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$")
        owner.execute(
            f"CREATE TRIGGER interfere {when} ON django_singlecron_jobrun FOR EACH ROW EXECUTE FUNCTION interfere()"
        )
        try:
            yield
        finally:
            owner.execute("DROP FUNCTION interfere CASCADE; DROP SEQUENCE counter")
