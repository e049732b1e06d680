"""Fixtures for tests that use real connections, threads and processes."""

import os
from collections.abc import Iterator

import pytest
from django.db import connection
from django.test import SimpleTestCase
from hypothesis import settings
from pytest_django.plugin import DjangoDbBlocker

from tests.support.replicas import Replicas, database_url
from tests.support.sessions import Watcher, assert_nothing_left

# Those of pytest-django, by which a test asks for the database without the mark.
DATABASE_FIXTURES = ("db", "transactional_db", "django_db_reset_sequences", "django_db_serialized_rollback")

# Every day the same few examples; where FULL_SIZE is set, many, and others each time.
settings.register_profile("everyday", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("full", deadline=None, max_examples=2000, print_blob=True)
settings.load_profile("full" if os.environ.get("FULL_SIZE") else "everyday")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--run-slow", action="store_true", help="run the tests that take minutes, too")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("slow") and not item.config.getoption("--run-slow"):
        pytest.skip(f"Takes minutes: run it with pytest --run-slow {item.location[0]}")


@pytest.fixture(scope="session")
def watcher(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Watcher]:
    """Looks at the server's sessions and locks from outside the test database."""
    with django_db_blocker.unblock():
        watcher = Watcher(connection)
        yield watcher
        watcher.close()


@pytest.fixture(autouse=True)
def _nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test that uses the database: no session is left but the test's own, and no advisory lock."""
    asked_for = [name for name in DATABASE_FIXTURES if name in request.fixturenames]
    is_django_case = request.cls is not None and issubclass(request.cls, SimpleTestCase)
    if not (asked_for or is_django_case or request.node.get_closest_marker("django_db")):
        yield
        return
    # Set up before this one, the database is there until this one is done.
    for name in asked_for:
        request.getfixturevalue(name)
    watcher: Watcher = request.getfixturevalue("watcher")
    yield
    assert_nothing_left(watcher)


@pytest.fixture
def replicas(transactional_db: None) -> Iterator[Replicas]:
    """Starts processes on the test database, and ends them with the test."""
    replicas = Replicas(database_url(connection))
    yield replicas
    replicas.destroy()
