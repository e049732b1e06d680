"""The history on a run's way after its attempt was opened: what is written, and what is asked of it.

SQL by hand stands in named constants. With `opening`, the only writer of `JobRun` while jobs run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db import Error
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import BooleanField
from django.db.models.expressions import RawSQL

from . import capture
from .attempts import Attempt, Holder, Row
from .database import READ_COMMITTED, Sql, fetch_all, now, reconnecting, refusal, send_together, try_again
from .exceptions import LockLost
from .keys import LockKey
from .models import LOST_AFTER_SECONDS, JobRun
from .transactions import SAVEPOINT

TABLE = "django_singlecron_jobrun"

# Whether a run holds the wanted key, by what the server's lock table shows at this moment.
WANTED = "(SELECT (%s)::bigint AS key, %s::boolean AS is_pair) AS wanted"
HELD = """
    held.locktype = 'advisory' AND held.mode = 'ExclusiveLock' AND held.granted
    AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND held.classid = ((wanted.key >> 32) & 4294967295)::oid AND held.objid = (wanted.key & 4294967295)::oid
    AND held.objsubid = CASE WHEN wanted.is_pair THEN 2 ELSE 1 END
"""

# After a winner's probe: its key's earlier runs that still read "running" are lost when their server session is gone,
# which one of the same number that started after the run does not stand for (of another role's session, whose start is
# hidden, only that it is there can be seen), or, behind a pooler, whose sessions outlive its clients, when they are
# old. Not while anyone holds the key: the probe is some time ago when this process was stopped since, and then it is a
# run of now that would be called lost.
_MARK_LOST = f"""
UPDATE django_singlecron_jobrun AS run
SET status = 'lost', finished_at = clock_timestamp(), error_message = %s
FROM {WANTED}
WHERE run.key = wanted.key AND run.key_is_pair = wanted.is_pair AND run.status = 'running' AND run.id <> %s
  AND (abs(extract(epoch FROM clock_timestamp() - run.started_at)) > %s
       OR NOT EXISTS (SELECT FROM pg_stat_get_activity(run.backend_pid) AS session
                      WHERE coalesce(session.backend_start, run.started_at) <= run.started_at))
  AND NOT EXISTS (SELECT FROM pg_locks AS held WHERE {HELD})
RETURNING run.id, run.job, run.host, run.pid, run.started_at
"""  # noqa: S608  # of constants alone

LOST_MESSAGE = (
    "The process that ran the job ended without a word: it was killed, or its host or connection went away. "
    "PostgreSQL rolled its work back and freed the lock."
)

# Whether the session is still in the transaction in which the run took its lock.
_HOLDS = "SELECT current_setting('singlecron.run', true) = %s"

# After the lock, so that the tokens of one key grow in the order of its runs.
ID_SEQUENCE = "'django_singlecron_jobrun_id_seq'"
_DRAW_TOKEN = f"SELECT nextval({ID_SEQUENCE})"
_DRAW_TOKEN_UNDER_LOCK = f"{_DRAW_TOKEN} WHERE current_setting('singlecron.run', true) = %s"

# Step 5, in the job's own transaction. The setting went with the transaction that held the lock, if the job ended it.
# "lost" is overruled: another replica took this run for dead while it was stopped between its probe and its lock.
# The table is named by its number as well: a job may have changed search_path, and another schema have a history too.
# A role may write the history without a grant on its sequence; then there are no tokens.
_MARK_SUCCEEDED = f"""
UPDATE django_singlecron_jobrun
SET status = 'succeeded', finished_at = clock_timestamp(), output = %s, error_message = '',
    token = coalesce(%s::bigint,
                     CASE WHEN has_sequence_privilege({ID_SEQUENCE}, 'USAGE') THEN nextval({ID_SEQUENCE}) END)
WHERE id = %s AND tableoid = (%s)::oid AND current_setting('singlecron.run', true) = %s
RETURNING token
"""  # noqa: S608  # of constants alone

_SEES_TABLE = "SELECT to_regclass('django_singlecron_jobrun') = (%s)::oid"


def mark_lost(connection: BaseDatabaseWrapper, row: Row, key: LockKey) -> list[tuple[str, Holder]]:
    """Mark the earlier runs of a free key that were killed as lost; return each with its job."""
    parameters = [LOST_MESSAGE, row.key, key.is_pair, row.id, LOST_AFTER_SECONDS]
    rows = fetch_all(connection, Sql(_MARK_LOST, parameters))
    return [(job, Holder(run_id, host, pid, started_at)) for run_id, job, host, pid, started_at in rows]


def begin_run(connection: BaseDatabaseWrapper, attempt: Attempt, acquire: Sql) -> bool:
    """Take the lock for the transaction that just began; False when another run has it.

    Raises a `RunRefused` that says what to do when the database cannot do it.
    """
    try:
        acquired: bool = send_together(
            connection,
            # Whatever the project's level is: a stricter one shows the data of before the previous run's commit.
            READ_COMMITTED,
            acquire,
            # After the lock, which it keeps from the job's errors.
            Sql(f"SAVEPOINT {SAVEPOINT}"),
            asked=1,
        )[0]
    except Error as error:
        raise refusal(error, attempt.call.job, connection.alias) from error
    return acquired


def draw_token(connection: BaseDatabaseWrapper, run_id: int) -> int:
    """Return a number that grows with every acquisition of a key.

    Raises `LockLost` when the run does not hold its lock any more: the number would be higher than its successor's.
    """
    with connection.cursor() as cursor:
        cursor.execute(_DRAW_TOKEN_UNDER_LOCK, [str(run_id)])
        drawn: tuple[int] | None = cursor.fetchone()
    if drawn is None:
        raise LockLost(f"The run {run_id} has lost its lock, so there is no token for it any more.")
    return drawn[0]


def draw_token_without_lock(connection: BaseDatabaseWrapper) -> int:
    """Return a number as a token is, in a test whose runs do not keep their locks."""
    with connection.cursor() as cursor:
        cursor.execute(_DRAW_TOKEN)
        token: int = cursor.fetchone()[0]
    return token


def try_lock(connection: BaseDatabaseWrapper, statement: Sql) -> tuple[int, bool]:
    """Return a key, and whether nobody holds it."""
    with connection.cursor() as cursor:
        cursor.execute(statement.text, statement.parameters)
        key, free = cursor.fetchone()
    return key, free


def holds(connection: BaseDatabaseWrapper, run_id: int) -> bool:
    """Whether the connection is still in the transaction that took the run's lock."""
    with connection.cursor() as cursor:
        cursor.execute(_HOLDS, [str(run_id)])
        return bool(cursor.fetchone()[0])


