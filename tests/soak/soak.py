"""The soak: replicas that call jobs, a fault every second or so, and the checker's look at it whenever all is quiet."""

from __future__ import annotations

import platform
import random
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any

import django
from django.db import Error
from django.db.backends.base.base import BaseDatabaseWrapper

from django_singlecron.models import JobRun
from tests.faults import jobs as bodies
from tests.faults.checker import default_connection, look
from tests.faults.clusters import clusters_in_a_short_place
from tests.faults.judgement import attempt_of
from tests.faults.witness import ATTEMPT, BEGIN, CUT, DIED, RESULT, TROUBLE, Line, Witness
from tests.soak import jobs
from tests.soak.faults import Injector, Missed
from tests.soak.fleet import Fleet
from tests.soak.gate import Gate
from tests.soak.replica import SIGTERM_CODE
from tests.support.pgbouncer import PgBouncer, installed_program, running

PAUSE = 1.0
"""Seconds between two faults."""
QUIET_EVERY = 60.0
"""Seconds between two looks at what happened, for which all replicas come to rest."""
REST_WITHIN = 60.0
END_WITHIN = 40.0
POOL_SIZE = 3
MAX_EVIDENCE = 200
AROUND = 3_000_000_000
"""Nanoseconds before and after what a violation is about, whose faults are told with it."""


