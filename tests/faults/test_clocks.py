"""Clocks are wrong: a replica's, by hours and years, and the server's, which is set back or forward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from django.db import connection
from pytest_django.plugin import DjangoDbBlocker

from django_singlecron.models import JobRun
from tests.faults.clusters import Cluster, Clusters
from tests.faults.jobs import BETWEEN, LAST
from tests.faults.replicas import Attempt, Case, Workers
from tests.faults.server_cases import ServerCase, server_case
from tests.faults.steps import AFTER_WRITE, BEFORE_LOCK, POINTS, Point
from tests.support.replicas import Replicas, database_url
from tests.support.services import service_missing
from tests.support_core import real_database

LIBRARIES = ("/usr/lib/*/faketime/libfaketime.so.1", "/usr/local/lib/faketime/libfaketime.so.1")

# The server's clock at the beginning of a test: half an hour into a month, which is a slot of the monthly job.
JULY = datetime(2026, 7, 1, 0, 30, tzinfo=timezone.utc)
JUNE = datetime(2026, 6, 30, 22, 30, tzinfo=timezone.utc)
SLOTS = {JULY: datetime(2026, 7, 1, tzinfo=timezone.utc), JUNE: datetime(2026, 6, 1, tzinfo=timezone.utc)}

HOUR = timedelta(hours=1)


def under_another_clock(**how: str) -> list[str]:
    """Return the command through which a process has another clock: the time of day, not the time that passes."""
    library = next((path for pattern in LIBRARIES for path in Path("/").glob(pattern[1:])), None)
    if library is None:
        service_missing("libfaketime is not installed. On Debian and Ubuntu: apt-get install faketime")
    options = {"LD_PRELOAD": str(library), "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1", **how}
    return ["env", *(f"{name}={value}" for name, value in options.items())]


class Clock:
    """The clock of a server, as a test sets it."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def set(self, moment: datetime) -> None:
        offset = round((moment - datetime.now(timezone.utc)).total_seconds())
        # At once as a whole: the server reads it at any time.
        new = self._file.with_suffix(".new")
        new.write_text(f"{offset:+d}")
        new.rename(self._file)


class ClockedCluster(Cluster):
    """A server whose clock is set by a file."""

    def __init__(self, cluster: Cluster) -> None:
        self.__dict__.update(cluster.__dict__)
        self.clock = Clock(self.directory / "clock")
        self.clock.set(JULY)
        self._enter = [*self._enter, *under_another_clock(FAKETIME_TIMESTAMP_FILE=str(self.directory / "clock"))]


@contextmanager
def nothing_left_in_memory() -> Iterator[None]:
    """Remove what libfaketime keeps in shared memory for processes, and leaves there when they are killed."""

    def kept() -> set[Path]:
        return {path for pattern in ("faketime_shm_*", "sem.faketime_sem_*") for path in Path("/dev/shm").glob(pattern)}

    before = kept()
    try:
        yield
    finally:
        for path in kept() - before:
            path.unlink()


@pytest.fixture(scope="session")
def clocked_cluster(clusters: Clusters, django_db_blocker: DjangoDbBlocker) -> Iterator[ClockedCluster]:
    with django_db_blocker.unblock(), nothing_left_in_memory():
        cluster = clusters.primary("clocked")
        cluster.stop()
        clocked = ClockedCluster(cluster)
        clocked.start()
        yield clocked
        clocked.stop()


@pytest.fixture
def clock(clocked_cluster: ClockedCluster) -> Clock:
    clocked_cluster.clock.set(JULY)
    return clocked_cluster.clock


@pytest.fixture
def server(
    workers: Workers,
    clocked_cluster: ClockedCluster,
    clock: Clock,
    tmp_path: Path,
    django_db_blocker: DjangoDbBlocker,
) -> Iterator[ServerCase]:
    """Replicas on the server with the clock; the test ends with `server.check()`."""
    with django_db_blocker.unblock(), server_case(workers, clocked_cluster, tmp_path) as case:
        yield case


