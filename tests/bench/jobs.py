"""The jobs that are measured, each of which does nothing, and the lock that some other replica holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from django_singlecron import singleton_task

HELD = "bench-held"
FREE = "bench-free"


@singleton_task(HELD)
def held() -> None: ...


@singleton_task(HELD, using="large")
def held_in_large() -> None: ...


@singleton_task(FREE)
def free() -> None: ...


@singleton_task(FREE, using="large")
def free_in_large() -> None: ...


@contextmanager
def held_elsewhere(url: str, job: str = HELD) -> Iterator[None]:
    """Hold a job's lock on another connection, by a run that is in the history."""
    with psycopg.connect(url) as connection:
        connection.execute(
            "INSERT INTO django_singlecron_jobrun (job, key, outcome, status, host, pid, trigger, started_at) "
            "VALUES (%s, hashtextextended(%s, 0), 'acquired', 'running', 'elsewhere', 1, 'command_line', "
            "now() - interval '1 minute')",
            [job, job],
        )
        connection.commit()
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [job])
        yield
        connection.rollback()
        connection.execute(
            "UPDATE django_singlecron_jobrun SET status = 'succeeded', finished_at = now() "
            "WHERE job = %s AND status = 'running'",
            [job],
        )


@contextmanager
def session_lock(url: str, key: int) -> Iterator[None]:
    """Hold the advisory lock `key` by a session, as django-pglock does."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(%s)", [key])
        yield
