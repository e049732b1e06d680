"""Which run kept an attempt from running, told apart from others that began at the same moment."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db.backends.base.base import BaseDatabaseWrapper

from .attempts import Attempt, Holder, Row
from .database import Sql, fetch_all
from .history import HELD, WANTED
from .models import LOST_AFTER_SECONDS, JobRun

# A run that started this long before an attempt, alone in reading "running", is the holder. Of younger ones, one may be
# about to find that it lost, while the holder's row is too new to be seen by the statement that tried the lock.
PLAIN_AFTER = timedelta(seconds=LOST_AFTER_SECONDS)

# For so long a run may hold its lock after its end was written, while it commits.
COMMIT_TAKES = timedelta(seconds=1)

# Where one attempt's trial made another's fail, it takes a moment until one of them holds the lock: about a second is
# waited for that, ever more patiently.
WAITS_SECONDS = [0.002 * 2**n for n in range(9)]

# The run that holds a key at this moment: it named its session as it took the lock. Where the job gave its session
# another name, or the role may not see that, the session itself tells, unless a pooler lent it for the attempt only.
# Not at the first look, whose rows may be older than the lock that it sees, and of an earlier attempt of that session.
# The lock table, the sessions and the rows are read one after the other, and a run may end in between.
_FIND = f"""
SELECT held.pid, named.id, run.id, run.host, run.pid, run.started_at
FROM {WANTED}
JOIN pg_locks AS held ON {HELD}
LEFT JOIN pg_stat_get_activity(held.pid) AS session ON true
CROSS JOIN LATERAL (SELECT coalesce(
    substring(session.application_name FROM '^singlecron/([0-9]+) ')::bigint,
    (SELECT own.id FROM django_singlecron_jobrun AS own
     WHERE %s AND own.key = wanted.key AND own.key_is_pair = wanted.is_pair AND own.status = 'running'
       AND own.backend_pid = held.pid AND own.started_at >= session.backend_start
     LIMIT 1)) AS id) AS named
LEFT JOIN django_singlecron_jobrun AS run ON run.id = named.id
"""  # noqa: S608  # of constants alone

# The run that was going on when an attempt was made and has ended since, the last one if there were more. It was seen
# running by the statement that tried the lock, or was too new to be seen.
_FIND_ENDED = """
SELECT id, host, pid, started_at
FROM django_singlecron_jobrun
WHERE key = %s AND key_is_pair = %s AND outcome = 'acquired' AND status IN ('succeeded', 'failed')
  AND started_at >= %s AND finished_at >= %s
  OR id = ANY(%s) AND outcome = 'acquired' AND status IN ('succeeded', 'failed')
ORDER BY finished_at DESC LIMIT 1
"""


def plain_holder(row: Row, candidates: Sequence[Holder]) -> Holder | None:
    """Return the holder when the statement that tried the lock left no doubt who that is."""
    if candidates and candidates[0].is_sure:
        return candidates[0]
    if len(candidates) == 1 and row.started_at - candidates[0].started_at > PLAIN_AFTER:
        return candidates[0]
    return None


def find(
    connection: BaseDatabaseWrapper, attempt: Attempt, row: Row, candidates: Sequence[Holder] = ()
) -> Holder | None:
    """Return the run that holds the key, or held it when the attempt was made and has ended since.

    None when the holder is no run, or its row was deleted.
    """
    nameless = None
    for asked, pause in enumerate(WAITS_SECONDS):
        nameless_before, nameless = nameless, None
        held = fetch_all(connection, Sql(_FIND, [row.key, attempt.call.key.is_pair, asked > 0]))
        if held:
            session, named, *run = held[0]
            if run[0] is not None:
                return Holder(*run)
            if named is None:
                # It is about to name its session, or to let go. If it was so at the last look, it is no run.
                if session == nameless_before:
                    return _only_candidate_left(connection, candidates)
                nameless = session
            # Else its row is newer than what this statement could see, or deleted.
        else:
            ended = _find_ended(connection, attempt, row, candidates, since=row.started_at)
            if ended:
                return ended
            # It failed, and is about to say so, or was killed.
        time.sleep(pause)
    return _only_candidate_left(connection, candidates) or _find_ended(
        connection, attempt, row, candidates, since=row.started_at - COMMIT_TAKES
    )


def _only_candidate_left(connection: BaseDatabaseWrapper, candidates: Sequence[Holder]) -> Holder | None:
    """Return the one candidate that has not found out meanwhile that it lost; None when there are more, or none."""
    acquired = JobRun.objects.using(connection.alias).acquired().filter(pk__in=[c.run_id for c in candidates])
    ids = set(acquired.values_list("pk", flat=True))
    left = [candidate for candidate in candidates if candidate.run_id in ids]
    return left[0] if len(left) == 1 else None


def _find_ended(
    connection: BaseDatabaseWrapper, attempt: Attempt, row: Row, candidates: Sequence[Holder], *, since: datetime
) -> Holder | None:
    seen = [candidate.run_id for candidate in candidates]
    parameters = [row.key, attempt.call.key.is_pair, row.started_at - PLAIN_AFTER, since, seen]
    rows = fetch_all(connection, Sql(_FIND_ENDED, parameters))
    return Holder(*rows[0]) if rows else None
