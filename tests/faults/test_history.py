"""The history's table is missing, locked, changed, emptied or out of space, at each step of a run."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError

from django_singlecron.models import JobRun
from tests.faults.jobs import BETWEEN, LAST
from tests.faults.marks import at_points
from tests.faults.replicas import Case
from tests.faults.steps import (
    AFTER_ATTEMPT,
    AFTER_COMMIT,
    AFTER_LOCK,
    AFTER_MARK,
    AFTER_WRITE,
    BEFORE_ATTEMPT,
    BEFORE_COMMIT,
    BEFORE_LOCK,
    BEFORE_MARK,
    BEFORE_WRITE,
    CONNECTING,
    Point,
)
from tests.support.deadlines import wait_until
from tests.support.services import service_missing
from tests.support_core import real_database, session

pytestmark = real_database

TABLE = "django_singlecron_jobrun"


# Once it has begun, the run does not look at the history until it has done its work.
BEFORE_IT_BEGINS = (CONNECTING, BEFORE_ATTEMPT)
WHILE_IT_RUNS = (AFTER_ATTEMPT, BEFORE_LOCK, AFTER_LOCK, BEFORE_WRITE, AFTER_WRITE, BEFORE_MARK)
# Its success mark holds the table until the commit.
MARKED = (AFTER_MARK, BEFORE_COMMIT)
FREE = (*BEFORE_IT_BEGINS, *WHILE_IT_RUNS, AFTER_COMMIT)

at_each_end = pytest.mark.parametrize(
    ("point", "act"),
    [
        *(pytest.param(point, None, id=f"{point.name}-returns") for point in WHILE_IT_RUNS),
        # What raises comes to no success mark.
        *(pytest.param(point, ["raise"], id=f"{point.name}-raises") for point in WHILE_IT_RUNS[:-1]),
    ],
)

WAITING = "SELECT count(*) FROM pg_locks WHERE relation = 'django_singlecron_jobrun'::regclass AND NOT granted"


def statuses() -> list[str]:
    """The statuses of all attempts but the checker's."""
    return list(JobRun.objects.exclude(arguments__contains="again-").order_by("id").values_list("status", flat=True))


class TestAMigration:
    """Another session has the table locked, as ALTER TABLE does until its commit."""

    @at_points(*FREE)
    @pytest.mark.fault("the history's table is locked, then not")
    def test_a_run_waits_for_it(self, case: Case, point: Point) -> None:
        attempt, _ = case.stopped_at(point)
        with session() as migration, session() as observer:
            migration.execute(f"BEGIN; LOCK TABLE {TABLE} IN ACCESS EXCLUSIVE MODE")
            case.proxy.go_on()
            if point != AFTER_COMMIT:
                wait_until(lambda: observer.one(WAITING), what="the run waits for the table")
            migration.execute("ALTER TABLE django_singlecron_jobrun ADD COLUMN of_the_next_version integer; COMMIT")
        assert attempt.result().outcome == "acquired"
        case.check()
        execute("ALTER TABLE django_singlecron_jobrun DROP COLUMN of_the_next_version")
        assert statuses() == ["succeeded"]

    @at_points(*MARKED)
    @pytest.mark.fault("the history's table is locked, then not")
    def test_it_waits_for_a_run_that_has_written_its_success(self, case: Case, point: Point) -> None:
        attempt, _ = case.stopped_at(point)
        with session() as migration:
            migration.execute("SET lock_timeout = '100ms'")
            with pytest.raises(OperationalError, match="lock timeout"):
                migration.execute(f"BEGIN; LOCK TABLE {TABLE} IN ACCESS EXCLUSIVE MODE")
        case.proxy.go_on()
        assert attempt.result().outcome == "acquired"
        case.check()
        assert statuses() == ["succeeded"]

    @at_points(*BEFORE_IT_BEGINS)
    @pytest.mark.fault("the history's table is locked for longer than the role may wait")
    def test_an_attempt_that_may_not_wait_is_refused(self, case: Case, point: Point) -> None:
        with impatient():
            attempt, _ = case.stopped_at(point)
            with session() as migration:
                migration.execute(f"BEGIN; LOCK TABLE {TABLE} IN ACCESS EXCLUSIVE MODE")
                case.proxy.go_on()
                assert attempt.result().error == "DatabaseUnavailable"
                migration.execute("COMMIT")
        case.check()
        assert statuses() == []

    @at_points(*WHILE_IT_RUNS)
    @pytest.mark.fault("the history's table is locked for longer than the role may wait")
    def test_a_run_that_may_not_wait_is_rolled_back(self, case: Case, point: Point) -> None:
        with impatient():
            attempt, _ = case.stopped_at(point)
            # Its own record may not be written either.
            attempt.cut()
            with session() as migration:
                migration.execute(f"BEGIN; LOCK TABLE {TABLE} IN ACCESS EXCLUSIVE MODE")
                case.proxy.go_on()
                assert attempt.result().error == "OperationalError"
                migration.execute("COMMIT")
        case.check()
        assert statuses() == ["lost"]

    @at_points(*WHILE_IT_RUNS[:-1])
    @pytest.mark.fault("the history's table is locked for longer than the role may wait")
    def test_a_run_that_fails_then_raises_its_own_error(self, case: Case, point: Point) -> None:
        with impatient():
            attempt, _ = case.stopped_at(point, acts={LAST: ["raise"]})
            attempt.cut()
            with session() as migration:
                migration.execute(f"BEGIN; LOCK TABLE {TABLE} IN ACCESS EXCLUSIVE MODE")
                case.proxy.go_on()
                assert attempt.result().error == "JobFailed"
                migration.execute("COMMIT")
        case.check()
        assert statuses() == ["lost"]


