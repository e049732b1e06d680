"""`singlecron run --since --until`: exactly the slots that have no success, each in a run of its own."""

from __future__ import annotations

import io
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError, OutputWrapper
from django.db import connection, connections
from django.utils.timezone import now

from django_singlecron import RunRefused, backfill, current_run, registry, singleton_task
from django_singlecron.backfill import Progress, slots_of_range, succeeded_slots
from django_singlecron.exceptions import HistoryNotMigrated, InvalidSlot
from django_singlecron.interrupts import Terminated
from django_singlecron.models import JobRun
from django_singlecron.testing import hold_lock
from tests.commandline.driver import Manage, add_commands_fixture, manage_fixture, run_process, start_process
from tests.support.deadlines import DEADLINE, wait_until

__all__ = ["add_commands_fixture", "manage_fixture"]

BERLIN = ZoneInfo("Europe/Berlin")
SEEN: list[datetime | None] = []
FAILING: dict[datetime, BaseException] = {}


def body() -> None:
    run = current_run()
    assert run is not None
    SEEN.append(run.slot)
    error = FAILING.get(run.slot or now())
    if error is not None:
        raise error


@singleton_task("backfill.daily", schedule="0 2 * * *", timezone="Europe/Berlin")
def daily() -> None:
    body()


@singleton_task("backfill.monthly", once_per="month", timezone="Europe/Berlin")
def monthly() -> str:
    body()
    return f"{current_run().slot:%B}"  # type: ignore[union-attr]


@singleton_task("backfill.once", schedule="0 2 * * *", retry=False)
def once() -> None:
    body()


@singleton_task("backfill.spaced", schedule="0 2 * * *", min_interval=3600)
def spaced() -> None:
    body()


@singleton_task("backfill.slotless")
def slotless() -> None: ...


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    SEEN.clear()
    FAILING.clear()


def day(number: int, month: int = 3) -> datetime:
    """The slot of a day round the change of the clocks on 31 March 2024, when there was no 02:00."""
    return datetime(2024, month, number, 3 if (month, number) == (3, 31) else 2, tzinfo=BERLIN)


RANGE = ("--since", "2024-03-28", "--until", "2024-04-02")
SLOTS = [day(28), day(29), day(30), day(31), day(1, 4), day(2, 4)]


def successes(job: str) -> list[datetime | None]:
    return list(JobRun.objects.filter(job=job).succeeded().order_by("slot").values_list("slot", flat=True))


def test_the_holes_are_filled_and_nothing_else(manage: Manage) -> None:
    for slot in (day(29), day(31), day(27), day(3, 4)):
        daily.run(slot=slot)
    SEEN.clear()
    finished = manage("singlecron", "run", *RANGE, "backfill.daily")
    assert (finished.code, finished.out) == (0, "")
    assert [day(28), day(30), day(1, 4), day(2, 4)] == SEEN
    assert successes("backfill.daily") == [day(27), *SLOTS, day(3, 4)]
    assert JobRun.objects.count() == 8
    assert finished.err.splitlines() == [
        "2024-03-28T02:00:00+01:00: ran",
        "2024-03-29T02:00:00+01:00: done already",
        "2024-03-30T02:00:00+01:00: ran",
        "2024-03-31T03:00:00+02:00: done already",
        "2024-04-01T02:00:00+02:00: ran",
        "2024-04-02T02:00:00+02:00: ran",
        "6 slots: 4 ran, 2 done already.",
    ]
    again = manage("singlecron", "run", *RANGE, "backfill.daily")
    assert (again.code, again.err.splitlines()[-1], len(SEEN)) == (0, "6 slots: 6 done already.", 4)


def test_a_command_that_nobody_can_edit(manage: Manage) -> None:
    options = ("run", "--once-per", "day", "--timezone", "Europe/Berlin", *RANGE)
    assert manage("singlecron", *options, "probe", "return", "x").out == "x\n" * 6
    assert successes("probe") == [datetime(slot.year, slot.month, slot.day, tzinfo=BERLIN) for slot in SLOTS]
    assert manage("singlecron", *options, "probe", "return", "x").out == ""
    named = manage("singlecron", *options, "--name", "probe:{name}", "probe", "return", "x", "--name", "y")
    assert (named.out, len(successes("probe:y"))) == ("x\n" * 6, 6)
    # Which slots are done shows once the name's arguments are known.
    again = manage("singlecron", *options, "--name", "probe:{name}", "-v0", "probe", "return", "x", "--name", "y")
    assert (again.code, again.out, again.err) == (0, "", "")
    assert JobRun.objects.filter(job="probe:y", skip_reason="already_ran").count() == 6


