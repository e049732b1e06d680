"""What a test needs from the machine besides Python and PostgreSQL."""

import os
from typing import NoReturn

import pytest


def service_missing(what: str) -> NoReturn:
    """Skip the test, saying what is missing and how to get it; in CI, where nothing may be skipped, fail it."""
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(f"Missing in CI, where every test runs: {what}")
    pytest.skip(what)