def execute(statement: str) -> None:
    """Execute it on a connection of its own, which is closed after it."""
    with session() as owner:
        owner.execute(statement)


@contextmanager
def altered(there: str, back: str) -> Iterator[None]:
    execute(there)
    try:
        yield
    finally:
        execute(back)


@contextmanager
def impatient() -> Iterator[None]:
    """Let no statement of a replica wait for a table for longer than a moment."""
    with session() as owner:
        name = owner.one("SELECT current_database()")
    with altered(f"ALTER DATABASE {name} SET lock_timeout = '200ms'", f"ALTER DATABASE {name} RESET lock_timeout"):
        yield


MISSING = pytest.param(
    f"ALTER TABLE {TABLE} RENAME TO elsewhere",
    f"ALTER TABLE elsewhere RENAME TO {TABLE}",
    id="missing",
    marks=pytest.mark.fault("the history's table is missing"),
)


def without(column: str) -> Any:
    there, back = f"RENAME {column} TO elsewhere", f"RENAME elsewhere TO {column}"
    fault = pytest.mark.fault("a column of the history is missing")
    return pytest.param(f"ALTER TABLE {TABLE} {there}", f"ALTER TABLE {TABLE} {back}", id=f"no {column}", marks=fault)


def narrower(size: int) -> str:
    """Return the statement by which no status of more characters may be written."""
    return f"ALTER TABLE {TABLE} ADD CONSTRAINT narrow CHECK (length(status) <= {size}) NOT VALID"


class TestAnotherTable:
    @at_points(*BEFORE_IT_BEGINS)
    @pytest.mark.parametrize(("there", "back"), [MISSING, without("forced")])
    def test_an_attempt_is_refused(self, case: Case, point: Point, there: str, back: str) -> None:
        attempt, _ = case.stopped_at(point)
        with altered(there, back):
            case.proxy.go_on()
            assert attempt.result().error == "HistoryNotMigrated"
        case.check()
        assert statuses() == []

    @at_each_end
    @pytest.mark.parametrize(("there", "back"), [MISSING, without("output")])
    def test_a_run_whose_end_cannot_be_recorded_is_rolled_back(
        self, case: Case, point: Point, act: list[str] | None, there: str, back: str
    ) -> None:
        attempt, _ = case.stopped_at(point, acts={BETWEEN: act} if act else None)
        attempt.cut()
        with altered(there, back):
            case.proxy.go_on()
            assert attempt.result().error == ("JobFailed" if act else "ProgrammingError")
        case.check()
        assert statuses() == ["lost"]

    @at_points(*WHILE_IT_RUNS)
    @pytest.mark.fault("the history's table takes no success")
    def test_a_run_whose_success_is_refused_is_rolled_back_and_failed(self, case: Case, point: Point) -> None:
        attempt, _ = case.stopped_at(point)
        with altered(narrower(7), f"ALTER TABLE {TABLE} DROP CONSTRAINT narrow"):
            case.proxy.go_on()
            assert attempt.result().error == "IntegrityError"
        case.check()
        assert statuses() == ["failed"]

    @at_points(AFTER_COMMIT)
    @pytest.mark.parametrize(("there", "back"), [MISSING, without("output")])
    def test_after_the_commit_it_is_no_matter(self, case: Case, point: Point, there: str, back: str) -> None:
        attempt, _ = case.stopped_at(point)
        with altered(there, back):
            case.proxy.go_on()
            assert attempt.result().outcome == "acquired"
        case.check()
        assert statuses() == ["succeeded"]


