"""What the witness and the database say, held against each other: the invariants, as functions of data alone."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import itemgetter

from django_singlecron.models import JobRun
from tests.faults import witness as kinds
from tests.faults.witness import Line

_ATTEMPT_OF_ROW = re.compile(r"\battempt='([^']*)'")

# The errors that say that nothing ran.
REFUSALS = {
    "DatabaseUnavailable",
    "HistoryNotMigrated",
    "OuterTransaction",
    "PermissionRefused",
    "ReadOnlyDatabase",
    "RunRefused",
}


@dataclass
class Body:
    """A body from its beginning to when it could do nothing any more."""

    began: Line
    ended: Line | None = None
    over: float = inf

    @property
    def returned(self) -> bool:
        return self.ended is not None and self.ended.how == "returned"

    def __str__(self) -> str:
        return f"run {self.began.run} (pid {self.began.pid}, {self.began.at} to {self.over})"


@dataclass
class Account:
    """The witness's lines, by what they are of."""

    attempts: dict[str, Line] = field(default_factory=dict)
    results: dict[str, Line] = field(default_factory=dict)
    bodies: dict[str, Body] = field(default_factory=dict)
    body_of_run: dict[int, Body] = field(default_factory=dict)
    own_commits: set[int] = field(default_factory=set)
    cuts: dict[tuple[str, object], list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """When something was cut: between which two moments, in the order of the second."""

    @classmethod
    def of(cls, lines: Iterable[Line]) -> Account:
        account = cls()
        # Two processes may have written in another order than they looked at the clock.
        for line in sorted(lines, key=lambda line: line.at):
            account._add(line)
        for body in account.bodies.values():
            body.over = min(account._ends_of(body), default=inf)
        return account

    def _add(self, line: Line) -> None:
        if line.kind == kinds.ATTEMPT:
            self.attempts[line.attempt] = line
        elif line.kind == kinds.RESULT:
            self.results[line.attempt] = line
        elif line.kind == kinds.BEGIN:
            self.bodies[line.body] = self.body_of_run[line.run] = Body(line)
        elif line.kind == kinds.END:
            self.bodies[line.body].ended = line
        elif line.kind == kinds.OWN_COMMIT:
            self.own_commits.add(line.run)
        elif line.kind in (kinds.CUT, kinds.DIED, kinds.TROUBLE):
            since = line.at if line.since is None else line.since
            for what in ("process", "run", "attempt", "everything"):
                if what in line:
                    self.cuts[what, line[what]].append((since, line.at))
            if line.kind == kinds.TROUBLE:
                self.cuts[kinds.TROUBLE, None].append((since, line.at))

    def _ends_of(self, body: Body) -> Iterator[int]:
        """Give the moments from which on a body could do nothing any more."""
        if body.ended is not None:
            yield body.ended.at
        for cut in self._cuts_of(body.began):
            yield max(cut, body.began.at)
        attempt = self.attempts.get(body.began.attempt)
        if attempt is not None and attempt.timeout is not None:
            # Which ends its session a moment later than this: it was set after the attempt was made.
            yield max(attempt.at + int(attempt.timeout * 1e9), body.began.at)

    def _cuts_of(self, line: Line, *also: tuple[str, object]) -> Iterator[int]:
        """Give the first cut of each kind that hit what a line is about after it was noted."""
        own = (("process", line.pid), ("run", line.run), ("attempt", line.attempt), ("everything", True))
        for what in (*own, *also):
            cuts = self.cuts.get(what, [])
            yield from (since for since, _ in cuts[bisect_left(cuts, line.at, key=itemgetter(1)) :][:1])

    def is_cut(self, attempt: Line, run: int | None = None) -> bool:
        """Whether an attempt, or its run, was cut off, or cut itself off, before its caller saw what came of it."""
        result = self.results.get(attempt.attempt)
        end = inf if result is None else result.at
        was_hit = any(cut <= end for cut in self._cuts_of(attempt, (kinds.TROUBLE, None)))
        return was_hit or ("run", run) in self.cuts or run in self.own_commits


def judge(
    lines: Iterable[Line], rows: Sequence[JobRun], written: Mapping[int, int], unreachable: Collection[int] = ()
) -> list[str]:
    """Return the violations of (a), (b) and (c), see `check`.

    Arguments: the `lines` of the witness, all `rows` of the history, how many rows each run has `written`, and the runs
    whose rows are known to have gone with their server.
    """
    account = Account.of(lines)
    return [
        *overlaps(account),
        *wrong_work(account, rows, written),
        *(text for row in rows for text in wrong_row(account, row)),
        *wrong_attempts(account, rows, set(unreachable)),
    ]


def overlaps(account: Account) -> Iterator[str]:
    """(a) Name the bodies that began before another of their job was over."""
    last: dict[str, Body] = {}
    for body in sorted(account.bodies.values(), key=lambda body: body.began.at):
        before = last.get(body.began.job)
        if before is not None and body.began.at < before.over:
            yield f"(a) Two bodies of {body.began.job!r} overlap: {before} and {body}."
        if before is None or body.over > before.over:
            last[body.began.job] = body


def wrong_work(account: Account, rows: Iterable[JobRun], written: Mapping[int, int]) -> Iterator[str]:
    """(b) Name the runs whose writes are not what their rows say."""
    succeeded = {row.pk for row in rows if row.status == JobRun.Status.SUCCEEDED}
    for run in sorted(succeeded | set(written)):
        body, count = account.body_of_run.get(run), written.get(run, 0)
        if run not in succeeded and run not in account.own_commits:
            yield f"(b) Run {run} did not succeed, and {count} of its writes are there."
        elif run in succeeded and body is not None and count != body.began.writes:
            yield f"(b) Run {run} succeeded, and {count} of its {body.began.writes} writes are there."


def wrong_row(account: Account, row: JobRun) -> Iterator[str]:
    """(c) Say in what a row of the history is not the truth."""
    attempt = attempt_of(row)
    if attempt not in account.attempts:
        yield f"(c) {row}: nobody made this attempt: {row.arguments}"
        return
    body, result = account.body_of_run.get(row.pk), account.results.get(attempt)
    if row.finished_at is None:
        yield f"(c) {row}: it has no end."
    if row.status == JobRun.Status.RUNNING:
        yield f"(c) {row}: nothing runs any more."
    elif row.status == JobRun.Status.SUCCEEDED and not (body and body.returned):
        yield f"(c) {row}: its body did not return."
    elif row.status == JobRun.Status.SKIPPED and body and row.skip_reason == JobRun.SkipReason.LOCKED:
        yield f"(c) {row}: its body ran."
    elif row.status == JobRun.Status.FAILED and not row.error_class:
        yield f"(c) {row}: it says no error."
    elif row.status == JobRun.Status.LOST and result and not account.is_cut(account.attempts[attempt], row.pk):
        yield f"(c) {row}: nothing was done to it."
    if (row.status == JobRun.Status.SKIPPED) != (row.outcome == JobRun.Outcome.SKIPPED):
        yield f"(c) {row}: its outcome is {row.outcome!r}."


def wrong_attempts(account: Account, rows: Iterable[JobRun], unreachable: set[int]) -> Iterator[str]:
    """(c) Name the attempts whose callers saw what the history does not say, and those that it does not know."""
    rows_of: dict[str, dict[int, JobRun]] = defaultdict(dict)
    for row in rows:
        rows_of[attempt_of(row)][row.pk] = row
    for body in account.bodies.values():
        if body.over == inf:
            yield f"(c) The body of {body} neither ended nor was cut."
        if body.began.run not in rows_of[body.began.attempt] and body.began.run not in unreachable:
            yield f"(c) The body of {body} ran, and its run has no row."
    for name, attempt in account.attempts.items():
        result, own = account.results.get(name), rows_of[name]
        if result is None:
            if not account.is_cut(attempt):
                yield f"(c) The attempt {name} has neither a result nor an end."
            continue
        yield from _wrong_result(account, result, own, unreachable)
        # An attempt whose answer was lost on the way is sent again; what it left the first time was never taken up.
        kept = [row for row in own.values() if row.status not in (JobRun.Status.LOST, JobRun.Status.SKIPPED)]
        if len(kept) > 1:
            yield f"(c) The attempt {name} has {len(kept)} rows: {', '.join(map(str, kept))}."


def _wrong_result(account: Account, result: Line, own: Mapping[int, JobRun], unreachable: set[int]) -> Iterator[str]:
    name = result.attempt
    if result.outcome in ("acquired", "skipped") and result.run is not None and result.run not in unreachable:
        status = JobRun.Status.SUCCEEDED if result.outcome == "acquired" else JobRun.Status.SKIPPED
        row = own.get(result.run)
        if row is None or row.status != status:
            yield f"(c) The attempt {name} saw {result.outcome!r}, its row is {row}."
    elif result.outcome == "raised" and result.code == 0:
        # By sys.exit(0) a job says that it is done.
        if not any(row.status == JobRun.Status.SUCCEEDED for row in own.values()):
            yield f"(c) The attempt {name} exited with 0, its rows are {', '.join(map(str, own.values()))}."
    elif result.outcome == "raised":
        succeeded = [row for row in own.values() if row.status == JobRun.Status.SUCCEEDED]
        if result.error in REFUSALS and any(run in account.body_of_run for run in own):
            yield f"(c) The attempt {name} was refused by {result.error}, and ran: {', '.join(map(str, own.values()))}."
        for row in succeeded:
            # The work is committed: an error that came later stands beside that. By sys.exit(0) a job is done.
            if result.code != 0 and not row.error_class and not account.is_cut(account.attempts[name], row.pk):
                yield f"(c) The attempt {name} saw {result.error}, and {row} says nothing of it."
    elif result.outcome == "acquired" and result.run is None:
        yield f"(c) The attempt {name} saw {result.outcome!r} without a run."


def attempt_of(row: JobRun) -> str:
    """Return the attempt that a row is of, which is among the arguments of every job here."""
    found = _ATTEMPT_OF_ROW.search(row.arguments)
    return found.group(1) if found else ""
