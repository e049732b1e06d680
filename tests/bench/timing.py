"""How things are timed on a machine that does other work too: in small blocks that take turns."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any


class Timings:
    """The medians of each thing's blocks, round by round, in seconds."""

    def __init__(self, blocks: Mapping[str, list[float]]) -> None:
        self._blocks = blocks

    def seconds(self, name: str) -> float:
        """Return how long one call takes: the median over the rounds."""
        return median(self._blocks[name])

    def ratio(self, name: str, to: str) -> float:
        """Return how many times as long as `to` it takes: the median of each round's ratio.

        What disturbs a round disturbs both, so a round's ratio varies less than its times.
        """
        return median(a / b for a, b in zip(self._blocks[name], self._blocks[to], strict=True))

    def difference(self, name: str, to: str) -> float:
        """Return how many seconds longer than `to` it takes: the median of each round's difference."""
        return median(a - b for a, b in zip(self._blocks[name], self._blocks[to], strict=True))


def wall_time(call: Callable[[], object]) -> float:
    """Return how many seconds `call` takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def alternate(
    calls: Mapping[str, Callable[[], Any]],
    *,
    rounds: int,
    block: int,
    measure: Callable[[Callable[[], Any]], float] = wall_time,
) -> Timings:
    """Measure each of `calls` for `rounds` rounds of `block` calls, in turns, the order reversed from round to round.

    A first block of each warms up and does not count.
    """
    blocks: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(block):
            call()
    gc.collect()
    for number in range(rounds):
        for name in sorted(calls, reverse=number % 2 == 1):
            blocks[name].append(median(measure(calls[name]) for _ in range(block)))
    return Timings(blocks)
