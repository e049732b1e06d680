"""The options of `singlecron run`: for commands that nobody can edit what a decorator says, and for all which slot."""

from __future__ import annotations

import json
import threading
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connection, connections

from django_singlecron import RunTimedOut, registry, singleton_task
from django_singlecron.models import JobRun
from django_singlecron.testing import hold_lock
from testproject.billing.management.commands import nightly_billing
from tests.commandline.driver import Manage, add_commands_fixture, manage_fixture
from tests.support.deadlines import DEADLINE

__all__ = ["add_commands_fixture", "manage_fixture"]


@singleton_task("options.greet")
def greet() -> str:
    return "hello"


@singleton_task("options.silent")
def silent() -> None: ...


@singleton_task("options.coroutine")
async def coroutine() -> int:
    return 7


@singleton_task("options.arguments:{tenant}")
def with_arguments(tenant: int) -> None: ...


@singleton_task("options.default:{tenant}")
def with_default(tenant: int = 3) -> int:
    return tenant


@singleton_task("options.unnameable:{tenants}")
def unnameable(tenants: tuple[int, ...] = ()) -> None: ...


def outcomes() -> list[tuple[str, str]]:
    return list(JobRun.objects.order_by("id").values_list("job", "status"))


PROBE = ("probe", "return", "x")


@pytest.mark.parametrize(
    "options",
    [
        ("--once-per", "month"),
        ("--once-per", "366d"),
        ("--once-per=8784h", "--timezone", "Europe/Berlin"),
        ("--schedule", "0 2 29 2 *"),
        ("--schedule", "@yearly", "--timezone=Asia/Kolkata"),
    ],
)
def test_once_per_slot(manage: Manage, options: tuple[str, ...]) -> None:
    # A fixed period may end between the two.
    runs = [manage("singlecron", "run", *options, *PROBE) for _ in range(3)]
    assert [finished.code for finished in runs] == [0, 0, 0]
    assert [finished.out for finished in runs].count("x\n") == JobRun.objects.succeeded().count() <= 2
    assert runs[2].out == ""
    assert "took its slot of" in runs[2].err
    assert manage("singlecron", "run", "--force", *options, *PROBE).out == "x\n"
    assert JobRun.objects.latest().forced


@pytest.mark.parametrize("duration", ["3600", "3600s", "60m", "1h", "0.5d", "1.5h"])
def test_min_interval(manage: Manage, duration: str) -> None:
    options = ("run", "--min-interval", duration, "--skip-exit-code", "9")
    assert [manage("singlecron", *options, *PROBE).code for _ in range(2)] == [0, 9]
    assert JobRun.objects.latest().skip_reason == "too_soon"


class Endless(BaseCommand):
    def handle(self, *args: Any, **options: Any) -> None:
        threading.Event().wait(DEADLINE)


def test_timeout(manage: Manage) -> None:
    with pytest.raises(RunTimedOut, match=r'The job "endless" exceeded its timeout of 0\.2 s'):
        manage("singlecron", "run", "--timeout", "0.2", "endless")
    assert outcomes() == [("endless", "failed")]


@pytest.fixture(autouse=True)
def _endless(add_commands: Any) -> None:
    add_commands(endless=Endless())


def test_a_forced_run_says_so_also_without_slots(manage: Manage) -> None:
    assert manage("singlecron", "run", "--force", "probe_decorated", "return", "x").out == "x\n"
    assert manage("singlecron", "run", "probe_decorated", "return", "x").out == "x\n"
    assert [run.forced for run in JobRun.objects.order_by("id")] == [True, False]


def test_the_lock_is_asked_for_although_forced(manage: Manage) -> None:
    with hold_lock("probe"):
        assert manage("singlecron", "run", "--force", "--skip-exit-code", "9", *PROBE).code == 9


