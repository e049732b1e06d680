"""That the history can be kept: its tables are there, in the database of the lock, and take what runs write."""

from __future__ import annotations

import pkgutil
import secrets
from importlib import import_module

from django.db import Error, IntegrityError
from django.db.migrations.loader import MigrationLoader

from ..attempts import Attempt
from ..calls import Call
from ..database import sqlstate
from ..history import ID_SEQUENCE, TABLE
from ..keys import LockKey
from ..locks.postgres import PostgresLock
from ..models import JobRun, JobWatch
from ..opening import opening_statement
from .report import Verdict, failed, passed, warning
from .stack import Stack, advice_on, reason_of

_APP = "django_singlecron"

_APPLIED = "SELECT name FROM django_migrations WHERE app = %s"

# What the name stands for: a table of this database, whose lock is held meanwhile, or something that only looks so.
_PLACE = f"""
SELECT relation.relkind::text, relation.relpersistence::text,
       (SELECT bool_and(held.database = base.oid) FROM pg_locks AS held
        WHERE held.locktype = 'advisory' AND held.pid = pg_backend_pid())
FROM pg_class AS relation, pg_database AS base
WHERE relation.oid = '{TABLE}'::regclass AND base.datname = current_database()
"""  # noqa: S608  # of constants alone

# Each row has a number of its own choice, below all that the sequence gives: nothing is taken from that.
_INSERT = f"""
INSERT INTO {TABLE} (id, job, outcome, status, host, pid, trigger, slot, started_at)
VALUES (%s, %s, 'acquired', %s, '', 0, 'function', '2000-01-01 00:00:00+00', clock_timestamp())
"""  # noqa: S608  # of constants alone
_UPDATE = f"UPDATE {TABLE} SET status = 'succeeded', finished_at = clock_timestamp() WHERE id = %s RETURNING id"  # noqa: S608
_DELETE = f"DELETE FROM {TABLE} WHERE id = %s RETURNING id"  # noqa: S608

# The newest number in the table and the newest that the sequence gave, which restores may leave behind.
_SEQUENCE = f"""
SELECT to_regclass({ID_SEQUENCE}) IS NOT NULL, may.draw,
       coalesce(CASE WHEN may.draw THEN pg_sequence_last_value(to_regclass({ID_SEQUENCE})) END, 0),
       coalesce((SELECT max(id) FROM {TABLE}), 0)
FROM (SELECT coalesce(has_sequence_privilege(to_regclass({ID_SEQUENCE}), 'USAGE'), false) AS draw) AS may
"""  # noqa: S608  # of constants alone


def migrated(stack: Stack) -> Verdict:
    """Every migration of the app is applied, and the tables have the columns that runs write."""
    migrate = f"Run: manage.py migrate {_APP} --database {stack.alias}"
    wanted = _migrations()
    try:
        applied: set[str] | None = {name for (name,) in stack.first.read(_APPLIED, [_APP])}
    except Error as error:
        if sqlstate(error) not in ("42P01", "42501"):
            raise
        # A role that runs jobs need not be the one that migrates.
        applied = None if sqlstate(error) == "42501" else set()
    if applied is not None and (missing := sorted(wanted - applied)):
        return failed(f"The history is not migrated: {', '.join(missing)} not applied.", migrate)
    for model in (JobRun, JobWatch):
        columns = ", ".join(f'"{field.column}"' for field in model._meta.concrete_fields)
        try:
            stack.first.read(f'SELECT {columns} FROM "{model._meta.db_table}" LIMIT 0')  # noqa: S608
        except Error as error:
            if sqlstate(error) not in ("42P01", "42703"):
                raise
            return failed(
                f"The history is not as its migrations leave it: {reason_of(error)}.",
                f"Look whether a database router or the search_path hides it. {migrate}",
            )
    if applied is None:
        return warning(
            "The history has its tables and columns, but the role may not read which migrations are applied.",
            "GRANT SELECT ON django_migrations to the role.",
        )
    return passed(f"The history is migrated ({len(wanted)} migrations).")


