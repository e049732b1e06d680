"""A replica that lives long: `python -m tests.soak.replica` forks one for each order, see `tests.faults.worker`."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from pathlib import Path
from random import Random

from django.db import connection

from tests.faults.worker import Call, Order, call_job, main, set_up
from tests.soak.gate import Gate
from tests.soak.jobs import draw_acts, draw_call

SIGTERM_CODE, SIGINT_CODE = 143, 130

# As their crons would: all replicas call the same job at the same moment, most of the time.
TICK = 0.1
IN_STEP = 0.6
# How often a replica gives its connection up after a call, as a process that ends does.
GIVES_UP = 0.15


class SoakOrder(Order):
    """What a replica is to do for as long as it lives."""

    seed: str
    replica: int
    life: int
    """How many it has had before."""
    began: float
    """When the soak did, by `time.monotonic`."""
    gate: str


def live(order: SoakOrder) -> int:
    """Call jobs, until this process is ended; return the exit code."""
    # Ctrl-C on the terminal is for the soak, which ends its replicas.
    os.setsid()
    witness = set_up(order)
    # For `Fleet.tell_stacks`.
    faulthandler.register(signal.SIGUSR1)
    gate = Gate(Path(order["gate"]))
    drawn = Random(f"{order['seed']}/replica/{order['replica']}/{order['life']}")
    number = 0
    try:
        while True:
            tick = sleep_until_next_tick(order["began"])
            in_step = drawn.random() < IN_STEP
            job, lane = draw_call(Random(f"{order['seed']}/tick/{tick}") if in_step else drawn)
            number += 1
            attempt = f"{order['replica']}.{order['life']}.{number}"
            arguments = {"attempt": attempt, "lane": lane, "acts": draw_acts(drawn, job)}
            with gate.inside(connection.close):
                code = call_job(witness, Call(job=job, arguments=arguments, force=False))
            if code == SIGTERM_CODE:
                return code
            if drawn.random() < GIVES_UP:
                connection.close()
    except KeyboardInterrupt:
        return SIGINT_CODE


def sleep_until_next_tick(began: float) -> int:
    """Return the number of the tick that begins."""
    tick = int((time.monotonic() - began) / TICK) + 1
    time.sleep(max(began + tick * TICK - time.monotonic(), 0))
    return tick


if __name__ == "__main__":
    main(live)  # type: ignore[arg-type]