@dataclass
class Report:
    """What came of a soak."""

    seed: str
    minutes: float = 0
    attempts: int = 0
    runs: int = 0
    skips: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    """Of the history's rows, those of the checker's own attempts among them."""
    results: Counter[str] = field(default_factory=Counter)
    """What the callers saw."""
    faults: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    """Faults that found nothing to hit."""
    faults_of_jobs: Counter[str] = field(default_factory=Counter)
    """What bodies did because they were told to; not among the faults."""
    looks: int = 0
    violations: list[dict[str, Any]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        values = {name: dict(value) if isinstance(value, Counter) else value for name, value in vars(self).items()}
        return {**values, "faults_in_all": self.faults.total(), "violations_in_all": len(self.violations)}

    def lines(self) -> Iterator[str]:
        yield f"seed {self.seed}, {self.minutes:.1f} minutes, looked at {self.looks} times"
        yield ", ".join(f"{name} {value}" for name, value in self.versions.items())
        counts = f"{self.attempts} attempts, {self.runs} runs, {self.skips} skips, {self.faults.total()} faults"
        yield f"{counts}, {len(self.violations)} violations"
        for title, counts in (
            ("history", self.statuses),
            ("callers saw", self.results),
            ("faults", self.faults),
            ("found nothing to hit", self.missed),
            ("bodies told to", self.faults_of_jobs),
        ):
            yield f"{title}:"
            yield from (f"{number:>8} {name}" for name, number in counts.most_common())
        for violation in self.violations[:20]:
            yield f"VIOLATION {violation['what']}"


class Soak:
    """One soak. Arguments: `stopping`, which ends it early when it is set."""

    def __init__(self, seed: str, minutes: float, stopping: threading.Event) -> None:
        self.report = Report(seed)
        self._seconds = minutes * 60
        self._stopping = stopping
        self._judged = 0
        """The last run that was judged."""
        self._kept: dict[int, str] = {}
        """The statuses of the rows that were judged, which must not change any more."""
        self._periods = Periods()
        self._stuck: list[str] = []
        """What did not come about although it must."""

    def run(self) -> None:
        """Do it all; what came of it is in `report`, also when this fails."""
        began = time.monotonic()
        with ExitStack() as stack:
            clusters = stack.enter_context(clusters_in_a_short_place())
            self._cluster = clusters.primary("soak", port=str(lasting_port()))
            connection = self._connection = self._cluster.connect()
            stack.enter_context(default_connection(connection))
            stack.callback(connection.close)
            bodies.create_work(connection)
            directory = Path(tempfile.mkdtemp(prefix="sc-soak-"))
            stack.callback(shutil.rmtree, directory)
            bouncer = self._start_bouncer(stack)
            self._witness = Witness(directory / "witness")
            stack.callback(self._witness.close)
            self._gate = Gate(directory / "gate")
            self._fleet = Fleet(self.report.seed, self._cluster, bouncer, self._witness, self._gate, directory)
            stack.callback(self._fleet.destroy)
            self._injector = Injector(self._fleet, self._cluster, bouncer, self._witness)
            self.report.versions = versions(connection, bouncer)
            connection.close()
            self._fleet.revive()
            is_last = False
            while not is_last:
                self._let_faults_happen(began)
                is_last = self._is_over(began)
                self._look(bouncer, is_last=is_last)
                self.report.minutes = (time.monotonic() - began) / 60

    def _is_over(self, began: float) -> bool:
        return self._stopping.is_set() or time.monotonic() - began >= self._seconds

    def _start_bouncer(self, stack: ExitStack) -> PgBouncer | None:
        if installed_program() is None:
            return None
        # Where the server was down, PgBouncer tries again after that many seconds, not 15.
        return stack.enter_context(running(self._connection, pool_size=POOL_SIZE, server_login_retry="1"))

    def _let_faults_happen(self, began: float) -> None:
        kinds = self._injector.kinds()
        until = time.monotonic() + QUIET_EVERY
        while time.monotonic() < until and not self._is_over(began):
            self._stopping.wait(PAUSE)
            number = self.report.faults.total() + self.report.missed.total()
            drawn = Random(f"{self.report.seed}/fault/{number}")
            [kind] = drawn.choices([*kinds], [weight for weight, _ in kinds.values()])
            self._fleet.revive()
            try:
                kinds[kind][1](drawn)
            except (Missed, ProcessLookupError, Error):
                self.report.missed[kind] += 1
            except AssertionError as error:
                self._stuck.append(f"(d) After the fault {kind!r}: {error}")
                self._fleet.tell_stacks()
                self._fleet.end()
            else:
                self.report.faults[kind] += 1

    def _look(self, bouncer: PgBouncer | None, *, is_last: bool) -> None:
        """Let all come to rest, check what happened since the last time, and put it away."""
        self._fleet.revive()
        violations, self._stuck = self._stuck, []
        if not self._gate.close(REST_WITHIN):
            violations.append("(d) Not all replicas came to rest: some call neither returns nor ends.")
            self._fleet.tell_stacks()
            self._fleet.end()
            self._gate.close(REST_WITHIN)
        try:
            if is_last:
                self._fleet.end()
            if bouncer is not None:
                # It keeps sessions for whoever comes next.
                bouncer.end()
            found, rows = look(
                self._witness,
                self._connection,
                alive=self._fleet.pids,
                unreachable=self._rows_that_went(),
                seconds=END_WITHIN,
                after=self._judged,
            )
            violations += found
            lines = self._witness.lines()
            violations += [*self._periods.violations(lines, rows), *self._changed(), *deaths(lines)]
            self._count(lines, rows)
            self._note(violations, lines, rows)
            self._put_away(rows)
            if bouncer is not None:
                bouncer.start()
        finally:
            self._connection.close()
            if not is_last:
                self._gate.open()

    def _rows_that_went(self) -> set[int]:
        """Return the runs whose rows were deleted and that did not live to write them again."""
        deleted = self._injector.deleted
        return deleted - set(JobRun.objects.filter(pk__in=deleted).values_list("pk", flat=True))

    def _changed(self) -> Iterator[str]:
        """Name the rows that were judged the last time, and are not what they were."""
        rows = dict(JobRun.objects.filter(pk__in=self._kept).values_list("pk", "status"))
        for run, status in self._kept.items():
            if rows.get(run) != status:
                yield f"(c) Run {run} read {status!r} when all was over, and {rows.get(run)!r} later."

    def _put_away(self, rows: list[JobRun]) -> None:
        """Forget what was judged; the rows stay until the next time, for those who ask for earlier runs."""
        JobRun.objects.filter(pk__in=self._kept).delete()
        self._kept = {row.pk: row.status for row in rows}
        self._judged = max([self._judged, *self._kept])
        bodies.create_work(self._connection)
        self._injector.deleted.clear()
        self._witness.forget()
        self._fleet.log.write_text("")

    def _count(self, lines: list[Line], rows: list[JobRun]) -> None:
        report = self.report
        report.looks += 1
        own = {line.attempt for line in lines if line.kind == ATTEMPT and not line.attempt.startswith("again-")}
        begun = {line.attempt for line in lines if line.kind == BEGIN} & own
        report.attempts += len(own)
        report.runs += len(begun)
        report.skips += sum(row.status == JobRun.Status.SKIPPED and attempt_of(row) in own for row in rows)
        report.statuses.update(row.status for row in rows)
        for line in lines:
            if line.kind == RESULT and line.attempt in own:
                report.results[in_short(line)] += 1
            elif line.kind == ATTEMPT and line.attempt in begun:
                report.faults_of_jobs.update(filter(None, [jobs.fault_of(line.acts)]))

    def _note(self, violations: Iterable[str], lines: list[Line], rows: list[JobRun]) -> None:
        for text in violations:
            print(f"VIOLATION {text}", flush=True)
            evidence = evidence_of(text, lines, rows)
            self.report.violations.append({"what": text, **evidence, "log": self._fleet.log.read_text()[-5000:]})


class Periods:
    """What slots and least intervals promise: counted over all runs whose bodies began."""

    def __init__(self) -> None:
        self._of_slot: Counter[tuple[str, Any]] = Counter()
        self._last_paced: JobRun | None = None

    def violations(self, lines: list[Line], rows: list[JobRun]) -> Iterator[str]:
        began = {line.run for line in lines if line.kind == BEGIN}
        for row in rows:
            if row.pk not in began:
                continue
            # Without a second try, any run takes its slot.
            if row.slot is not None and (row.status == JobRun.Status.SUCCEEDED or row.job == jobs.once.name):
                self._of_slot[row.job, row.slot] += 1
                if self._of_slot[row.job, row.slot] == 2:
                    yield f"(e) {row}: its slot of {row.slot} was taken."
            if row.job == jobs.paced.name:
                last, self._last_paced = self._last_paced, row
                if last and not row.forced and row.started_at - last.started_at < jobs.MIN_INTERVAL:
                    yield f"(e) {row} started too soon after run {last.pk}."


def in_short(result: Line) -> str:
    """Return what a caller saw, without what makes it one of its kind."""
    if result.error is None:
        return str(result.reason or result.outcome)
    message = re.sub(r'The job "[^"]*"', "The job", " ".join(str(result.message).split()))
    message = re.sub(r"(?<=server).*?(?=failed|: )", "", re.sub(r"\d+", "N", message))
    return f"{result.error}: {message}"[:150]


def lasting_port() -> int:
    """Return a free port that no client's end of a connection gets while the server is down."""
    # Below what systems give to clients: from 32768 on Linux, from 49152 elsewhere.
    for port in random.sample(range(20000, 32000), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("No port is free.")


def deaths(lines: list[Line]) -> Iterator[str]:
    """(d) Name the replicas that ended by themselves."""
    cut = {line.process for line in lines if line.kind == CUT}
    for line in lines:
        if line.kind == DIED and line.process not in cut and line.code != SIGTERM_CODE:
            yield f"(d) The process {line.process} ended by itself, with {line.code}."


def evidence_of(violation: str, lines: list[Line], rows: list[JobRun]) -> dict[str, Any]:
    """Return the lines and rows that a violation speaks of."""
    named = {int(number) for number in re.findall(r"(?:run |#|process )(\d+)", violation, re.IGNORECASE)}
    attempts = set(re.findall(r"attempt ([\w.-]+)", violation))
    attempts |= {attempt_of(row) for row in rows if row.pk in named}
    attempts |= {line.attempt for line in lines if line.kind == BEGIN and line.run in named}
    named |= {row.pk for row in rows if attempt_of(row) in attempts}
    bodies_named = {line.body for line in lines if line.kind == BEGIN and line.run in named}

    def is_told(line: Line) -> bool:
        return line.attempt in attempts or line.run in named or line.process in named or line.body in bodies_named

    told = [line for line in lines if is_told(line)]
    pids = {line.pid for line in told}
    first, last = min((line.at for line in told), default=0), max((line.at for line in told), default=0)
    also = [
        line
        for line in lines
        if line.kind in (CUT, TROUBLE, DIED)
        and (line.process is None or line.process in pids)
        and first - AROUND < line.at < last + AROUND
        and not is_told(line)
    ]
    columns = ("job", "status", "outcome", "skip_reason", "pid", "backend_pid", "error_class", "error_message")
    moments = ("started_at", "finished_at", "slot")
    return {
        "lines": [dict(line) for line in sorted([*told, *also], key=lambda line: line.at)][:MAX_EVIDENCE],
        "rows": [
            {
                "id": row.pk,
                "attempt": attempt_of(row),
                **{name: getattr(row, name) for name in columns},
                **{name: str(getattr(row, name)) for name in moments},
                "held_by": row.held_by_id,
            }
            for row in rows
            if row.pk in named or attempt_of(row) in attempts
        ],
        "processes": sorted(pids),
    }


def versions(connection: BaseDatabaseWrapper, bouncer: PgBouncer | None) -> dict[str, str]:
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version")
        [server] = cursor.fetchone()
    driver = type(connection.connection).__module__.partition(".")[0]
    packages = {"psycopg": "psycopg", "psycopg2": "psycopg2-binary"}
    found = {
        "PostgreSQL": server.split()[0],
        "Python": platform.python_version(),
        "Django": django.get_version(),
        driver: version(packages[driver]),
    }
    return {**found, "PgBouncer": version_of_pgbouncer() if bouncer else "none"}


def version_of_pgbouncer() -> str:
    said = subprocess.run([installed_program(), "--version"], capture_output=True, text=True, check=True).stdout
    return said.split()[1]
