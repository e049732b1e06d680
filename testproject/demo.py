"""Three replicas fire one job at the same instant: without django-singlecron, then with it.

`python -m testproject.demo` exits with 0 only if the job ran once. `python -m testproject.demo prepare` makes what
the admin needs, and runs nothing.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from io import TextIOWrapper
from typing import TYPE_CHECKING, cast

import django
from django.core.management import call_command

from tools.progress import step

if TYPE_CHECKING:
    from django_singlecron.models import JobRun

REPLICAS = ("replica-1", "replica-2", "replica-3")
TENANTS = 120
JOB = "nightly_billing"
UNDECORATED = "nightly_billing_undecorated"
USER = PASSWORD = "admin"
PATIENCE = 120.0  # seconds

LOOK = f"To look at it: make serve, then http://localhost:8000/admin/ (user {USER}, password {PASSWORD})."


class DemoError(Exception):
    """The demo could not be carried through."""


@dataclass
class Replica:
    """One replica's process, and what its cron would have mailed."""

    name: str
    process: subprocess.Popen[str]
    words: str = ""

    @property
    def pid(self) -> int:
        return self.process.pid


def main(arguments: Sequence[str]) -> None:
    # In a file or a pipe, too, what went wrong stands at the end.
    cast("TextIOWrapper", sys.stdout).reconfigure(line_buffering=True)
    # A terminal that is closed and a kill end the demo as Ctrl-C does: with its replicas and its PostgreSQL.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        prepare()
        if list(arguments) == ["prepare"]:
            return
        without = fire_undecorated()
        problems = fire_decorated()
    except KeyboardInterrupt:
        sys.exit("\nInterrupted: the replicas are stopped.")
    except DemoError as error:
        sys.exit(f"\n{error}")
    if problems:
        sys.exit("\nNot as it should be: " + "; ".join(problems) + ".")
    print(f"\nAs it should be: {without} invoices without @singleton_task, {TENANTS} with it.\n\n{LOOK}")


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def prepare() -> None:
    """Bring the database to where the demo starts: migrated, with its tenants and a user for the admin."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    with step("Starting PostgreSQL" if not os.environ.get("DATABASE_URL") else "Connecting to DATABASE_URL"):
        django.setup()
        from django.db import connection

        connection.ensure_connection()
    with step("Migrating"):
        call_command("migrate", verbosity=0)
    with step(f"Seeding {TENANTS} tenants"):
        _seed()


def _seed() -> None:
    from django.contrib.auth import get_user_model

    from testproject.billing.models import Tenant

    tenants = [Tenant(name=f"Tenant {n:03}", monthly_fee=Decimal(10 + n % 7 * 5)) for n in range(1, TENANTS + 1)]
    Tenant.objects.bulk_create(tenants, ignore_conflicts=True)
    Tenant.objects.exclude(name__in=[tenant.name for tenant in tenants]).delete()
    users = get_user_model()
    if not users.objects.filter(username=USER).exists():
        users.objects.create_superuser(USER, password=PASSWORD)


def fire_undecorated() -> int:
    """Show the problem; return how many invoices it made."""
    from testproject.billing.models import Invoice

    Invoice.objects.all().delete()
    print("\nWithout django-singlecron: three replicas, one crontab, the same second")
    for replica in fire(UNDECORATED):
        print(f"  {replica.name}  {replica.words}")
    invoices = Invoice.objects.count()
    print(f"{invoices} invoices for {TENANTS} tenants, {invoices / TENANTS:g} for each.")
    return invoices


def fire_decorated() -> list[str]:
    """Show the same with `@singleton_task` on the command; return what was not as it should be."""
    from django_singlecron.models import JobRun
    from testproject.billing.models import Invoice

    Invoice.objects.all().delete()
    newest = JobRun.objects.order_by("-id").values_list("id", flat=True).first() or 0
    print("\nWith @singleton_task on the command")
    replicas = fire(JOB)
    for replica in replicas:
        print(f"  {replica.name}  {replica.words}")
    attempts = list(JobRun.objects.filter(job=JOB, id__gt=newest).select_related("held_by").order_by("outcome", "id"))
    invoices = Invoice.objects.count()
    print("\nThe history of these attempts, from JobRun:\n")
    print_table(attempts, {replica.pid: replica.name for replica in replicas})
    print(f"\n{invoices} invoices for {TENANTS} tenants.")
    problems = judge(attempts, invoices)
    if not problems:
        print(overlap(attempts))
    return problems


def judge(attempts: Sequence[JobRun], invoices: int) -> list[str]:
    """Return what is wrong with these attempts at one job; nothing when it happened once."""
    ran = [attempt for attempt in attempts if attempt.outcome == "acquired"]
    skipped = [attempt for attempt in attempts if attempt.outcome == attempt.status == "skipped"]
    problems = []
    if len(ran) != 1:
        problems.append(f"{len(ran)} replicas ran the job, not 1")
    problems += [f"the run {attempt.pk} reads {attempt.status}" for attempt in ran if attempt.status != "succeeded"]
    if len(skipped) != len(REPLICAS) - 1:
        problems.append(f"{len(skipped)} replicas skipped it, not {len(REPLICAS) - 1}")
    if invoices != TENANTS:
        problems.append(f"there are {invoices} invoices, not {TENANTS}")
    return problems


def overlap(attempts: Sequence[JobRun]) -> str:
    """Say what the lock did, and what it cannot do."""
    starts = [attempt.started_at for attempt in attempts]
    spread = (max(starts) - min(starts)).total_seconds()
    seconds = max(attempt.duration.total_seconds() for attempt in attempts if attempt.duration)
    return (
        f"The attempts came within {spread:.2f} s of each other, and the job took {seconds:.2f} s. A lock keeps apart\n"
        "what overlaps: a replica that came after the end would find it free, and run the job again."
    )


def print_table(attempts: Sequence[JobRun], names: dict[int, str]) -> None:
    """Print one line for each attempt."""
    rows = [("replica", "pid", "outcome", "status", "duration", "holder")]
    for attempt in attempts:
        duration = f"{attempt.duration.total_seconds():.2f} s" if attempt.duration else "-"
        holder = names.get(attempt.held_by.pid, f"pid {attempt.held_by.pid}") if attempt.held_by else "-"
        name = names.get(attempt.pid, "?")
        rows.append((name, str(attempt.pid), attempt.outcome, attempt.status, duration, holder))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def fire(command: str) -> list[Replica]:
    """Let every replica fire a management command at the same instant; return them when all have ended."""
    with _replicas(command) as replicas:
        with step(f"  {len(replicas)} processes get ready"):
            deadline = time.monotonic() + PATIENCE
            for replica in replicas:
                _wait_until_ready(replica, deadline)
        with step(f"  They fire manage.py {command}"):
            for replica in replicas:
                assert replica.process.stdin is not None
                replica.process.stdin.write("go\n")
                replica.process.stdin.flush()
            for replica in replicas:
                said, _ = replica.process.communicate(timeout=PATIENCE)
                if replica.process.returncode != 0:
                    raise DemoError(f"{replica.name} exited with {replica.process.returncode}:\n{said}")
                replica.words = " ".join(said.split())
        return replicas


@contextmanager
def _replicas(command: str) -> Iterator[list[Replica]]:
    """Start a process for each replica; none is left afterwards, whatever happens."""
    replicas: list[Replica] = []
    try:
        for name in REPLICAS:
            process = subprocess.Popen(
                [sys.executable, "-m", "testproject.replica", name, command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                # Ctrl-C reaches the demo alone, which ends them in order.
                start_new_session=True,
            )
            replicas.append(Replica(name, process))
        yield replicas
    finally:
        for replica in replicas:
            _end(replica.process)


def _wait_until_ready(replica: Replica, deadline: float) -> None:
    assert replica.process.stdout is not None
    readable, _, _ = select.select([replica.process.stdout], [], [], max(0, deadline - time.monotonic()))
    if not readable:
        raise DemoError(f"{replica.name} was not ready within {PATIENCE:.0f} s.")
    line = replica.process.stdout.readline()
    if line != "ready\n":
        raise DemoError(f"{replica.name} did not start:\n{line}{replica.process.communicate()[0]}")


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


if __name__ == "__main__":
    main(sys.argv[1:])
