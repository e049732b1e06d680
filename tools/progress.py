"""Progress on standard output: a line that changes on a terminal, plain lines anywhere else."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Say = Callable[[str], None]


@contextmanager
def step(what: str) -> Iterator[Say]:
    """Announce `what`, and say how long it took; the function that it gives says what goes on in between."""
    on_terminal = sys.stdout.isatty()
    began = time.monotonic()

    def show(text: str) -> None:
        if on_terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{text[:width]}", end="", flush=True)

    show(f"{what} ...")
    try:
        yield lambda detail: show(f"{what}: {detail}")
    except BaseException:
        show("")
        print(f"{what}: not done", flush=True)
        raise
    show("")
    print(f"{what} ({time.monotonic() - began:.1f} s)", flush=True)
