"""django-crontab's `CRONJOBS`: made of the tasks' schedules, and compared with them."""

import copy
import json
import sys
from collections.abc import Iterator
from datetime import datetime, timezone, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from django.apps import apps as django_apps
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django_crontab.crontab import Crontab
from hypothesis import given
from hypothesis import strategies as st

from django_singlecron import SingletonTask, registry, singleton_task
from django_singlecron.cronjobs import (
    CALL_COMMAND,
    CronJobs,
    cronjobs,
    crontab_expression,
    find_disagreements,
    find_started,
    fires_at_other_times,
    machine_zone,
    obstacle,
)
from tests.commandline.driver import run_process

NOW = datetime(2026, 1, 15, 12, tzinfo=timezone.utc)
BERLIN, INDIA, LISBON = ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Kolkata"), ZoneInfo("Europe/Lisbon")

CRON = """
from django_singlecron import singleton_task

@singleton_task(schedule="@daily")
def close_day(): ...

@singleton_task(schedule="5/15  8-18 * * mon-fri")
def restock(shelf="all"): ...

@singleton_task
def unscheduled(): ...

@singleton_task(once_per="day")
def by_the_day(): ...
"""

LEFT_OUT = """
from django_singlecron import singleton_task

@singleton_task(schedule="@daily")
async def awaited(): ...

@singleton_task(schedule="@daily")
def of_a_shelf(shelf): ...

@singleton_task(schedule="0 9 L * *")
def close_month(): ...

class Shop:
    @singleton_task(schedule="@daily")
    def close(self): ...
"""

COMMAND = """
from django.core.management.base import BaseCommand
from django_singlecron import singleton_task

@singleton_task(schedule="0 2 * * *")
class Command(BaseCommand):
    def handle(self, **options): ...
"""

BASE = COMMAND.replace("class Command", "class Base")

CLOSE_DAY = ("0 0 * * *", "bookshop.cron.close_day")
RESTOCK = ("5-59/15 8-18 * * MON-FRI", "bookshop.cron.restock")
TAKE_STOCK = ("0 2 * * *", CALL_COMMAND, ["take_stock"])