def test_nothing_is_said_at_verbosity_0(manage: Manage) -> None:
    finished = manage("singlecron", "run", "-v0", *RANGE, "backfill.daily")
    assert (finished.code, finished.out, finished.err, SEEN) == (0, "", "", SLOTS)


def test_what_a_function_returns_is_printed(manage: Manage) -> None:
    finished = manage("singlecron", "run", "--since", "2024-01-02", "--until", "2024-04-02", "backfill.monthly")
    assert finished.out.split() == ["February", "March", "April"]
    assert finished.err.splitlines()[-1] == "3 slots: 3 ran."


def test_it_stops_at_the_first_failure_with_its_exit_code(manage: Manage) -> None:
    FAILING[day(30)] = SystemExit(4)
    finished = manage("singlecron", "run", *RANGE, "backfill.daily")
    assert finished.code == 4
    assert finished.err.splitlines()[-2:] == [
        "2024-03-30T02:00:00+01:00: failed",
        "Stopped: 3 more of 6 slots not tried. The same command goes on from here.",
    ]
    assert SLOTS[:3] == SEEN
    FAILING.clear()
    assert manage("singlecron", "run", *RANGE, "backfill.daily").code == 0
    assert SLOTS[:3] + SLOTS[2:] == SEEN
    assert successes("backfill.daily") == SLOTS


def test_a_command_s_error_stops_it_with_its_exit_code(manage: Manage) -> None:
    finished = manage("singlecron", "run", "--once-per", "1d", *RANGE, "probe", "fail", "5")
    assert finished.code == 5
    assert "CommandError: failed as told" in finished.err
    assert JobRun.objects.count() == 1


def test_an_exception_comes_out(manage: Manage) -> None:
    FAILING[day(2, 4)] = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        manage("singlecron", "run", *RANGE, "backfill.daily")
    assert successes("backfill.daily") == SLOTS[:-1]


def test_keep_going_lists_what_failed(manage: Manage) -> None:
    FAILING.update({day(28): ZeroDivisionError(), day(30): SystemExit(4), day(31): SystemExit(0)})
    finished = manage("singlecron", "run", *RANGE, "--keep-going", "backfill.daily")
    assert finished.code == 1
    lines = finished.err.splitlines()
    assert lines[0] == "2024-03-28T02:00:00+01:00: failed: ZeroDivisionError"
    assert lines[2] == "2024-03-30T02:00:00+01:00: failed with exit code 4"
    assert lines[-2] == "6 slots: 1 failed: ZeroDivisionError, 4 ran, 1 failed with exit code 4."
    assert lines[-1] == (
        "CommandError: 2 of 6 slots were not filled: 2024-03-28T02:00:00+01:00, 2024-03-30T02:00:00+01:00."
    )
    assert SEEN == SLOTS
    assert successes("backfill.daily") == [slot for slot in SLOTS if slot not in (day(28), day(30))]


def test_keep_going_does_not_go_on_when_nothing_can_start_or_the_process_is_to_end(manage: Manage) -> None:
    FAILING[day(28)] = Terminated()
    assert manage("singlecron", "run", *RANGE, "--keep-going", "backfill.daily").code == 143
    FAILING[day(28)] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        manage("singlecron", "run", *RANGE, "--keep-going", "backfill.daily")
    assert [day(28), day(28)] == SEEN
    finished = manage("singlecron", "run", "--once-per", "day", *RANGE, "--keep-going", "probe", "dance")
    assert finished.code == 2
    assert finished.err.count("invalid choice: 'dance'") == 1
    assert "2024-03-28T00:00:00+00:00: not run\nStopped: 5 more of 6 slots not tried." in finished.err
    assert manage("singlecron", "run", "--once-per", "day", *RANGE, "probe", "--help").code == 0
    assert JobRun.objects.count() == 2