def test_options_after_the_name_are_the_commands_own(manage: Manage) -> None:
    told = json.loads(manage("singlecron", "run", "--once-per", "day", "probe", "tell", "--", "--slot", "--since").out)
    assert told["words"] == ["--slot", "--since"]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--once-per", "fortnight", *PROBE], 2, "'fortnight' is none of minute, hour, day, week, month, and no"),
        (["--once-per", "0", *PROBE], 2, "'0' is none of"),
        (["--once-per", "0.5s", *PROBE], 2, "nor a timedelta of a second to 366 days"),
        (["--min-interval", "1w", *PROBE], 2, "'1w' is no duration: seconds, or 90s, 15m, 1h, 1d."),
        (["--min-interval", "٣", *PROBE], 2, "is no duration"),
        (["--timeout", "9" * 30 + "d", *PROBE], 2, "is no duration"),
        (["--timeout", "25d", *PROBE], 2, "CommandError: --timeout is a timedelta or a number of seconds, more than 0"),
        (["--schedule", "0 2 * *", *PROBE], 2, "CommandError: --schedule '0 2 * *' has 4 fields."),
        (["--schedule", "@reboot", *PROBE], 2, "--schedule '@reboot' is no nickname"),
        (["--schedule", "@daily", "--once-per", "day", *PROBE], 2, "--once-per and --schedule both name the slots"),
        (["--timezone", "UTC", *PROBE], 2, "need --once-per or --schedule."),
        (["--schedule", "@daily", "--timezone", "Mars", *PROBE], 2, "--timezone 'Mars' is no time zone"),
        (["--slot", "2024-10-01", *PROBE], 2, 'The job "probe" has no slots: it has neither --once-per nor --schedule'),
        (["--since", "2024-10-01", *PROBE], 2, 'The job "probe" has no slots'),
        (["--slot", "soon", *PROBE], 2, "'soon' is no date and no time, such as 2026-10-01T02:00."),
        (["--slot", "2024-02-30", *PROBE], 2, "'2024-02-30' does not exist: day"),
        (["--until", "2024-02-01T25:00", *PROBE], 2, "'2024-02-01T25:00' does not exist: hour"),
        (["--schedule", "0 2 * * *", "--slot", "2024-10-01T02:01", *PROBE], 2, "2024-10-01T02:01:00+00:00 is no slot"),
        (["--until", "2024-10-01", *PROBE], 2, "--until and --keep-going belong to a range of slots, and need --since"),
        (["--keep-going", *PROBE], 2, "need --since"),
        (["--since", "2024-10-01", "--slot", "2024-10-01", *PROBE], 2, "use one of them"),
        (["--once-per", "day", "--since", "2024-10-02", "--until", "2024-10-01", *PROBE], 2, "before it begins"),
        (["--once-per", "day", "--since", "2024-10-02", "--until", "2199-10-01", *PROBE], 2, "is still to come"),
        *(
            ([option, value, "probe_decorated", "tell"], 2, f"whose options stand at its decorator: leave {option} out")
            for option, value in (
                ("--once-per", "day"),
                ("--schedule", "@daily"),
                ("--timezone", "UTC"),
                ("--min-interval", "1h"),
                ("--timeout", "9"),
            )
        ),
        (["--timeout", "9", "options.greet"], 2, "options.greet is a singleton task, whose options stand at its"),
        (["--name", "x", "options.greet"], 2, "which names itself: leave --name out"),
        (["options.greet", "7"], 2, "is a function, which can be given no arguments here: it was given 7."),
        (["options.greet", "--tenant", "7"], 2, "it was given --tenant 7."),
        (["options.arguments:{tenant}"], 2, "no arguments here: missing a required argument: 'tenant'."),
        (["options.unnameable:{tenants}"], 2, "no arguments here: {tenants} is a tuple"),
        (["options.nothing"], 1, "Unknown command: 'options.nothing'"),
    ],
)
def test_what_is_refused_before_anything_runs(manage: Manage, words: list[str], code: int, says: str) -> None:
    finished = manage("singlecron", "run", *words)
    assert (finished.code, finished.out) == (code, "")
    assert says in finished.err
    assert "Traceback" not in finished.err
    assert not JobRun.objects.exists()


def test_a_function_is_run_by_its_job_s_name(manage: Manage) -> None:
    assert manage("singlecron", "run", "options.greet").out == "hello\n"
    assert manage("singlecron", "run", "-v0", "--no-color", "options.greet", "--verbosity", "2").out == "hello\n"
    assert manage("singlecron", "run", "options.silent").out == ""
    assert manage("singlecron", "run", "options.coroutine").out == "7\n"
    assert manage("singlecron", "run", "options.default:{tenant}").out == "3\n"
    assert outcomes()[-1] == ("options.default:3", "succeeded")
    assert JobRun.objects.latest().command == "manage.py singlecron run"


def test_a_function_that_is_skipped_says_so(manage: Manage) -> None:
    with hold_lock(greet):
        for words, code, err in (
            (["--skip-exit-code", "9", "options.greet"], 9, "Skipped: its lock is held, by a run that left no record."),
            (["-v0", "options.greet"], 0, ""),
            (["options.greet", "-v0"], 0, ""),
        ):
            finished = manage("singlecron", "run", *words)
            assert (finished.code, finished.out, finished.err.strip()) == (code, "", err)


def test_a_function_through_call_command(db: None) -> None:
    assert call_command("singlecron", "run", "options.greet") == "hello"
    assert call_command("singlecron", "run", "options.greet", "-v0", verbosity=0, force=True) == "hello"
    with pytest.raises(CommandError, match="it was given 7"):
        call_command("singlecron", "run", "options.greet", "7")
    call_command("singlecron", "run", "probe", "return", "x", once_per=timedelta(days=1), slot=None)
    assert JobRun.objects.latest().slot is not None


def test_a_function_that_is_refused_is_a_line(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    connection.close()
    monkeypatch.setitem(connections["default"].settings_dict, "HOST", "/no/such/directory")
    with pytest.raises(CommandError, match="cannot be reached"):
        call_command("singlecron", "run", "options.greet")
    monkeypatch.undo()


def test_a_decorated_command_by_the_name_of_its_job(
    manage: Manage, add_commands: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Command(BaseCommand):
        def handle(self, *args: Any, **options: Any) -> str:
            return "named"

    Command.__module__ = "somewhere.management.commands.oddly_named"
    decorated = singleton_task("options.of_a_command")(Command)
    add_commands(oddly_named=decorated())
    monkeypatch.setitem(registry._tasks, "oddly_named", decorated.handle)
    assert manage("singlecron", "run", "options.of_a_command").out == "named\n"
    assert call_command("singlecron", "run", "options.of_a_command") == "named"
    assert outcomes() == [("options.of_a_command", "succeeded")] * 2


def test_a_command_comes_before_a_function_of_that_name(manage: Manage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._tasks, "probe", singleton_task("probe")(lambda: "function"))
    assert manage("singlecron", "run", *PROBE).out == "x\n"


def test_find_imports_what_may_hold_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    task = nightly_billing.Command.handle
    assert registry.find("nightly_billing") is task
    assert registry.find("no such job") is None
