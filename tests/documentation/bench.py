"""A table of the benchmark in a document, checked against what it says of itself."""

from __future__ import annotations

import re

_HEADINGS = ["what", "product", "compared with", "figure", "target", "verdict"]
_VERSIONS = re.compile(r"Python \S+, Django \S+, psycopg \S+, PostgreSQL \S+, .+")
_MACHINE = re.compile(r"\d+ processors, load average [\d.]+")


def check_bench_output(text: str) -> None:
    """Fail unless `text` is one run's output as `make bench` prints it, whose last line counts what was missed."""
    versions, headings, rules, *rows, machine, summary = text.splitlines()
    assert _VERSIONS.fullmatch(versions), versions
    assert _MACHINE.fullmatch(machine), machine
    starts = [match.start() for match in re.finditer("-+", rules)]
    assert _cells(headings, starts) == _HEADINGS, headings
    missed = 0
    for row in rows:
        what, product, _, figure, target, verdict = _cells(row, starts)
        assert all([what, figure, product or target]), row
        assert verdict in (("within target", "missed", "") if target else ("",)), row
        missed += verdict == "missed"
    assert summary == (f"{missed} missed." if missed else "All within target."), summary


def _cells(line: str, starts: list[int]) -> list[str]:
    ends = [*starts[1:], len(line)]
    return [line[start:end].strip() for start, end in zip(starts, ends, strict=False)]
