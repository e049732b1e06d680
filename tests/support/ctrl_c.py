"""Ctrl-C, which a process that was started in the background ignores, and its children after it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ctrl_c_raises() -> Iterator[None]:
    """Let Ctrl-C raise `KeyboardInterrupt` in the block, and in the processes that are started there."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