def sees_table(connection: BaseDatabaseWrapper, row: Row) -> bool:
    """Whether the connection's search_path still leads to the table that a run's row is in."""
    with connection.cursor() as cursor:
        cursor.execute(_SEES_TABLE, [row.table_oid])
        return bool(cursor.fetchone()[0])


def mark_succeeded(
    connection: BaseDatabaseWrapper, row: Row, output: str, token: int | None
) -> tuple[int | None] | None:
    """Write the success mark in the job's transaction; return the token that it recorded.

    None without a token round it when that transaction does not hold the lock any more, or the row is not to be seen.
    """
    with connection.cursor() as cursor:
        cursor.execute(_MARK_SUCCEEDED, [output, token, row.id, row.table_oid, str(row.id)])
        marked: tuple[int | None] | None = cursor.fetchone()
    return marked


def mark_succeeded_unlocked(connection: BaseDatabaseWrapper, run_id: int, output: str, token: int | None) -> bool:
    """Write the success mark of a run that holds no lock of its own."""
    rows = JobRun.objects.using(connection.alias).filter(pk=run_id)
    return bool(rows.update(status=JobRun.Status.SUCCEEDED, finished_at=now(connection), output=output, token=token))


def mark_skipped(
    connection: BaseDatabaseWrapper,
    row: Row,
    attempt: Attempt,
    holder: Holder | None,
    *,
    skip_reason: str = JobRun.SkipReason.LOCKED,
    output: str = "",
) -> None:
    """Turn an attempt that was acquired into a skip, or remove it where skips are not recorded."""
    own = JobRun.objects.using(connection.alias).filter(pk=row.id)

    def skip() -> None:
        own.update(
            outcome=JobRun.Outcome.SKIPPED,
            skip_reason=skip_reason,
            status=JobRun.Status.SKIPPED,
            output=output,
            held_by=holder.run_id if holder else None,
            finished_at=now(connection),
        )

    try_again(connection, skip if attempt.call.record_skips else own.delete)


def give_slot_up(connection: BaseDatabaseWrapper, run_id: int) -> None:
    """Let a forced run take no slot."""
    JobRun.objects.using(connection.alias).filter(pk=run_id).update(slot=None)


def name_holder(connection: BaseDatabaseWrapper, row: Row, holder: Holder | None) -> None:
    """Put right which run kept a skipped attempt from running."""
    own = JobRun.objects.using(connection.alias).filter(pk=row.id)
    try_again(connection, lambda: own.update(held_by=holder.run_id if holder else None))


def mark_ended(
    connection: BaseDatabaseWrapper,
    row: Row,
    status: JobRun.Status,
    error: BaseException,
    output: str,
    token: int | None = None,
) -> JobRun.Status | None:
    """Record by which error a run ended; return the status that the row has then, None when it is not to be seen.

    A row that reads succeeded keeps that status, since its work is committed, and takes the error beside it: an
    `on_commit` hook raised, or the connection went before the COMMIT was answered.
    """
    values: dict[str, Any] = {
        "error_class": capture.error_class(error),
        "error_message": capture.error_message(error),
        "traceback": capture.error_traceback(error),
        "output": output,
        "token": token,
    }
    own = JobRun.objects.using(connection.alias).filter(pk=row.id)
    if row.table_oid:
        # A job or a hook may have changed search_path, and a row of another schema's history bear the same number.
        own = own.filter(RawSQL("tableoid = (%s)::oid", [row.table_oid], BooleanField()))
    unfinished = own.filter(status__in=[JobRun.Status.RUNNING, JobRun.Status.LOST])

    def record() -> JobRun.Status | None:
        if unfinished.update(status=status, finished_at=now(connection), **values):
            return status
        if not own.update(**values):
            return None
        return JobRun.Status(own.values_list("status", flat=True).get())

    return reconnecting(connection, lambda: try_again(connection, record))


def restore(connection: BaseDatabaseWrapper, rows: Iterable[JobRun]) -> None:
    """Write rows again that a rollback took away, unless they are there."""
    JobRun.objects.using(connection.alias).bulk_create(rows, ignore_conflicts=True)


def recreate(connection: BaseDatabaseWrapper, attempt: Attempt, row: Row, *, lock: str) -> None:
    """Write the row of a run anew, when somebody deleted it while the job ran."""
    JobRun.objects.using(connection.alias).create(
        **attempt.columns(),
        pk=row.id,
        key=row.key,
        key_is_pair=attempt.call.key.is_pair,
        lock=lock,
        outcome=JobRun.Outcome.ACQUIRED,
        status=JobRun.Status.RUNNING,
        started_at=row.started_at,
    )
