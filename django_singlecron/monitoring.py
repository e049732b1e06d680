"""What is true of the runs at this moment, read from the server's locks; it writes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import connections

from .database import aware
from .locks.postgres import APPLICATION_NAME_PREFIX
from .models import LOST_AFTER_SECONDS, JobRun

# The join is an outer one from the clock, so that the time comes back when nobody holds a lock. Both halves of a key
# show as unsigned numbers; put together they are the signed key that the history stores.
# https://www.postgresql.org/docs/current/view-pg-locks.html
_HELD = """
SELECT clock_timestamp(), (held.classid::bigint << 32) | held.objid::bigint, held.objsubid = 2,
       session.application_name, held.pid
FROM (VALUES (1)) AS always
LEFT JOIN pg_locks AS held ON held.locktype = 'advisory' AND held.mode = 'ExclusiveLock' AND held.granted
    AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
LEFT JOIN pg_stat_activity AS session ON session.pid = held.pid
"""

# Killed runs that nobody has found out since: one or none a job. The bound is for a table that was tampered with.
_MOST_UNRECORDED = 1_000


class Live(NamedTuple):
    """The locks that were held at one moment."""

    at: datetime
    """That moment, by the database's clock."""
    holders: Mapping[tuple[int, bool], str]
    """How the session that holds a key calls itself, by the key and whether that is a pair."""
    pids: Mapping[tuple[int, bool], int] = {}
    """The server process of that session."""

    def holds(self, run: JobRun) -> bool:
        """Whether the run held its lock.

        The holder's session names the run that it is, unless the job renamed it: then the run has the benefit of the
        doubt, as it has when something else than a job holds its key.
        """
        if run.key is None:
            return False
        name = self.holders.get((run.key, run.key_is_pair))
        if name is None:
            return False
        return not name.startswith(APPLICATION_NAME_PREFIX) or name.startswith(f"{APPLICATION_NAME_PREFIX}{run.pk} ")

    def is_lost(self, run: JobRun) -> bool:
        """Whether a run that reads "running" was killed, and no later attempt has found it out yet.

        False for a run without a lock, of which nothing can be known, and for one that may be about to take its lock.
        Right for rows that were read after this was.
        """
        return (
            run.status == JobRun.Status.RUNNING
            and run.lock != JobRun.LockKind.NONE
            and abs(self.at - aware(run.started_at)) > timedelta(seconds=LOST_AFTER_SECONDS)
            and not self.holds(run)
        )


def look(using: str) -> Live | None:
    """Read who holds which lock in the database `using`; None when it is not PostgreSQL, and has none.

    Look first and read the rows afterwards: a run's last word is visible before its lock is free, so that a row which
    still reads "running" after its lock was seen free is a killed run's.
    """
    connection = connections[using]
    if connection.vendor != "postgresql":
        return None
    with connection.cursor() as cursor:
        cursor.execute(_HELD)
        rows = cursor.fetchall()
    held = [row[1:] for row in rows if row[1] is not None]
    return Live(
        at=aware(rows[0][0]),
        holders={(key, pair): name or "" for key, pair, name, _ in held},
        pids={(key, pair): pid for key, pair, _, pid in held},
    )


def tell_lost(runs: Iterable[JobRun], live: Live | None) -> list[JobRun]:
    """Return the runs, the killed ones among them with the status `lost` in memory, as the next attempt will write it.

    Such a run is told from one that is recorded as lost by having no `finished_at`.
    """
    told = list(runs)
    for run in told:
        if live is not None and live.is_lost(run):
            run.status = JobRun.Status.LOST
    return told


def unrecorded_losses(using: str) -> list[int]:
    """Return the ids of the killed runs whose rows still read "running"."""
    live = look(using)
    if live is None:
        return []
    running = JobRun.objects.using(using).running().without_texts()
    return [run.pk for run in running[:_MOST_UNRECORDED] if live.is_lost(run)]
