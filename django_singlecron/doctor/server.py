"""What answers under the alias: a PostgreSQL primary, through a pooler or not, with room, and with which clock."""

from __future__ import annotations

import time

from django.core.exceptions import ImproperlyConfigured
from django.db import Error, connections
from django.utils.connection import ConnectionDoesNotExist

from .. import registry
from ..conf import SETTING, get_settings
from .locks import ONE_CONNECTION
from .report import Verdict, failed, passed, warning
from .stack import NoAnswer, Stack, reason_of

ROUNDS = 4

# Below this many seconds nobody minds. A cron that fires half a minute early runs for the slot before.
CLOCK_SECONDS = 5.0

FEW_CONNECTIONS = 5

_SERVER = """
SELECT version(), pg_is_in_recovery(), current_setting('transaction_read_only') = 'on', pg_postmaster_start_time()
"""

# The bounds of the server, the database and the role, where there are some, and how many sessions each has.
_CONNECTIONS = """
SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
       - coalesce(current_setting('reserved_connections', true), '0')::int,
       (SELECT sum(numbackends) FROM pg_stat_database)::int,
       base.datconnlimit, (SELECT numbackends FROM pg_stat_database WHERE datid = base.oid),
       role.rolconnlimit, (SELECT count(*) FROM pg_stat_activity WHERE usesysid = role.oid)::int
FROM pg_database AS base, pg_roles AS role
WHERE base.datname = current_database() AND role.rolname = session_user
"""


def locking(stack: Stack) -> Verdict:
    """Jobs run under their locks."""
    if get_settings().locking:
        return passed(f"{SETTING} has locking on.")
    return failed(
        f'{SETTING}["LOCKING"] is False: jobs run on every replica that fires them.',
        "Remove LOCKING from the settings.",
    )


def tasks(stack: Stack) -> Verdict:
    """The modules that hold tasks can be imported."""
    if stack.import_failures:
        names = ", ".join(f"{each.module} ({reason_of(each.error)})" for each in stack.import_failures)
        return failed(f"Not every module of tasks can be imported: {names}.", "Mend it: none of its jobs can run.")
    count = sum(task.using == stack.alias for task in registry.tasks())
    return passed(f"{count} task{'' if count == 1 else 's'} of this database found.", tasks=count)


def connection(stack: Stack) -> Verdict:
    """The database is PostgreSQL and lets the project in."""
    try:
        wrapper = connections[stack.alias]
    except ConnectionDoesNotExist:
        return failed(
            f'There is no database "{stack.alias}" in DATABASES.', "Correct the alias, or using= of the task."
        )
    if wrapper.vendor != "postgresql":
        return failed(f"It is {wrapper.vendor}, not PostgreSQL.", "Name a PostgreSQL database with using=.")
    if not wrapper.settings_dict["AUTOCOMMIT"]:
        return failed("It has AUTOCOMMIT off, so jobs refuse to run.", "Remove AUTOCOMMIT from its settings.")
    try:
        session = stack.first
    except (Error, NoAnswer, ImproperlyConfigured) as error:
        return failed(f"It cannot be reached: {reason_of(error)}.", "Mend the database, or its entry in DATABASES.")
    began = time.monotonic()
    database, role = session.row("SELECT current_database(), current_user")
    milliseconds = (time.monotonic() - began) * 1000
    return passed(
        f'Connected to the database "{database}" as "{role}"; a statement takes {milliseconds:.1f} ms.',
        milliseconds=round(milliseconds, 1),
    )


def pooler(stack: Stack) -> Verdict:
    """A transaction of several statements stays in one server session; whether a pooler is between."""
    first = stack.first
    try:
        first.begin()
        of_transaction = {first.pid() for _ in range(ROUNDS)}
        first.commit()
    except Error as error:
        return failed(
            f"A transaction of several statements is refused, as by a pooler in statement mode: {reason_of(error)}.",
            "A run needs a transaction: set PgBouncer's pool_mode to transaction or session.",
        )
    if len(of_transaction) > 1:
        return failed(
            "The statements of one transaction were answered by several server sessions.",
            "A run needs a transaction: use a pooler in transaction or session mode.",
        )
    try:
        second = stack.second
        pids = [(first.pid(), second.pid()) for _ in range(ROUNDS)]
    except NoAnswer as error:
        return failed(f"A second connection gave {error} while the first was open.", ONE_CONNECTION)
    of_first, of_second = map(set, zip(*pids, strict=True))
    # A pooler answers the client itself when that connects, and tells it a process of its own invention.
    stack.pooled = first.announced_pid() not in of_first
    if of_first & of_second or len(of_first | of_second) > 2:
        stack.pooled = stack.lends_sessions = True
        return warning(
            "A pooler in transaction mode is between. Jobs are safe, but session-level advisory locks "
            "(pg_advisory_lock) do not exclude through it, and it may end a run by limits of its own, which cannot be "
            "seen from here.",
            "Keep code that takes session-level locks away from this alias, set PgBouncer's idle_transaction_timeout "
            f"and query_timeout to 0{_django_options(stack)}. Then accept this warning: --accept pooler.",
            mode="transaction",
        )
    if stack.pooled:
        return passed("A pooler is between, in session mode as far as can be seen.", mode="session")
    return passed("The connection is direct, with a server session of its own.", mode="direct")