@pytest.fixture
def bookshop(tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An app with tasks, which nobody has imported yet. No other tasks exist."""
    monkeypatch.setattr(registry, "_tasks", {})
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    commands = tmp_path / "bookshop" / "management" / "commands"
    commands.mkdir(parents=True)
    for package in (commands, commands.parent, commands.parent.parent):
        (package / "__init__.py").touch()
    (commands / "take_stock.py").write_text(COMMAND)
    (tmp_path / "bookshop" / "cron.py").write_text(CRON)
    (tmp_path / "bookshop" / "extra.py").write_text(LEFT_OUT)
    (tmp_path / "bookshop" / "base.py").write_text(BASE)
    before = set(sys.modules)
    settings.CRONJOBS = []
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "bookshop"]
    yield tmp_path / "bookshop"
    for module in set(sys.modules) - before:
        del sys.modules[module]


def make_task(schedule: str | None = None, zone: tzinfo | None = None, name: str = "job") -> SingletonTask[Any, Any]:
    task: SingletonTask[Any, Any] = singleton_task(name, schedule=schedule, timezone=zone)(lambda: None)
    task.__module__, task.__qualname__ = "shop.cron", name
    return task


# The list


def test_all_tasks_with_a_schedule_stand_in_it(bookshop: Path) -> None:
    jobs = cronjobs()
    assert "bookshop.cron" not in sys.modules
    assert list(jobs) == [CLOSE_DAY, RESTOCK, TAKE_STOCK]
    assert (len(jobs), jobs[-1], jobs[:1]) == (3, TAKE_STOCK, [CLOSE_DAY])


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        (["bookshop.cron"], [CLOSE_DAY, RESTOCK]),
        (["bookshop.management"], [TAKE_STOCK]),
        (["bookshop"], [CLOSE_DAY, RESTOCK, TAKE_STOCK]),
        (["book"], []),
        (["bookshop.cron", "bookshop.extra"], [CLOSE_DAY, RESTOCK]),
    ],
)
def test_only_the_modules_that_are_named(bookshop: Path, modules: list[str], expected: list[Any]) -> None:
    (bookshop.parent / "book").mkdir()
    assert list(cronjobs(*modules)) == expected


def test_other_entries_are_added_before_and_after() -> None:
    first, last = ("* * * * *", "a.b"), ["@reboot", "c.d"]
    jobs = [first] + cronjobs("nothing.here") + [last]  # noqa: RUF005  # as settings do
    assert isinstance(jobs, CronJobs)
    assert jobs.written == (first, last)
    assert repr(jobs) == f"cronjobs('nothing.here') + {[first, last]!r}"
    assert repr(cronjobs()) == "cronjobs()"


def test_it_is_what_django_crontab_reads(bookshop: Path, settings: Any, capsys: pytest.CaptureFixture[str]) -> None:
    settings.CRONJOBS = cronjobs("bookshop")
    settings.CRONJOBS += [("30 3 * * *", CALL_COMMAND, ["clearsessions"])]
    crontab = Crontab(readonly=True)
    crontab.add_jobs()
    lines = [line.split(" # ")[0] for line in crontab.crontab_lines]
    assert [" ".join(line.split()[:5]) for line in lines] == ["0 0 * * *", RESTOCK[0], "0 2 * * *", "30 3 * * *"]
    assert "bookshop.cron.restock" in capsys.readouterr().out
    assert json.loads(json.dumps(list(settings.CRONJOBS)))[2] == list(TAKE_STOCK)
    assert len(copy.deepcopy(settings.CRONJOBS)) == 4


def test_the_modules_that_it_names_are_found_by_the_registry(bookshop: Path, settings: Any) -> None:
    settings.CRONJOBS = cronjobs("bookshop.extra")
    settings.CRONJOBS += [("* * * * *", "bookshop.base.Base")]
    assert registry.autodiscover() == []
    assert {"bookshop.extra", "bookshop.base"} <= set(sys.modules)
    assert registry.cronjob_targets() == ["bookshop.base.Base"]


def test_it_cannot_be_read_by_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(django_apps, "models_ready", False)
    with pytest.raises(ImproperlyConfigured, match=r"write CRONJOBS \+= \["):
        list(cronjobs())


def test_a_module_that_is_missing_is_no_empty_crontab(bookshop: Path) -> None:
    (bookshop / "cron.py").write_text("1 / 0")
    assert list(cronjobs("bookshop.management")) == [TAKE_STOCK]
    for jobs in (cronjobs(), cronjobs("bookshop")):
        with pytest.raises(
            ImproperlyConfigured, match=r"bookshop\.cron cannot be imported: ZeroDivisionError"
        ) as error:
            list(jobs)
        assert isinstance(error.value.__cause__, ZeroDivisionError)


def test_what_django_crontab_cannot_start_is_left_out_for_a_reason(bookshop: Path) -> None:
    assert list(cronjobs("bookshop.extra", "bookshop.base")) == []
    found = {task.__qualname__: obstacle(task) for task in registry.tasks() if "bookshop" in task.__module__}
    assert found == {
        "Base.handle": "there is no command 'base'",
        "Command.handle": None,
        "Shop.close": "it is a method",
        "awaited": "django-crontab does not await coroutine functions",
        "by_the_day": "it has no schedule=",
        "close_day": None,
        "close_month": "cron has no expression for '0 9 L * *'",
        "of_a_shelf": "it needs arguments: missing a required argument: 'shelf'",
        "restock": None,
        "unscheduled": "it has no schedule=",
    }


# Expressions


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("@hourly", "0 * * * *"),
        (" 0\t2  * * * ", "0 2 * * *"),
        ("5/15 * * * *", "5-59/15 * * * *"),
        ("*/15,7/20,1-9/2 3/4 2/2 1/6 mon/2", "*/15,7-59/20,1-9/2 3-23/4 2-31/2 1-12/6 MON-7/2"),
        ("0 0 * jul,aug wed", "0 0 * JUL,AUG WED"),
        ("0 0 L * *", None),
        ("0 0 LW * *", None),
        ("0 0 * * 5L", None),
        ("0 0 * * 5#2", None),
    ],
)
def test_expressions_are_written_as_cron_reads_them(expression: str, expected: str | None) -> None:
    assert crontab_expression(expression) == expected


def steps(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    return st.one_of(
        st.just("*"), number.map(str), st.tuples(number, st.integers(1, 9)).map(lambda pair: f"{pair[0]}/{pair[1]}")
    )


@given(st.tuples(steps(0, 59), steps(0, 23), steps(1, 28), steps(1, 12), steps(0, 6)).map(" ".join))
def test_a_range_before_each_step_changes_no_meaning(expression: str) -> None:
    written = crontab_expression(expression)
    assert written is not None
    ours, crons = CronSim(expression, NOW), CronSim(written, NOW)
    assert [next(ours) for _ in range(3)] == [next(crons) for _ in range(3)]


# Comparison


@pytest.mark.parametrize(
    ("schedule", "expressions", "agrees"),
    [
        ("@daily", ["0  0 * * *"], True),
        ("0 0 * * *", ["@midnight"], True),
        ("*/15 * * * *", ["0,15,30,45 * * * *"], True),
        ("0 0 * * sun", ["0 0 * * 7"], True),
        ("0 0 * * 5#2", ["0 0 * * 5#2"], True),
        ("0 2 * * *", ["0 4 * * *", "0 2 * * *"], True),
        ("0 2 * * *", ["0 3 * * *"], False),
        ("0 2 * * *", ["0 3 * * *", "@reboot"], False),
        ("0 2 * * *", ["nonsense"], False),
        (None, ["0 3 * * *"], True),
        ("0 2 * * *", [], True),
    ],
)
def test_a_task_agrees_with_its_entries(schedule: str | None, expressions: list[str], agrees: bool) -> None:
    jobs: list[Any] = [(expression, "shop.cron.job") for expression in expressions]
    found = list(find_disagreements([make_task(schedule)], [*jobs, ("0 9 * * *", "shop.cron.other")]))
    assert [disagreement.expressions for disagreement in found] == ([] if agrees else [expressions])


def test_entries_of_every_kind_find_their_task(bookshop: Path) -> None:
    registry.autodiscover()
    tasks = registry.tasks()
    jobs: list[Any] = [
        ("1 0 * * *", "bookshop.cron.close_day", ">> log"),
        ["1 0 * * *", "bookshop.cron.restock", ["upper"], {}],
        ("1 0 * * *", "bookshop.cron.unscheduled"),
        ("1 0 * * *", CALL_COMMAND, ("take_stock",)),
        ("1 0 * * *", CALL_COMMAND, []),
        ("1 0 * * *", CALL_COMMAND),
        ("1 0 * * *", None),
        ("1 0 * * *",),
        None,
    ]
    found = [disagreement.task.name for disagreement in find_disagreements(tasks, jobs)]
    assert found == ["bookshop.cron.close_day", "bookshop.cron.restock", "take_stock"]
    assert [task.name for task in find_started(tasks, jobs)] == found


# Zones


@pytest.mark.parametrize(
    ("schedule", "zone", "machine", "differs"),
    [
        ("0 2 * * *", BERLIN, BERLIN, False),
        ("0 2 * * *", timezone.utc, ZoneInfo("Etc/UTC"), False),
        ("0 2 * * *", BERLIN, timezone.utc, True),
        ("0 2 * * *", LISBON, timezone.utc, True),  # in summer alone
        ("0 2 1 1 *", LISBON, timezone.utc, False),  # never in summer
        ("*/15 * * * *", BERLIN, timezone.utc, False),
        ("0 * * * *", INDIA, timezone.utc, True),
        ("*/15 * * * *", INDIA, timezone.utc, False),
        (None, BERLIN, timezone.utc, False),
    ],
)
def test_cron_in_another_zone(schedule: str | None, zone: tzinfo, machine: tzinfo, differs: bool) -> None:
    task = make_task(schedule, zone if schedule else None)
    assert fires_at_other_times(task, machine, NOW) is differs


def test_the_machine_has_a_zone_whatever_that_of_django_is(tmp_path: Path) -> None:
    localtime = tmp_path / "localtime"
    assert machine_zone(localtime) is timezone.utc
    localtime.write_text("no zone")
    assert machine_zone(localtime) is timezone.utc
    localtime.unlink()
    zones = tmp_path / "zoneinfo" / "Europe"
    zones.mkdir(parents=True)
    (zones / "Berlin").write_bytes(tzif(3600, "CET"))
    localtime.symlink_to(zones / "Berlin")
    zone = machine_zone(localtime)
    assert str(zone) == "Europe/Berlin"
    assert NOW.astimezone(zone).isoformat() == "2026-01-15T13:00:00+01:00"


def tzif(offset: int, name: str) -> bytes:
    """A time zone file that knows one offset; see RFC 8536."""
    counts = b"".join(count.to_bytes(4, "big") for count in (0, 0, 0, 0, 1, len(name) + 1))
    block = b"TZif2" + bytes(15) + counts + offset.to_bytes(4, "big") + bytes(2) + name.encode() + b"\0"
    return block + block + f"\n{name}{-offset // 3600}\n".encode()


# In the settings


def test_settings_import_no_task(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(
        "from django_singlecron.cronjobs import cronjobs\n"
        "from tests.settings import *\n"
        "import sys\n"
        "CRONJOBS = cronjobs('tests.jobs.cron')\n"
        "assert not {'tests.jobs.cron', 'django_singlecron.models'} & set(sys.modules)\n"
    )
    # django-crontab leaves the pipe from crontab open.
    variables = {"TEST_CRONTAB": "/bin/true", "PYTHONWARNINGS": "error,ignore::ResourceWarning"}
    done = run_process("crontab", "show", f"--pythonpath={tmp_path}", "--settings=late", **variables)
    assert (done.code, done.err) == (0, "")


def test_the_checks_complain_of_nothing_that_it_made(bookshop: Path, settings: Any) -> None:
    settings.CRONJOBS = cronjobs("bookshop.cron")
    # Where the tests run, the clocks may show any time.
    settings.SILENCED_SYSTEM_CHECKS = ["django_singlecron.W005"]
    call_command("check", fail_level="WARNING")
