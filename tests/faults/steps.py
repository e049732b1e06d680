"""The steps of a run, as they are seen on the way between client and server: the points where a fault is injected."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Step(Enum):
    """One request of a run. The value is a part of its text by which it is recognised, in the order of the tries."""

    CONNECT = "(the startup message)"
    ATTEMPT = "INSERT INTO django_singlecron_jobrun"
    TIDY = "SET status = 'lost'"
    LOCK = "set_config('singlecron.run'"
    WRITE_1 = "/* write 1 */"
    WRITE_2 = "/* write 2 */"
    MARK = "SET status = 'succeeded'"
    RECORD = 'UPDATE "django_singlecron_jobrun"'
    BEGIN = "BEGIN"
    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"


# Django's own, with nothing before the word.
_BARE = (Step.BEGIN, Step.COMMIT, Step.ROLLBACK)
_TELLING = [step for step in Step if step not in (*_BARE, Step.CONNECT)]


def step_of(statement: str) -> Step | None:
    """Return which step of a run a statement is; None for any other."""
    for step in _BARE:
        if statement.startswith(step.value) and "TO SAVEPOINT" not in statement:
            return step
    return next((step for step in _TELLING if step.value in statement), None)


class Point(NamedTuple):
    """A point of a run: before a request reaches the server, or after that has done it and before its client knows."""

    name: str
    step: Step
    when: str
    in_body: bool = False
    """Whether the run holds its lock there and the job's code has begun and not ended."""


CONNECTING = Point("connecting", Step.CONNECT, "before")
BEFORE_ATTEMPT = Point("before the attempt", Step.ATTEMPT, "before")
AFTER_ATTEMPT = Point("attempt unanswered", Step.ATTEMPT, "after")
BEFORE_LOCK = Point("between probe and lock", Step.LOCK, "before")
AFTER_LOCK = Point("lock unanswered", Step.LOCK, "after")
BEFORE_WRITE = Point("body, before a write", Step.WRITE_1, "before", in_body=True)
AFTER_WRITE = Point("body, after a write", Step.WRITE_1, "after", in_body=True)
BEFORE_MARK = Point("success mark unsent", Step.MARK, "before")
AFTER_MARK = Point("success mark unanswered", Step.MARK, "after")
BEFORE_COMMIT = Point("COMMIT unsent", Step.COMMIT, "before")
AFTER_COMMIT = Point("COMMIT unanswered", Step.COMMIT, "after")

# Of a run that failed, or that lost the lock to another since its probe.
BEFORE_RECORD = Point("end unrecorded", Step.RECORD, "before")
AFTER_RECORD = Point("record unanswered", Step.RECORD, "after")

# In the order of a run that succeeds.
POINTS = (
    CONNECTING,
    BEFORE_ATTEMPT,
    AFTER_ATTEMPT,
    BEFORE_LOCK,
    AFTER_LOCK,
    BEFORE_WRITE,
    AFTER_WRITE,
    BEFORE_MARK,
    AFTER_MARK,
    BEFORE_COMMIT,
    AFTER_COMMIT,
)
# Where no statement passes, so that only the body itself can inject something.
LAST_IN_BODY = "body, after its last write"
ON_COMMIT = "on_commit hook"
AFTER_RUN = "after the run"