@pytest.mark.parametrize(("words", "code"), [((), 1), (("--skip-exit-code", "75"), 75)])
def test_a_slot_that_another_run_keeps_it_from_is_not_filled(manage: Manage, words: tuple[str, ...], code: int) -> None:
    with hold_lock(daily):
        finished = manage("singlecron", "run", *words, *RANGE, "backfill.daily")
        assert manage("singlecron", "run", *RANGE, "--keep-going", "-v0", "backfill.daily").code == 1
    assert finished.code == code
    assert finished.err.splitlines() == [
        "Skipped: its lock is held, by a run that left no record.",
        "2024-03-28T02:00:00+01:00: skipped (locked)",
        "Stopped: 5 more of 6 slots not tried. The same command goes on from here.",
        "CommandError: The slot 2024-03-28T02:00:00+01:00 was skipped (locked).",
    ]
    assert JobRun.objects.skipped().count() == JobRun.objects.count() == 7


def test_min_interval_holds_for_it_too_unless_forced(manage: Manage) -> None:
    finished = manage("singlecron", "run", *RANGE, "backfill.spaced")
    assert (finished.code, len(SEEN)) == (1, 1)
    assert "skipped (too_soon)" in finished.err
    assert manage("singlecron", "run", *RANGE, "--force", "-v0", "backfill.spaced").code == 0
    assert len(SEEN) == 7


def test_force_runs_again_what_is_done(manage: Manage) -> None:
    assert manage("singlecron", "run", *RANGE, "backfill.daily").code == 0
    assert manage("singlecron", "run", *RANGE, "--force", "backfill.daily").code == 0
    assert SEEN == SLOTS * 2
    assert successes("backfill.daily") == [*SLOTS, *[None] * 6]
    assert JobRun.objects.filter(forced=True).count() == 6


def test_a_slot_that_is_not_to_be_tried_again_counts_as_done(manage: Manage) -> None:
    FAILING[datetime(2024, 3, 28, 2, tzinfo=timezone.utc)] = SystemExit(3)
    assert manage("singlecron", "run", *RANGE, "backfill.once").code == 3
    finished = manage("singlecron", "run", *RANGE, "backfill.once")
    assert (finished.code, finished.err.splitlines()[-1]) == (0, "6 slots: 1 done already, 5 ran.")


def test_the_range_ends_now_by_the_clock_of_the_database(transactional_db: None) -> None:
    since = now() - timedelta(days=3)
    slots = slots_of_range(daily, since, None)
    assert len(slots) == 3
    assert slots[-1] <= now() < slots[-1] + timedelta(days=1, hours=1)
    assert slots_of_range(daily, since, now() - timedelta(days=1)) == slots[:-1]


def test_no_slot_in_the_range(manage: Manage) -> None:
    range_ = ("--since", "2024-03-28T03:00", "--until", "2024-03-28T04:00")
    finished = manage("singlecron", "run", *range_, "backfill.daily")
    assert (finished.code, finished.err) == (0, "No slot lies in that range.\n")


@pytest.mark.parametrize(
    ("task", "since", "until", "says"),
    [
        (slotless, (2024, 1, 1), None, "has no slots"),
        (daily, (2024, 1, 2), (2024, 1, 1), r"ends at 2024-01-01T00:00:00\+01:00, before it begins at 2024-01-02"),
        (daily, (2190, 1, 1), None, "before it begins at 2190"),
        (daily, (2024, 1, 1), (2190, 1, 1), r"^The slot 20\d\d-.* is still to come"),
        (daily, (1970, 1, 1), (2199, 12, 31), "is still to come"),
        (daily, (1, 1, 1), None, "years are 1970 to 2199"),
        (daily, (2024, 1, 1), (9999, 12, 31), "years are 1970 to 2199"),
    ],
)
def test_ranges_that_are_refused(
    db: None, task: Any, since: tuple[int, ...], until: tuple[int, ...] | None, says: str
) -> None:
    with pytest.raises(InvalidSlot, match=says):
        slots_of_range(task, datetime(*since), until and datetime(*until))  # type: ignore[arg-type]  # noqa: DTZ001


def test_a_range_that_is_too_long(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfill, "MOST_SLOTS", 10)
    assert len(slots_of_range(daily, day(1), day(10))) == 10
    with pytest.raises(InvalidSlot, match="more than 10 slots"):
        slots_of_range(daily, day(1), day(11))


