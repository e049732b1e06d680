"""The table."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass

import django
import psycopg


@dataclass(frozen=True)
class Row:
    """One thing that was measured."""

    what: str
    product: str
    compared_with: str = ""
    figure: str = ""
    target: str = ""
    within: bool | None = None
    """None for what is there for orientation, or could not be measured here."""

    @property
    def verdict(self) -> str:
        return "" if self.within is None else "within target" if self.within else "missed"


def ratio_row(what: str, product: float, other: float, other_name: str, ratio: float, limit: float | None) -> Row:
    """Return the row of a comparison of two times in seconds."""
    return Row(
        what,
        _duration(product),
        f"{_duration(other)} {other_name}",
        f"{ratio:.2f}",
        "" if limit is None else f"at most {limit:.2f}",
        None if limit is None else round(ratio, 2) <= limit,
    )


def print_table(rows: Sequence[Row]) -> None:
    """Print the rows under their headings."""
    lines = [("what", "product", "compared with", "figure", "target", "verdict")]
    lines += [(r.what, r.product, r.compared_with, r.figure, r.target, r.verdict) for r in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for number, line in enumerate(lines):
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))


def versions(url: str) -> str:
    """Return what the figures belong to."""
    with psycopg.connect(url) as connection:
        server = connection.info.server_version
    return (
        f"Python {platform.python_version()}, Django {django.get_version()}, psycopg {psycopg.__version__}, "
        f"PostgreSQL {server // 10000}.{server % 10000}, {platform.system()} {platform.machine()}"
    )


def machine() -> str:
    """Return how busy the machine is, which is the first question when a figure surprises."""
    return f"{os.cpu_count()} processors, load average {os.getloadavg()[0]:.1f}"


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.02 else f"{seconds * 1e6:,.0f} µs"
