"""Bodies of jobs that check that they are alone."""

import threading

from django_singlecron import RunResult, current_run
from tests.support.deadlines import DEADLINE


class Body:
    """A job's body that fails when another is in it, and may wait until a number of others were skipped."""

    def __init__(self) -> None:
        self._inside = threading.Lock()
        self._skipped = threading.Semaphore(0)
        self.runs: list[int] = []

    def run(self, wait_for_skips: int = 0) -> None:
        assert self._inside.acquire(blocking=False), "Two bodies overlapped."
        try:
            run = current_run()
            assert run is not None
            for _ in range(wait_for_skips):
                assert self._skipped.acquire(timeout=DEADLINE), "Others were not skipped while this one ran."
            self.runs.append(run.id)
        finally:
            self._inside.release()

    def note(self, result: RunResult[None]) -> RunResult[None]:
        if not result:
            self._skipped.release()
        return result
