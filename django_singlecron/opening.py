"""Step 1 of a run: the attempt is written into the history, as a rule by the one statement that also tries the lock."""

from __future__ import annotations

import json
from functools import cache

from django.db import Error
from django.db.backends.base.base import BaseDatabaseWrapper

from .attempts import Attempt, Holder, Opened, Row
from .database import Sql, fetch_all, from_json, now, reconnecting, refusal
from .locks import Lock
from .locks.postgres import application_name
from .models import LOST_AFTER_SECONDS, JobRun

# All that a loser sends unless it is in doubt who holds the lock: try, and record the attempt as what the trial showed.
# It stands alone in its transaction, so the lock is let go at its end. The runs that may hold the key come back, as
# JSON. Of those that read "running", one is sure to hold it whose server session bears its number, as it does from the
# lock to the commit; others may be about to find that they lost. Only of young ones is that looked at, since the server
# reads all its sessions for it. The last one that is found is recorded as the holder, until more is known. They are not
# sorted: a plan for that may walk the whole history along its primary key. The planner's time is most of the
# statement's cost, since a cron process sends it once, and each subquery and each join adds to that.
_SEEN = """
WITH seen AS MATERIALIZED (
    SELECT {probe} AS free,
           (SELECT json_agg(json_build_array(
                       run.id, run.host, run.pid, run.started_at,
                       CASE WHEN run.started_at > clock_timestamp() - interval '{young} seconds' THEN
                           (SELECT application_name FROM pg_stat_get_activity(run.backend_pid)) END))
            FROM django_singlecron_jobrun AS run
            WHERE run.key = {key} AND run.key_is_pair = {is_pair} AND run.status = 'running') AS holders
)"""
_INSERT = """
INSERT INTO django_singlecron_jobrun
    (job, key, key_is_pair, lock, arguments, outcome, skip_reason, status, held_by_id,
     slot, forced, host, pid, trigger, command, started_at, finished_at, backend_pid)
SELECT %s, {key}, {is_pair}, '{lock}', %s,
       CASE WHEN free THEN 'acquired' ELSE 'skipped' END,
       CASE WHEN free THEN '' ELSE 'locked' END,
       CASE WHEN free THEN 'running' ELSE 'skipped' END,
       CASE WHEN NOT free THEN (holders -> -1 ->> 0)::bigint END,
       %s::timestamptz, %s, %s, %s, %s, %s, clock_timestamp(),
       CASE WHEN NOT free THEN clock_timestamp() END,
       pg_backend_pid()
FROM seen"""
_RETURNING = "RETURNING id, outcome, key, started_at, held_by_id, tableoid"
_OPEN = f"{_SEEN} {_INSERT} {_RETURNING}, (SELECT holders::text FROM seen)"  # noqa: S608  # of constants alone

# Where skips are not recorded, the holders come back without a row. That takes one join more.
_OPEN_IF_FREE = f"""{_SEEN}, attempt AS ({_INSERT} WHERE free {_RETURNING})
SELECT attempt.*, seen.holders::text FROM seen LEFT JOIN attempt ON true
"""  # noqa: S608  # of constants alone


def opening_statement(attempt: Attempt, lock: Lock) -> Sql:
    """Return the statement that opens an attempt."""
    call = attempt.call
    key, probe = lock.key(call.key), lock.probe(call.key)
    template = _OPEN if call.record_skips else _OPEN_IF_FREE
    return Sql(
        _opening_with(template, key.text, probe.text, call.key.is_pair, lock.label),
        [
            *(*probe.parameters, *key.parameters),
            *(call.job, *key.parameters, call.arguments),
            *(attempt.slot, call.force, attempt.host, attempt.pid, call.trigger, call.command),
        ],
    )


@cache
def _opening_with(template: str, key: str, probe: str, is_pair: bool, lock: str) -> str:
    return template.format(key=key, probe=probe, is_pair=is_pair, lock=lock, young=LOST_AFTER_SECONDS)


def open_attempt(connection: BaseDatabaseWrapper, attempt: Attempt, lock: Lock) -> Opened:
    """Try the lock and record the attempt, in one statement.

    Raises a `RunRefused` that says what to do when the database cannot do it.
    """
    try:
        run_id, outcome, *row, seen = fetch_all(connection, opening_statement(attempt, lock))[0]
    except Error as error:
        raise refusal(error, attempt.call.job, connection.alias) from error
    holders = _read_holders(connection, seen) if seen else []
    if run_id is None:
        return Opened(False, None, holders)
    return Opened(outcome == JobRun.Outcome.ACQUIRED, Row(run_id, *row), holders)


def _read_holders(connection: BaseDatabaseWrapper, seen: str) -> list[Holder]:
    """Return the runs that may hold the lock: the one that does, as far as that was seen, then the likelier ones."""
    ranked = []
    for run_id, host, pid, moment, name in json.loads(seen):
        is_sure = name is not None and name.startswith(application_name(run_id))
        # A session under another name hardly holds the lock for this run, unless the job renamed it.
        rank = (is_sure, name is None, run_id)
        ranked.append((rank, Holder(run_id, host, pid, from_json(connection, moment), is_sure)))
    return [holder for _, holder in sorted(ranked, reverse=True)]


def record_attempt(
    connection: BaseDatabaseWrapper,
    attempt: Attempt,
    *,
    lock: str,
    key: int | None,
    skip_reason: str = "",
    held_by: int | None = None,
) -> JobRun:
    """Record an attempt whose outcome is known already, wherever the connection is."""
    acquired = not skip_reason
    row = JobRun(
        **attempt.columns(),
        key=key,
        key_is_pair=attempt.call.key.is_pair and key is not None,
        lock=lock,
        outcome=JobRun.Outcome.ACQUIRED if acquired else JobRun.Outcome.SKIPPED,
        skip_reason=skip_reason,
        status=JobRun.Status.RUNNING if acquired else JobRun.Status.SKIPPED,
        held_by_id=held_by,
        started_at=now(connection),
        finished_at=None if acquired else now(connection),
    )
    try:
        reconnecting(connection, lambda: row.save(using=connection.alias, force_insert=True))
        row.refresh_from_db(using=connection.alias)
    except Error as error:
        raise refusal(error, attempt.call.job, connection.alias) from error
    return row
