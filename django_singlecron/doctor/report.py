"""What the doctor found: a verdict for each examination, and what they come to."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple


class Status(Enum):
    """What became of an examination."""

    PASSED = "passed"
    WARNING = "warning"
    FAILED = "failed"
    NOT_MADE = "not made"
    """It needs what another examination found missing, or time was up. Counts as failed: nothing is proved."""


class Verdict(NamedTuple):
    """What one examination found."""

    status: Status
    text: str
    advice: str = ""
    """What to do, when it is a warning or failed."""
    figures: Mapping[str, Any] = {}
    """What was measured, for machines."""


def passed(text: str, **figures: Any) -> Verdict:
    """All is well."""
    return Verdict(Status.PASSED, text, "", figures)


def warning(text: str, advice: str, **figures: Any) -> Verdict:
    """Jobs run, and something should be known or mended."""
    return Verdict(Status.WARNING, text, advice, figures)


def failed(text: str, advice: str, **figures: Any) -> Verdict:
    """Jobs do not run, or not as promised."""
    return Verdict(Status.FAILED, text, advice, figures)


def not_made(text: str) -> Verdict:
    """It could not be made; the text says why, and what to do."""
    return Verdict(Status.NOT_MADE, text)


class Unsound(Exception):
    """Ends an examination at once, with its verdict."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.text)
        self.verdict = verdict


class Line(NamedTuple):
    """One examination, by its stable id, and its verdict."""

    id: str
    verdict: Verdict


@dataclass(frozen=True)
class Report:
    """What was found in one database."""

    database: str
    lines: Sequence[Line]
    seconds: float
    accepted: Collection[str] = field(default=())
    """The ids of the examinations whose warnings do not count."""

    @property
    def status(self) -> Status:
        """The worst of it: passed, warning or failed."""
        statuses = {line.verdict.status for line in self.lines}
        if statuses & {Status.FAILED, Status.NOT_MADE}:
            return Status.FAILED
        warned = any(line.verdict.status is Status.WARNING and line.id not in self.accepted for line in self.lines)
        return Status.WARNING if warned else Status.PASSED

    def count(self, *statuses: Status) -> int:
        """Return how many examinations ended so."""
        return sum(line.verdict.status in statuses for line in self.lines)

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "database": self.database,
            "status": self.status.value,
            "seconds": round(self.seconds, 3),
            "examinations": [
                {
                    "id": line.id,
                    "status": line.verdict.status.value.replace(" ", "_"),
                    "text": line.verdict.text,
                    "advice": line.verdict.advice,
                    "figures": dict(line.verdict.figures),
                }
                for line in self.lines
            ],
        }
