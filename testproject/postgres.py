"""Where the test project's PostgreSQL is: at `DATABASE_URL`, or embedded, started when it is needed."""

from __future__ import annotations

import os
from typing import Any

from testproject.embedded import EmbeddedServer


def database_settings() -> dict[str, Any]:
    """Return Django's settings for the database, starting an embedded server unless `DATABASE_URL` names one."""
    parts = _parse(os.environ.get("DATABASE_URL") or EmbeddedServer().start())
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts["dbname"],
        "USER": parts.get("user", ""),
        "PASSWORD": parts.get("password", ""),
        "HOST": parts.get("host", ""),
        "PORT": parts.get("port", ""),
    }


def _parse(url: str) -> dict[str, Any]:
    try:
        from psycopg.conninfo import conninfo_to_dict
    except ImportError:
        from psycopg2.extensions import parse_dsn

        return dict(parse_dsn(url))
    return dict(conninfo_to_dict(url))
