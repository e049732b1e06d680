"""The checker can fail: each of the invariants, broken on purpose in what is else a faultless account."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone

import pytest

from django_singlecron.models import JobRun
from tests.faults.judgement import judge
from tests.faults.replicas import Case
from tests.faults.witness import ATTEMPT, BEGIN, CUT, DIED, END, OWN_COMMIT, RESULT, Line
from tests.support_core import is_free, real_database, session

KILLED, RAN, SKIPPED, FAILED = 1, 2, 3, 4


@dataclass
class Story:
    """Four attempts of a job: one killed, one that ran, one skipped meanwhile, and one whose body raised."""

    lines: list[Line] = field(default_factory=list)
    rows: dict[int, JobRun] = field(default_factory=dict)
    written: dict[int, int] = field(default_factory=lambda: {RAN: 2})

    def __post_init__(self) -> None:
        self.note(ATTEMPT, KILLED)
        self.note(BEGIN, KILLED, body="k", writes=2, run=KILLED)
        self.lines.append(Line(at=len(self.lines), kind=CUT, pid=0, process=100 + KILLED))
        self.lines.append(Line(at=len(self.lines), kind=DIED, pid=0, process=100 + KILLED, code=-9))
        self.note(ATTEMPT, RAN)
        self.note(BEGIN, RAN, body="r", writes=2, run=RAN)
        self.note(ATTEMPT, SKIPPED)
        self.note(RESULT, SKIPPED, outcome="skipped", run=SKIPPED)
        self.note(END, RAN, body="r", run=RAN, how="returned")
        self.note(RESULT, RAN, outcome="acquired", run=RAN)
        self.note(ATTEMPT, FAILED)
        self.note(BEGIN, FAILED, body="f", writes=2, run=FAILED)
        self.note(END, FAILED, body="f", run=FAILED, how="raised")
        self.note(RESULT, FAILED, outcome="raised", error="JobFailed")
        self.row(KILLED, "lost")
        self.row(RAN, "succeeded")
        self.row(SKIPPED, "skipped", outcome="skipped", skip_reason="locked")
        self.row(FAILED, "failed", error_class="tests.faults.jobs.JobFailed")

    def note(self, kind: str, attempt: int, **values: object) -> None:
        line = {"kind": kind, "pid": 100 + attempt, "attempt": str(attempt), "job": "faults-a", **values}
        self.lines.append(Line(at=len(self.lines), **line))

    def row(self, run: int, status: str, attempt: int | None = None, **values: str) -> None:
        self.rows[run] = JobRun(
            pk=run,
            job="faults-a",
            status=status,
            arguments=f"attempt='{attempt or run}', lane='a', acts=None",
            finished_at=datetime(2026, 1, 1, tzinfo=timezone.utc),
            **{"outcome": "acquired", "error_class": "", **values},
        )

    def find(self, kind: str, attempt: int) -> Line:
        [line] = [line for line in self.lines if line.kind == kind and line.pid == 100 + attempt]
        return line

    def drop(self, kind: str, attempt: int) -> None:
        self.lines.remove(self.find(kind, attempt))

    def judge(self, **options: list[int]) -> list[str]:
        return judge(self.lines, list(self.rows.values()), self.written, **options)


def test_a_faultless_account_is_accepted() -> None:
    assert Story().judge() == []


def overlap(story: Story) -> None:
    story.find(BEGIN, FAILED)["at"] = story.find(BEGIN, RAN).at + 0.5


def overlap_with_the_killed(story: Story) -> None:
    story.lines = [line for line in story.lines if line.process is None]


def lose_a_write(story: Story) -> None:
    story.written[RAN] = 1


def lose_all_writes(story: Story) -> None:
    del story.written[RAN]


def keep_a_write_of_the_failed(story: Story) -> None:
    story.written[FAILED] = 1


def keep_a_write_of_the_killed(story: Story) -> None:
    story.written[KILLED] = 2


def keep_a_write_of_nobody(story: Story) -> None:
    story.written[99] = 2


def leave_it_running(story: Story) -> None:
    story.rows[KILLED].status = "running"


def leave_it_without_end(story: Story) -> None:
    story.rows[KILLED].finished_at = None


def call_the_failed_succeeded(story: Story) -> None:
    story.rows[FAILED].status = "succeeded"


def call_the_killed_succeeded(story: Story) -> None:
    story.rows[KILLED].status = "succeeded"
    story.written[KILLED] = 2


def call_what_ran_lost(story: Story) -> None:
    story.rows[RAN].status = "lost"
    story.written.clear()


def call_what_ran_lost_and_end_its_process_later(story: Story) -> None:
    call_what_ran_lost(story)
    story.lines.append(Line(at=99, kind=CUT, pid=0, process=100 + RAN))


def call_what_raised_lost(story: Story) -> None:
    story.rows[FAILED].status = "lost"


def call_what_ran_skipped(story: Story) -> None:
    story.row(RAN, "skipped", outcome="skipped", skip_reason="locked")
    story.written.clear()


def mix_outcome_and_status(story: Story) -> None:
    story.rows[SKIPPED].outcome = "acquired"


def say_no_error(story: Story) -> None:
    story.rows[FAILED].error_class = ""


def forget_a_row(story: Story) -> None:
    del story.rows[KILLED]


def forget_a_skip(story: Story) -> None:
    del story.rows[SKIPPED]


def invent_a_row(story: Story) -> None:
    story.row(99, "lost")


def write_a_row_twice(story: Story) -> None:
    story.row(99, "failed", attempt=FAILED, error_class="Error")


def tell_its_caller_that_it_was_skipped(story: Story) -> None:
    story.find(RESULT, RAN)["outcome"] = "skipped"


def tell_its_caller_of_no_run(story: Story) -> None:
    story.find(RESULT, RAN)["run"] = None


def refuse_what_ran(story: Story) -> None:
    story.find(RESULT, FAILED)["error"] = "DatabaseUnavailable"


def raise_beside_a_success(story: Story) -> None:
    story.find(RESULT, RAN).update(outcome="raised", error="OperationalError")


def never_answer(story: Story) -> None:
    story.drop(RESULT, SKIPPED)


def never_end(story: Story) -> None:
    story.drop(END, FAILED)


@pytest.mark.parametrize(
    ("break_it", "violation"),
    [
        (overlap, "(a)"),
        (overlap_with_the_killed, "(a)"),
        (lose_a_write, "(b)"),
        (lose_all_writes, "(b)"),
        (keep_a_write_of_the_failed, "(b)"),
        (keep_a_write_of_the_killed, "(b)"),
        (keep_a_write_of_nobody, "(b)"),
        (leave_it_running, "(c)"),
        (leave_it_without_end, "(c)"),
        (call_the_failed_succeeded, "(c)"),
        (call_the_killed_succeeded, "(c)"),
        (call_what_ran_lost, "(c)"),
        (call_what_ran_lost_and_end_its_process_later, "(c)"),
        (call_what_raised_lost, "(c)"),
        (call_what_ran_skipped, "(c)"),
        (mix_outcome_and_status, "(c)"),
        (say_no_error, "(c)"),
        (forget_a_row, "(c)"),
        (forget_a_skip, "(c)"),
        (invent_a_row, "(c)"),
        (write_a_row_twice, "(c)"),
        (tell_its_caller_that_it_was_skipped, "(c)"),
        (tell_its_caller_of_no_run, "(c)"),
        (refuse_what_ran, "(c)"),
        (raise_beside_a_success, "(c)"),
        (never_answer, "(c)"),
        (never_end, "(c)"),
    ],
)
def test_a_broken_account_is_found_out(break_it: Callable[[Story], None], violation: str) -> None:
    story = Story()
    break_it(story)
    assert violation in {text[:3] for text in story.judge()}


def test_a_job_that_commits_itself_may_leave_writes_but_not_succeed() -> None:
    story = Story()
    story.lines.append(Line(at=99, kind=OWN_COMMIT, run=FAILED))
    story.written[FAILED] = 1
    story.row(FAILED, "lost")
    assert story.judge() == []


def test_a_run_that_went_with_its_server_needs_no_row() -> None:
    story = Story()
    del story.rows[KILLED]
    assert story.judge(unreachable=[KILLED]) == []


class TestWhatIsLeft:
    """(d), on the real thing."""

    pytestmark = real_database

    def test_a_session_and_its_lock(self, case: Case) -> None:
        case.attempt(direct=True).result()
        with session() as other:
            other.execute("SELECT pg_advisory_lock(hashtextextended('faults-a', 0))")
            with pytest.raises(AssertionError, match=r"(?s)\(d\) Left behind: Session.*\(d\) .* cannot run again"):
                case.check(seconds=1)
        assert is_free("faults-a")

    def test_a_process(self, case: Case) -> None:
        case.attempt(direct=True).result()
        case.witness.note(ATTEMPT, pid=case.workers.process.pid, attempt="x", job="faults-a", task="work", lane="a")
        with pytest.raises(AssertionError, match=r"\(d\) The process \d+ is left"):
            case.check(seconds=1)

    def test_a_row_that_reads_running(self, case: Case) -> None:
        attempt = case.attempt(direct=True)
        attempt.result()
        with session() as other:
            other.execute("UPDATE django_singlecron_jobrun SET status = 'running', key = key + 1")
        with pytest.raises(AssertionError, match=r"\(c\) faults-a #\d+ running: nothing runs any more"):
            case.check(seconds=1)
