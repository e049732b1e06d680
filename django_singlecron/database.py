"""How statements are sent: together, and again where that helps; and what a failure means for the user."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar, cast

from django.conf import settings
from django.db import Error, IntegrityError, InterfaceError, OperationalError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.functions import Now
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from . import capture
from .exceptions import DatabaseUnavailable, HistoryNotMigrated, PermissionRefused, ReadOnlyDatabase, RunRefused

T = TypeVar("T")

# serialization_failure and deadlock_detected, which a project's stricter default isolation level can bring about.
TRY_AGAIN = ("40001", "40P01")
TRIES = 5


class Sql(NamedTuple):
    """A piece of SQL, made of constants alone, and the values of its placeholders in order."""

    text: str
    parameters: Sequence[str | int | bool | datetime | list[int] | None] = ()


READ_COMMITTED = Sql("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")


def clock(connection: BaseDatabaseWrapper) -> datetime:
    """Return the time by the database's clock; by this process's where the database has none of its own.

    With a time zone, also in a project that has `USE_TZ` off.
    """
    if connection.vendor != "postgresql":
        return aware(timezone.now())

    def ask() -> datetime:
        with connection.cursor() as cursor:
            cursor.execute("SELECT clock_timestamp()")
            now: datetime = cursor.fetchone()[0]
        return now

    return aware(reconnecting(connection, ask))


def aware(moment: datetime) -> datetime:
    """Return a moment as the database gave it with a time zone, which it lacks when the project has `USE_TZ` off."""
    return timezone.make_aware(moment, timezone.get_default_timezone()) if timezone.is_naive(moment) else moment


def from_json(connection: BaseDatabaseWrapper, text: str) -> datetime:
    """Return a moment that PostgreSQL wrote into JSON as it gives one by itself."""
    # Python 3.10's own datetime.fromisoformat() does not read all fractions of a second.
    moment = cast("datetime", parse_datetime(text))
    if settings.USE_TZ:
        return moment.astimezone(connection.timezone)
    return timezone.make_naive(moment, timezone.get_default_timezone())


def storable(connection: BaseDatabaseWrapper, moment: datetime) -> datetime:
    """Return a moment as the database takes it."""
    if settings.USE_TZ or connection.vendor == "postgresql":
        return moment
    return timezone.make_naive(moment)


def read_committed(connection: BaseDatabaseWrapper) -> None:
    """Make the transaction that just began READ COMMITTED."""
    with connection.cursor() as cursor:
        cursor.execute(READ_COMMITTED.text)


def fetch_all(connection: BaseDatabaseWrapper, statement: Sql) -> list[tuple[Any, ...]]:
    """Return a statement's rows; it is sent again where that helps."""

    def fetch() -> list[tuple[Any, ...]]:
        with connection.cursor() as cursor:
            cursor.execute(statement.text, statement.parameters)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows

    def send() -> list[tuple[Any, ...]]:
        return try_again(connection, fetch)

    # One that is only opened now is not stale: should it die, another would too.
    return send() if connection.connection is None else reconnecting(connection, send)


def send_together(connection: BaseDatabaseWrapper, *statements: Sql, asked: int) -> tuple[Any, ...]:
    """Send several statements to PostgreSQL, in one message if possible.

    Returns the first row of the one at the index `asked`.
    """
    # The driver is there where the database is PostgreSQL.
    from django.db.backends.postgresql.psycopg_any import is_psycopg3

    with connection.cursor() as cursor:
        if is_psycopg3 and hasattr(cursor, "mogrify"):
            # The driver puts the values into the text.
            cursor.execute(
                ";\n".join([statement.text for statement in statements]),
                [value for statement in statements for value in statement.parameters],
            )
            for _ in range(asked):
                cursor.nextset()
            return cast("tuple[Any, ...]", cursor.fetchone())
        # psycopg2 keeps the answer of a message's last statement alone, and a message whose values stand apart from its
        # text, or that is prepared, holds a single statement.
        answers: list[tuple[Any, ...]] = []
        for statement in statements:
            cursor.execute(*statement)
            answers.append(cursor.fetchone() if cursor.description else ())
    return answers[asked]


def now(connection: BaseDatabaseWrapper) -> Now | datetime:
    """Return what stores the present moment, by the clock that `clock` tells.

    SQLite's own gives UTC also in a project that has `USE_TZ` off, which reads it as local time.
    """
    return Now() if connection.vendor == "postgresql" else storable(connection, clock(connection))


def reconnecting(connection: BaseDatabaseWrapper, operation: Callable[[], T]) -> T:
    """Do `operation`, once more on a new connection when the one that was open turns out dead."""
    try:
        return operation()
    except (OperationalError, InterfaceError):
        if connection.in_atomic_block or connection.connection is None or connection.is_usable():
            raise
    connection.close()
    return operation()


def try_again(connection: BaseDatabaseWrapper, operation: Callable[[], T]) -> T:
    """Do `operation` in a transaction of its own, again when the server asks for that."""
    for _ in range(TRIES - 1):
        try:
            return operation()
        except OperationalError as error:
            if connection.in_atomic_block or sqlstate(error) not in TRY_AGAIN:
                raise
    with transaction.atomic(using=connection.alias):
        if connection.vendor == "postgresql":
            read_committed(connection)
        return operation()


def sqlstate(error: BaseException) -> str | None:
    """Return PostgreSQL's code of an error, whichever driver reported it."""
    cause = error.__cause__
    return getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)


def violates(error: IntegrityError, constraint: str) -> bool:
    """Whether an error is of this constraint of the history's; SQLite, which does not name it, is believed."""
    diagnosis = getattr(error.__cause__, "diag", None)
    return diagnosis is None or diagnosis.constraint_name == constraint


def refusal(error: Error, job: str, alias: str) -> RunRefused:
    """Say what a failed first statement means for the user."""
    code = sqlstate(error)
    # On one line, as a cron mail and a CommandError show it.
    reason = " ".join(capture.error_message(error).split())
    nothing_ran = f'The job "{job}" did not run'
    if code in ("42P01", "42703") or "no such table" in reason:
        return HistoryNotMigrated(
            f'{nothing_ran}: its history is not migrated in the database "{alias}". '
            f"Run: manage.py migrate django_singlecron --database {alias}"
        )
    if code == "25006":
        return ReadOnlyDatabase(
            f'{nothing_ran}: the database "{alias}" refuses writes (a standby, or read-only mode). '
            "Point it, or using=, at the primary."
        )
    if code == "42501":
        return PermissionRefused(
            f'{nothing_ran}: the role of the database "{alias}" may not write its history ({reason}). '
            f"Grant it SELECT, INSERT, UPDATE, DELETE on django_singlecron_jobrun and USAGE on its sequence."
        )
    if "statement pooling" in reason:
        return RunRefused(
            f'{nothing_ran}: the database "{alias}" is behind PgBouncer in statement mode, where there are no '
            "transactions, and so no lock that lasts. Set pool_mode = transaction for it."
        )
    if isinstance(error, OperationalError | InterfaceError):
        return DatabaseUnavailable(f'{nothing_ran}: the database "{alias}" cannot be reached or used: {reason}')
    return RunRefused(f'{nothing_ran}: the database "{alias}" refused the attempt: {reason}')
