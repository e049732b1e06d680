"""A crontab's lines, checked as cron would read them."""

from __future__ import annotations

import re
from collections.abc import Iterator

_RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_PART = re.compile(r"(?:\*|(\d+)(?:-(\d+))?)(?:/(\d+))?")
_VARIABLE = re.compile(r"[A-Z_]+=\S*")


def check_schedule(expression: str) -> None:
    """Fail unless `expression` is five fields of numbers, ranges, lists and steps that cron takes."""
    fields = expression.split()
    assert len(fields) == 5, f"{expression!r} has {len(fields)} fields"
    for field, (low, high) in zip(fields, _RANGES, strict=True):
        for part in field.split(","):
            match = _PART.fullmatch(part)
            assert match, f"{part!r} in {expression!r} is nothing that cron takes"
            numbers = [int(number) for number in match.groups()[:2] if number is not None]
            assert all(low <= number <= high for number in numbers), f"{part!r} in {expression!r} is out of range"


def commands_of(crontab: str) -> Iterator[str]:
    """Yield the commands of a user's crontab; fail on a line that cron would refuse."""
    for line in crontab.splitlines():
        if not line or line.startswith("#") or _VARIABLE.fullmatch(line):
            continue
        *schedule, command = line.split(maxsplit=5)
        check_schedule(" ".join(schedule))
        # An unescaped % ends the command, and what follows is its input.
        assert "%" not in command
        yield command