OFFSETS = {"five hours behind": "-5h", "five hours ahead": "+5h", "a year behind": "-365d", "30 years ahead": "+10957d"}


@pytest.fixture(scope="session")
def wrong_workers(
    request: pytest.FixtureRequest, django_db_setup: None, django_db_blocker: DjangoDbBlocker
) -> Iterator[Workers]:
    """Forks replicas whose clock is wrong by what the parameter says."""
    with django_db_blocker.unblock():
        replicas = Replicas(database_url(connection))
    with nothing_left_in_memory():
        yield Workers(replicas, enter=under_another_clock(FAKETIME=OFFSETS[request.param]))
        replicas.destroy()


def ran(attempt: Attempt) -> bool:
    result = attempt.result()
    assert result.outcome in ("acquired", "skipped"), dict(result)
    return bool(result.outcome == "acquired")


def reason(attempt: Attempt) -> str | None:
    return attempt.result().reason


def slots() -> set[datetime | None]:
    """The slots that are taken."""
    return set(JobRun.objects.succeeded().filter(forced=False).values_list("slot", flat=True))


@real_database
@pytest.mark.parametrize("wrong_workers", OFFSETS, indirect=True)
class TestAReplica:
    @pytest.mark.parametrize("first", ["right", "wrong"])
    @pytest.mark.parametrize(
        ("job", "skip_reason"), [("work", None), ("monthly", "already_ran"), ("spaced", "too_soon"), ("timed", None)]
    )
    @pytest.mark.fault("a replica's clock is {wrong_workers}")
    def test_the_servers_clock_counts(
        self, case: Case, wrong_workers: Workers, job: str, skip_reason: str | None, first: str
    ) -> None:
        right = case.workers
        attempts = []
        now = datetime.now(timezone.utc)
        for workers in [right, wrong_workers] if first == "right" else [wrong_workers, right]:
            case.workers = workers
            attempts.append(case.attempt(job))
            attempts[-1].result()
        assert ran(attempts[0])
        assert reason(attempts[1]) == skip_reason
        for attempt in attempts:
            assert abs(attempt.row.started_at - now) < HOUR
            assert attempt.row.finished_at is not None
            assert abs(attempt.row.finished_at - now) < HOUR
            # A run of the last seconds of a month is of the next one.
            slot = (now + timedelta(seconds=30)).strftime("%Y-%m-01")
            assert (attempt.row.slot and attempt.row.slot.strftime("%Y-%m-%d")) == (slot if job == "monthly" else None)
        case.check()

    @pytest.mark.fault("a replica's clock is {wrong_workers}", step=AFTER_WRITE.name)
    def test_what_it_leaves_when_it_is_killed_is_found_out_by_others(self, case: Case, wrong_workers: Workers) -> None:
        right, case.workers = case.workers, wrong_workers
        killed = case.attempt(acts={BETWEEN: ["kill"]})
        assert killed.code() == -9
        case.workers = right
        assert ran(case.attempt())
        assert killed.row.status == "lost"
        case.check()