def _django_options(stack: Stack) -> str:
    has_cursors = not connections[stack.alias].settings_dict.get("DISABLE_SERVER_SIDE_CURSORS")
    return ", DISABLE_SERVER_SIDE_CURSORS to True" if has_cursors else ""


def prepared(stack: Stack) -> Verdict:
    """No connection is answered by a statement that another one has prepared under the same name.

    It is not tried: what is prepared in a session that a pooler lends would stay there.
    """
    options = connections[stack.alias].settings_dict["OPTIONS"]
    if not options.get("server_side_binding") or options.get("prepare_threshold") is None:
        return passed("Connections prepare no statements.")
    if not stack.lends_sessions:
        return passed("What a connection prepares is in a session of its own.")
    return warning(
        "Connections prepare statements in sessions that the pooler lends to others, who may be answered by them: a "
        "run may take another job's lock.",
        "Set prepare_threshold in OPTIONS to None. Where PgBouncer (from 1.21 on) has max_prepared_statements above 0, "
        "accept this warning: --accept prepared.",
    )


def primary(stack: Stack) -> Verdict:
    """The server takes writes, and every connection reaches the same one."""
    version, in_recovery, read_only, started = stack.first.row(_SERVER)
    if in_recovery:
        return failed(
            "The server is a standby: it takes no writes, and its locks are not those of the primary.",
            "Point the alias at the primary; with several hosts, set target_session_attrs to read-write in OPTIONS.",
        )
    if read_only:
        return failed(
            "Transactions are read-only (default_transaction_read_only of the server, the database or the role).",
            "Switch it off for the role of the alias.",
        )
    if stack.second.row(_SERVER)[3] != started:
        return failed(
            "Two connections reached two different servers, which do not share their locks.",
            "Let the alias name one server, the primary.",
        )
    name = " ".join(version.split()[:2])
    return passed(f"The server is a primary and takes writes: {name}.", version=name)


def clock(stack: Stack) -> Verdict:
    """The clock of this replica and that of the database agree."""
    measured = []
    for _ in range(ROUNDS):
        asked = time.time()
        (at,) = stack.first.row("SELECT extract(epoch FROM clock_timestamp())::float8")
        answered = time.time()
        measured.append((answered - asked, (asked + answered) / 2 - at))
    took, ahead = min(measured)
    text = f"This replica's clock is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} the database's."
    if abs(ahead) - took / 2 <= CLOCK_SECONDS:
        return passed(text, ahead_seconds=round(ahead, 3))
    return warning(
        f"{text} cron fires by the replica's, slots follow the database's: one that fires more than half a minute "
        "early runs for the slot before.",
        "Let both hosts keep their time by NTP.",
        ahead_seconds=round(ahead, 3),
    )


def room(stack: Stack) -> Verdict:
    """The server, the database and the role have connections left."""
    bounds = stack.first.row(_CONNECTIONS)
    names = ("max_connections of the server", "CONNECTION LIMIT of the database", "CONNECTION LIMIT of the role")
    limited = [
        (limit - used, limit, name)
        for name, limit, used in zip(names, bounds[::2], bounds[1::2], strict=True)
        if limit >= 0
    ]
    free, limit, name = min(limited)
    text = f"{max(free, 0)} of {limit} connections are free ({name})."
    if free >= FEW_CONNECTIONS:
        return passed(text, free=free, limit=limit)
    return warning(
        f"{text} An attempt that finds none fails, and its replica does not run.",
        "Raise the limit, or use fewer connections.",
        free=free,
        limit=limit,
    )