def test_a_database_that_cannot_be_asked(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    # Of which nothing but this test may know.
    elsewhere = singleton_task("backfill.elsewhere", schedule="@daily", using="nowhere")(lambda: None)
    monkeypatch.setitem(registry._tasks, "elsewhere", elsewhere)
    with pytest.raises(RunRefused, match='no database "nowhere"'):
        slots_of_range(elsewhere, day(1), None)
    with pytest.raises(CommandError, match='no database "nowhere"'):
        call_command("singlecron", "run", "backfill.elsewhere", since=day(1))
    connection.close()
    monkeypatch.setitem(connections["default"].settings_dict, "HOST", "/no/such/directory")
    with pytest.raises(RunRefused, match="cannot be reached"):
        slots_of_range(daily, day(1), None)
    monkeypatch.undo()


def test_a_history_that_is_not_migrated(transactional_db: None) -> None:
    rename = "ALTER TABLE {} RENAME TO {}"
    names = ("django_singlecron_jobrun", "elsewhere")
    with connection.cursor() as cursor:
        cursor.execute(rename.format(*names))
        try:
            assert succeeded_slots("backfill.daily", "default", []) == set()
            with pytest.raises(HistoryNotMigrated):
                succeeded_slots("backfill.daily", "default", SLOTS)
            with pytest.raises(CommandError, match="is not migrated"):
                call_command("singlecron", "run", "backfill.daily", since=day(1), until=day(2))
        finally:
            cursor.execute(rename.format(*reversed(names)))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_on_a_terminal(db: None) -> None:
    stream = Terminal()
    call_command("singlecron", "run", "backfill.daily", since=day(30), until=day(1, 4), stderr=stream)
    clear = "\r\x1b[K"
    assert stream.getvalue() == (
        f"{clear}[........................] 1/3 2024-03-30T02:00:00+01:00 "
        f"{clear}[########................] 2/3 2024-03-31T03:00:00+02:00 "
        f"{clear}[################........] 3/3 2024-04-01T02:00:00+02:00 "
        f"{clear}3 slots: 3 ran.\n"
    )


def test_the_bar_is_put_away_when_it_stops() -> None:
    stream = Terminal()
    progress = Progress(OutputWrapper(stream), 1, 1)
    progress.begins(day(1))
    progress.ends(day(1), "failed")
    progress.stopped()
    assert stream.getvalue().endswith("\r\x1b[K")
    quiet = Progress(OutputWrapper(stream), 0, 1)
    assert not quiet.bar


def test_killed_in_the_middle_and_started_again(transactional_db: None) -> None:
    words = ("singlecron", "run", *RANGE, "cron.read_a_line")
    with start_process(*words) as process:
        assert process.stdin is not None
        process.stdin.write("one\ntwo\n")
        process.stdin.flush()

        def is_third() -> bool:
            return JobRun.objects.running().filter(slot=day(30)).exists()

        wait_until(lambda: is_third() or process.poll() is not None, what="the third slot's run", seconds=DEADLINE)
        process.kill()
        process.communicate(timeout=DEADLINE)
    assert successes("cron.read_a_line") == SLOTS[:2]
    finished = run_process(*words, stdin=b"three\nfour\nfive\nsix\n")
    assert (finished.code, finished.out.split()) == (0, ["three", "four", "five", "six"])
    assert successes("cron.read_a_line") == SLOTS
    assert [run.status for run in JobRun.objects.filter(slot=day(30)).order_by("id")] == ["lost", "succeeded"]
    assert JobRun.objects.count() == 7


def test_one_slot(manage: Manage) -> None:
    assert manage("singlecron", "run", "--slot", "2024-03-30T02:00", "backfill.daily").code == 0
    assert manage("singlecron", "run", "--slot", "2024-03-31T01:00Z", "backfill.daily").code == 0
    again = manage("singlecron", "run", "--slot", "2024-03-30T02:00", "--skip-exit-code", "7", "backfill.daily")
    assert again.code == 7
    assert "took its slot of 2024-03-30 01:00:00+00:00" in again.err
    quiet = manage("singlecron", "run", "--slot", "2024-03-30T02:00", "backfill.daily", "-v0")
    assert (quiet.code, quiet.err) == (0, "")
    assert manage("singlecron", "run", "--slot", "2024-03-30T02:00", "--force", "backfill.daily").code == 0
    assert [day(30), day(31), day(30)] == SEEN
