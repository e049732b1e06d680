"""The floor: what a careful engineer would send by hand with psycopg, and record as much.

Nothing is prepared, as a cron process runs each statement once.
"""

from __future__ import annotations

import os
import socket

import psycopg

_TRY_LOCK = "SELECT pg_try_advisory_xact_lock(hashtextextended(%s, 0))"

_INSERT_SKIP = """
INSERT INTO django_singlecron_jobrun
    (job, key, key_is_pair, lock, arguments, outcome, skip_reason, status, held_by_id,
     host, pid, trigger, command, started_at, finished_at, backend_pid)
VALUES (%s, hashtextextended(%s, 0), false, 'transaction', '', 'skipped', 'locked', 'skipped',
        (SELECT id FROM django_singlecron_jobrun WHERE key = hashtextextended(%s, 0) AND status = 'running' LIMIT 1),
        %s, %s, 'function', 'bench', clock_timestamp(), clock_timestamp(),
        pg_backend_pid())
RETURNING id
"""

_INSERT_RUN = """
INSERT INTO django_singlecron_jobrun
    (job, key, key_is_pair, lock, arguments, outcome, skip_reason, status,
     host, pid, trigger, command, started_at, backend_pid)
VALUES (%s, hashtextextended(%s, 0), false, 'transaction', '', 'acquired', '', 'running',
        %s, %s, 'function', 'bench', clock_timestamp(),
        pg_backend_pid())
RETURNING id
"""

_GUARDS_AND_LOCK = """
SELECT pg_try_advisory_xact_lock(hashtextextended(%s, 0)),
       set_config('application_name', %s, true),
       set_config('idle_in_transaction_session_timeout', '0', true),
       set_config('tcp_keepalives_idle', '10', true),
       set_config('tcp_keepalives_interval', '5', true),
       set_config('tcp_keepalives_count', '3', true),
       set_config('client_connection_check_interval', '100', true),
       set_config('tcp_user_timeout', '25000', true)
"""

_SUCCEEDED = """
UPDATE django_singlecron_jobrun SET status = 'succeeded', finished_at = clock_timestamp(), output = '' WHERE id = %s
"""


class Floor:
    """Skips and runs the job `name` by hand, on a warm connection of its own."""

    def __init__(self, url: str, name: str) -> None:
        self._name = name
        self._connection = psycopg.connect(url, autocommit=True, prepare_threshold=None)

    def skip(self) -> None:
        """Find the lock held, and record that."""
        execute, name = self._connection.execute, self._name
        execute("BEGIN")
        free = execute(_TRY_LOCK, [name]).fetchone()
        assert free == (False,)
        execute(_INSERT_SKIP, [name, name, name, socket.gethostname(), os.getpid()]).fetchone()
        execute("COMMIT")

    def run(self) -> None:
        """Run a job that does nothing, under the lock, and record it."""
        execute, name = self._connection.execute, self._name
        row = execute(_INSERT_RUN, [name, name, socket.gethostname(), os.getpid()]).fetchone()
        assert row is not None
        execute("BEGIN")
        locked = execute(_GUARDS_AND_LOCK, [name, f"{name} {row[0]}"]).fetchone()
        assert locked is not None
        assert locked[0]
        execute("SAVEPOINT job")
        execute("RELEASE SAVEPOINT job")
        execute(_SUCCEEDED, [row[0]])
        execute("COMMIT")

    def close(self) -> None:
        self._connection.close()