class TestTheServersClockIsSetBack:
    """By two hours, from July into June."""

    @pytest.mark.fault("the server's clock is set back")
    def test_between_two_runs(self, server: ServerCase, clock: Clock) -> None:
        first = server.attempt()
        assert ran(first)
        clock.set(JUNE)
        second = server.attempt()
        assert ran(second)
        assert second.row.started_at < first.row.started_at
        server.check()

    @pytest.mark.fault("the server's clock is set back, with slots")
    def test_each_slot_is_taken_once(self, server: ServerCase, clock: Clock) -> None:
        assert ran(server.attempt("monthly"))
        clock.set(JUNE)
        assert ran(server.attempt("monthly"))
        assert reason(server.attempt("monthly")) == "already_ran"
        clock.set(JULY)
        assert reason(server.attempt("monthly")) == "already_ran"
        assert slots() == {SLOTS[JUNE], SLOTS[JULY]}
        server.check()

    @pytest.mark.fault("the server's clock is set back, with slots that the first run closes")
    def test_a_slot_that_is_closed_stays_so(self, server: ServerCase, clock: Clock) -> None:
        failed = server.attempt("once", acts={LAST: ["raise"]})
        assert failed.result().error == "JobFailed"
        clock.set(JUNE)
        assert ran(server.attempt("once"))
        clock.set(JULY)
        assert reason(server.attempt("once")) == "already_ran"
        assert slots() == {SLOTS[JUNE]}
        server.check()

    @pytest.mark.parametrize(("back", "runs"), [(HOUR / 2, False), (2 * HOUR, True)], ids=["half", "twice"])
    @pytest.mark.fault("the server's clock is set back, with min_interval")
    def test_an_interval_is_kept_at_most_twice(
        self, server: ServerCase, clock: Clock, back: timedelta, runs: bool
    ) -> None:
        assert ran(server.attempt("spaced"))
        clock.set(JULY - back)
        assert ran(server.attempt("spaced")) is runs
        clock.set(JULY - back + 2 * HOUR)
        assert ran(server.attempt("spaced"))
        server.check()

    @pytest.mark.parametrize("job", ["work", "monthly", "once", "spaced"])
    @pytest.mark.fault("the server's clock is set back after a kill -9", step=AFTER_WRITE.name)
    def test_a_killed_run_is_found_out(self, server: ServerCase, clock: Clock, job: str) -> None:
        killed = server.attempt(job, acts={BETWEEN: ["kill"]})
        assert killed.code() == -9
        clock.set(JUNE)
        assert ran(server.attempt(job))
        assert killed.row.status == "lost"
        server.check()

    @pytest.mark.parametrize("moment", [JUNE, JULY + 2 * HOUR], ids=["back", "forward"])
    @pytest.mark.parametrize("job", ["work", "monthly", "spaced"])
    @pytest.mark.parametrize("point", POINTS)
    @pytest.mark.fault("the server's clock is set back or forward, {job}")
    def test_in_the_middle_of_a_run(
        self, server: ServerCase, clock: Clock, point: Point, job: str, moment: datetime
    ) -> None:
        attempt, _ = server.stopped_at(point, job)
        clock.set(moment)
        server.proxy.go_on()
        assert ran(attempt)
        assert attempt.row.status == "succeeded"
        server.check()

    @pytest.mark.parametrize("moment", [JUNE, JULY + 2 * HOUR], ids=["back", "forward"])
    @pytest.mark.parametrize("point", POINTS)
    @pytest.mark.fault("the server's clock is set back or forward, with a timeout")
    def test_a_deadline_of_the_server_may_end_a_run_early(
        self, server: ServerCase, clock: Clock, point: Point, moment: datetime
    ) -> None:
        # PostgreSQL's own timeouts follow its clock. The run is recorded as what it was, see the checker.
        attempt, _ = server.stopped_at(point, "timed")
        clock.set(moment)
        server.proxy.go_on()
        result = attempt.result()
        assert result.outcome == "acquired" or "timeout" in result.message, dict(result)
        assert attempt.row.status == ("succeeded" if result.outcome == "acquired" else "failed")
        server.check()

    @pytest.mark.parametrize(("job", "outcome"), [("work", "acquired"), ("monthly", "skipped")])
    @pytest.mark.fault("the server's clock is set forward, {job}, and another run comes")
    def test_one_that_is_taken_for_lost_has_the_last_word(
        self, server: ServerCase, clock: Clock, job: str, outcome: str
    ) -> None:
        first, _ = server.stopped_at(BEFORE_LOCK, job)
        clock.set(JULY + HOUR)
        assert ran(server.attempt(job, direct=True))
        assert first.row.status == "lost"
        server.proxy.go_on()
        assert first.result().outcome == outcome
        assert first.row.status == ("succeeded" if outcome == "acquired" else "skipped")
        server.check()