def _migrations() -> set[str]:
    """Return the names of the app's migrations, as Django looks for them; none where the settings switch them off."""
    module, _ = MigrationLoader.migrations_module(_APP)
    if module is None:
        return set()
    return {name for _, name, _ in pkgutil.iter_modules(import_module(module).__path__) if name[0] not in "_~"}


def in_place(stack: Stack) -> Verdict:
    """The history is a table of the database that the lock is in."""
    with stack.first.rolled_back(stack.first.acquire(stack.keys()[0])):
        kind, persistence, same_database = stack.first.row(_PLACE)
    if kind not in ("r", "p") or persistence == "t" or not same_database:
        return failed(
            f'"{TABLE}" is no table of the database that the lock is in, but a view, a foreign or a temporary table.',
            "Lock and history must be in one database. Remove what has its name, and migrate.",
        )
    if persistence == "u":
        return warning(
            "The history is unlogged: after a crash of the server it is empty, and every slot is open again.",
            f"ALTER TABLE {TABLE} SET LOGGED",
        )
    return passed("The history is a table of the database that the lock is in.")


def writable(stack: Stack) -> Verdict:
    """The role may write what runs write: shown by rows that are rolled back."""
    session = stack.first
    run_id, job = -1 - secrets.randbits(62), "django_singlecron.doctor"
    call = Call(
        job=job,
        key=LockKey("hashtextextended", (job,)),
        using=stack.alias,
        timeout=None,
        record_skips=True,
        arguments="",
        trigger=JobRun.Trigger.FUNCTION,
        command="",
        body=lambda tail: None,
    )
    statement = opening_statement(Attempt(call), PostgresLock())
    session.begin()
    try:
        session.rows(_INSERT, [run_id, job, "running"])
        changed = session.rows(_UPDATE, [run_id])
        removed = session.rows(_DELETE, [run_id])
        # The statement that opens an attempt, as far as it goes without drawing a number.
        session.rows(f"EXPLAIN {statement.text}", statement.parameters)
    except Error as error:
        return failed(f"The history cannot be written: {reason_of(error)}.", advice_on(error))
    session.rollback()
    if not (changed and removed):
        return failed(
            "The history swallows what is written to it: a row was not there to be changed and removed.",
            f"Remove the trigger, rule or policy on {TABLE} that does that.",
        )
    ((exists, may_draw, drawn, newest),) = session.read(_SEQUENCE)
    if not exists:
        return failed(f"The sequence {ID_SEQUENCE} is missing.", f"Restore it, as the owner of {TABLE}.")
    if not may_draw:
        return warning(
            f"The role has no USAGE on the sequence {ID_SEQUENCE}, so runs have no tokens.",
            f"GRANT USAGE ON SEQUENCE {ID_SEQUENCE.strip(chr(39))} to the role.",
        )
    if drawn < newest:
        return failed(
            f"The sequence of the history is at {drawn}, behind its newest row, {newest}: attempts fail until it has "
            "passed it.",
            f"SELECT setval({ID_SEQUENCE}, {newest})",
        )
    return passed("The history can be written; what was written to try it is rolled back.")


def slots(stack: Stack) -> Verdict:
    """A second success of one slot is refused: shown by rows that are rolled back."""
    session = stack.first
    run_id, job = -1 - secrets.randbits(62), f"django_singlecron.doctor/{secrets.token_hex(16)}"
    session.begin()
    session.rows(_INSERT, [run_id, job, "succeeded"])
    try:
        session.rows(_INSERT, [run_id - 1, job, "succeeded"])
    except IntegrityError:
        session.rollback()
        return passed("A second success of one slot is refused by the history.")
    session.rollback()
    return failed(
        "The history takes two successes of one slot: its unique index singlecron_slot is missing or invalid.",
        f"CREATE UNIQUE INDEX singlecron_slot ON {TABLE} (job, slot) WHERE slot IS NOT NULL AND status = 'succeeded'",
    )
