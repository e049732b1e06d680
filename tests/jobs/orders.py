"""What a job does that does as it is told: one order a line on its standard input."""

import os
import sys
from collections.abc import Callable
from typing import TextIO

from django.db import connection

from django_singlecron import current_run
from testproject.billing.models import Tenant


class Disobedience(Exception):
    """What the order `raise` raises."""


def follow_orders(out: TextIO) -> None:
    """Write a tenant, say `holding <run id>`, then do what each line of the standard input says until `finish`."""
    run = current_run()
    assert run is not None
    Tenant.objects.create(name=f"tenant of run {run.id}", monthly_fee=1)
    say(out, f"holding {run.id}")
    done = False
    while not done:
        name, *arguments = sys.stdin.readline().split()
        done = ORDERS[name](out, *arguments)


def say(out: TextIO, line: str) -> None:
    out.write(line + "\n")
    out.flush()


def finish(out: TextIO) -> bool:
    return True


def raise_error(out: TextIO) -> bool:
    raise Disobedience("as ordered")


def exit_with(out: TextIO, code: str) -> bool:
    sys.exit(int(code))


def exit_at_once(out: TextIO, code: str) -> bool:
    os._exit(int(code))


def sleep_in_the_database(out: TextIO) -> bool:
    # Ended by the run's timeout, or done.
    with connection.cursor() as cursor:
        return cursor.execute("SELECT pg_sleep(600)") is not None


def fork(out: TextIO, how: str) -> bool:
    """Fork; the child ends at once (`exit`) or comes back out of the job (`return`), and its end is told."""
    child = os.fork()
    if child == 0:
        return _end_of_child(how)
    _, status = os.waitpid(child, 0)
    say(out, f"child {os.waitstatus_to_exitcode(status)}")
    return False


def _end_of_child(how: str) -> bool:
    if how == "exit":
        os._exit(0)
    return True


ORDERS: dict[str, Callable[..., bool]] = {
    "finish": finish,
    "raise": raise_error,
    "exit": exit_with,
    "os-exit": exit_at_once,
    "sleep": sleep_in_the_database,
    "fork": fork,
}
