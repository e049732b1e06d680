"""Which processor does what: the server has one of its own, as where the database is another machine.

Left to the system, client and server share a processor at times and at times do not, and a call's time jumps with that
by a third: what waits for the other on the same processor is woken up sooner.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# macOS and Windows have no such thing.
_ALL = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
_FOR_SERVER, _FOR_CLIENT = set(_ALL[-1:]), set(_ALL[:-1])


def separate(data: Path) -> None:
    """Keep the server with this data directory, as far as it starts processes from now on, and this process apart.

    Until this process ends; those that it starts inherit it. Nothing is done on a machine with one processor, or whose
    system has no such call.
    """
    if _FOR_CLIENT:
        postmaster = int((data / "postmaster.pid").read_text().split()[0])
        os.sched_setaffinity(postmaster, _FOR_SERVER)
        os.sched_setaffinity(0, _FOR_CLIENT)


def are_separate() -> bool:
    """Whether the server has a processor of its own now."""
    return bool(_FOR_CLIENT) and os.sched_getaffinity(0) == _FOR_CLIENT


@contextmanager
def together() -> Iterator[None]:
    """Let this process share the server's processor in the block."""
    os.sched_setaffinity(0, _FOR_SERVER)
    try:
        yield
    finally:
        os.sched_setaffinity(0, _FOR_CLIENT)