class TestTheRow:
    @at_each_end
    @pytest.mark.parametrize(
        "statement",
        [
            pytest.param(f"DELETE FROM {TABLE}", id="deleted", marks=pytest.mark.fault("its row is deleted")),
            pytest.param(f"TRUNCATE {TABLE}", id="truncated", marks=pytest.mark.fault("the history is truncated")),
            pytest.param(
                f"TRUNCATE {TABLE} RESTART IDENTITY",
                id="numbered anew",
                marks=pytest.mark.fault("the history is truncated and numbered anew"),
            ),
        ],
    )
    def test_it_is_written_again(self, case: Case, point: Point, act: list[str] | None, statement: str) -> None:
        attempt, _ = case.stopped_at(point, acts={BETWEEN: act} if act else None)
        with session() as other:
            other.execute(statement)
        case.proxy.go_on()
        result = attempt.result()
        assert result.outcome == ("raised" if act else "acquired")
        assert statuses() == ["failed" if act else "succeeded"]
        assert attempt.row.finished_at is not None
        case.check()

    @at_points(*WHILE_IT_RUNS)
    @pytest.mark.fault("its row is deleted while another asks for its lock")
    def test_others_are_kept_out_meanwhile(self, case: Case, point: Point) -> None:
        attempt, _ = case.stopped_at(point)
        JobRun.objects.all().delete()
        other = case.attempt(direct=True).result()
        case.proxy.go_on()
        result = attempt.result()
        holds = point not in (AFTER_ATTEMPT, BEFORE_LOCK)
        assert (result.outcome, other.outcome) == (("acquired", "skipped") if holds else ("acquired", "acquired"))
        case.check()

    @at_points(*MARKED)
    @pytest.mark.fault("its row is deleted")
    def test_once_it_is_marked_it_cannot_be_deleted_before_the_commit(self, case: Case, point: Point) -> None:
        attempt, _ = case.stopped_at(point)
        with session() as other:
            other.execute("SET lock_timeout = '100ms'")
            with pytest.raises(OperationalError, match="lock timeout"):
                other.execute(f"DELETE FROM {TABLE}")
        case.proxy.go_on()
        assert attempt.result().outcome == "acquired"
        case.check()


FILLING = f"""
DO $$ BEGIN
    LOOP
        INSERT INTO {TABLE} (id, job, status, outcome, host, pid, trigger, started_at, output)
        SELECT -nextval('filling'), 'filler', 'skipped', 'skipped', '', 1, '', now(),
               string_agg(md5(random()::text), '')
        FROM generate_series(1, %s);
        COMMIT;
    END LOOP;
END $$
"""


class Disk:
    """A small file system, in which the history's table is."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self) -> None:
        """Leave no room, neither on the disk nor in the table."""
        (self.path / "filler").write_bytes(b"x" * self._free())
        # Attempts of nobody, ever smaller ones.
        with session() as owner:
            for size in (6000, 1000, 100, 1):
                # Random text, which is not compressed.
                with pytest.raises(OperationalError, match="No space left"):
                    owner.execute(FILLING, size // 32 + 1)

    def empty(self) -> None:
        (self.path / "filler").unlink(missing_ok=True)
        JobRun.objects.filter(job="filler").delete()

    def _free(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize


@pytest.fixture
def disk(case: Case) -> Iterator[Disk]:
    """Have the history's table on a disk of its own for the test."""
    if os.geteuid() != 0:
        service_missing("A file system of two megabytes is mounted for it: run the tests as root")
    with ExitStack() as stack:
        path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="disk-")))
        with session() as owner:
            data = Path(owner.one("SHOW data_directory")).stat()
        options = f"size=2m,mode=700,uid={data.st_uid},gid={data.st_gid}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", path], check=True)
        stack.callback(subprocess.run, ["umount", path], check=True)
        path.parent.chmod(path.parent.stat().st_mode | 0o001)
        for there, back in (
            ("CREATE SEQUENCE filling", "DROP SEQUENCE filling"),
            (f"CREATE TABLESPACE small LOCATION '{path}'", "DROP TABLESPACE small"),
            (f"ALTER TABLE {TABLE} SET TABLESPACE small", f"ALTER TABLE {TABLE} SET TABLESPACE pg_default"),
        ):
            stack.enter_context(altered(there, back))
        disk = Disk(path)
        stack.callback(disk.empty)
        yield disk


class TestAFullDisk:
    @at_points(*BEFORE_IT_BEGINS)
    @pytest.mark.fault("the history's disk is full")
    def test_an_attempt_is_refused(self, case: Case, disk: Disk, point: Point) -> None:
        attempt, _ = case.stopped_at(point)
        disk.fill()
        case.proxy.go_on()
        result = attempt.result()
        disk.empty()
        assert (result.error, "No space left" in result.message) == ("DatabaseUnavailable", True)
        case.check()
        assert statuses() == []

    @at_each_end
    @pytest.mark.fault("the history's disk is full")
    def test_a_run_whose_success_cannot_be_written_is_rolled_back(
        self, case: Case, disk: Disk, point: Point, act: list[str] | None
    ) -> None:
        attempt, _ = case.stopped_at(point, acts={BETWEEN: act} if act else None)
        attempt.cut()
        disk.fill()
        case.proxy.go_on()
        result = attempt.result()
        disk.empty()
        assert result.error == ("JobFailed" if act else "OperationalError")
        case.check()
        assert statuses() == ["lost"]

    @at_points(*MARKED, AFTER_COMMIT)
    @pytest.mark.fault("the history's disk is full")
    def test_a_success_that_is_written_needs_no_more_room(self, case: Case, disk: Disk, point: Point) -> None:
        attempt, _ = case.stopped_at(point)
        disk.fill()
        case.proxy.go_on()
        result = attempt.result()
        disk.empty()
        assert result.outcome == "acquired"
        case.check()
        assert statuses() == ["succeeded"]
