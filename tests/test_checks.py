"""The system checks: each id, with what it says and where to read on."""

import re
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from io import StringIO
from pathlib import Path
from typing import Any, cast
from zoneinfo import ZoneInfo

import pytest
from django.core.checks import CheckMessage, Tags
from django.core.management import call_command
from django.core.management.base import BaseCommand, SystemCheckError
from django.db import connection, connections

from django_singlecron import SingletonTask, checks, registry, singleton_task
from django_singlecron.conf import Settings
from django_singlecron.cronjobs import cronjobs

DOCS = Path(__file__).resolve().parent.parent / "docs" / "checks.md"


def make_task(name: str = "job", module: str = "shop.cron", **options: Any) -> SingletonTask[Any, Any]:
    task: SingletonTask[Any, Any] = singleton_task(name, **options)(lambda: None)
    task.__module__, task.__qualname__ = module, "job"
    return task


def ids(found: Iterator[CheckMessage] | list[CheckMessage]) -> list[str]:
    """The numbers of the messages, each of which has a hint that ends in its place in the docs."""
    numbers = []
    for message in found:
        number = str(message.id).removeprefix("django_singlecron.")
        assert str(message.hint).endswith(f" See {checks.DOCS}#{number.lower()}.")
        assert (number[0] == "E") == (message.level >= 40)
        numbers.append(number)
    return numbers


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """Another database, by the settings that the test gives."""
    settings = connections.configure_settings({"default": {}, "other": request.param})["other"]
    connections.settings["other"] = settings
    yield settings
    connections["other"].close()
    del connections["other"], connections.settings["other"]


SQLITE = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
UNREACHABLE = {"ENGINE": "django.db.backends.postgresql", "NAME": "x", "HOST": "127.0.0.1", "PORT": "1"}


# The setting


@pytest.mark.parametrize(
    "value", [{}, {"LOCKING": False, "DATABASE": "other", "RECORD_SKIPS": False, "OUTPUT_LIMIT": 0, "TOKENS": []}]
)
def test_settings_that_are_right(value: object) -> None:
    assert ids(checks.check_setting(value)) == []


@pytest.mark.parametrize("value", [{"LOKING": True}, {"locking": True}, {5: 1}, {None: None}])
def test_e001_an_unknown_key(value: object) -> None:
    (message,) = found = list(checks.check_setting(value))
    assert ids(found) == ["E001"]
    assert "unknown key" in message.msg
    assert "LOCKING, DATABASE, RECORD_SKIPS, OUTPUT_LIMIT, TOKENS" in str(message.hint)


@pytest.mark.parametrize(
    "value",
    [None, [], "LOCKING", {"LOCKING": 1}, {"LOCKING": None}, {"DATABASE": b"default"}, {"RECORD_SKIPS": "no"}]
    + [{"OUTPUT_LIMIT": value} for value in (-1, 1.5, True, "1")],
)
def test_e002_a_value_of_the_wrong_type(value: object) -> None:
    assert ids(checks.check_setting(value)) == ["E002"]


def test_all_that_is_wrong_with_the_setting_is_told() -> None:
    assert ids(checks.check_setting({"A": 1, "LOCKING": 1, "B": 2, "DATABASE": 3})) == ["E001", "E002"] * 2


# Modules


def test_e003_a_module_that_cannot_be_imported() -> None:
    failures = [registry.ImportFailure("shop.cron", ZeroDivisionError("division by zero"))]
    (message,) = found = list(checks.check_imports(failures))
    assert ids(found) == ["E003"]
    assert message.msg == "The module shop.cron cannot be imported: ZeroDivisionError: division by zero"


# Databases


def test_databases_that_are_right() -> None:
    assert ids(checks.check_databases([make_task()], {"default": {}, "unused": SQLITE}, locking=True)) == []


def test_e004_a_database_that_does_not_exist() -> None:
    tasks = [make_task("a", using="nowhere"), make_task("b", using="nowhere"), make_task("c")]
    (message,) = found = list(checks.check_databases(tasks, {"default": {}, "x": {}}, locking=True))
    assert ids(found) == ["E004"]
    assert message.msg == 'The database "nowhere" of the job "a", "b" is not in DATABASES.'
    assert "There are: default, x." in str(message.hint)


@pytest.mark.parametrize("database", [SQLITE], indirect=True)
def test_e005_a_database_without_advisory_locks(database: dict[str, Any]) -> None:
    tasks, databases = [make_task(using="other")], {"other": database}
    assert ids(checks.check_databases(tasks, databases, locking=True)) == ["E005"]
    assert ids(checks.check_databases(tasks, databases, locking=False)) == []


def test_e006_a_database_that_does_not_commit() -> None:
    assert ids(checks.check_databases([make_task()], {"default": {"AUTOCOMMIT": False}}, locking=True)) == ["E006"]


# Names and keys


def test_e007_two_tasks_of_one_name() -> None:
    tasks = [make_task(), make_task(module="bakery.cron"), make_task("other"), make_task(using="elsewhere")]
    (message,) = found = list(checks.check_names(tasks))
    assert ids(found) == ["E007"]
    assert message.msg == (
        'Two jobs are named "job", so one is skipped while the other runs: shop.cron.job, bakery.cron.job.'
    )
    assert ids(checks.check_names([make_task("a:{{b}}"), make_task("a:{{c}}")])) == []


def test_e007_a_command_that_another_app_overrides_is_no_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def command_in(app: str) -> SingletonTask[Any, Any]:
        module, name = f"{app}.management.commands.nightly", "<locals>.Command"
        members = {"__module__": module, "__qualname__": name, "handle": lambda self, **options: None}
        command: Any = singleton_task(type("Command", (BaseCommand,), members))
        return cast("SingletonTask[Any, Any]", command.handle)

    tasks = [command_in("shop"), command_in("till")]
    assert ids(checks.check_names(tasks)) == ["E007"]
    monkeypatch.setattr(checks, "get_commands", lambda: {"nightly": "till"})
    assert ids(checks.check_names(tasks)) == []
    assert ids(checks.check_names([*tasks, make_task("nightly")])) == ["E007"]


def test_e008_two_tasks_of_one_key() -> None:
    tasks = [make_task(key=5), make_task(key=5), make_task(key=6), make_task(key=(5, 5)), make_task(key="hashtext")]
    (message,) = found = list(checks.check_keys(tasks))
    assert ids(found) == ["E008"]
    assert message.msg.startswith("Two jobs have the lock key 5, so one is skipped while the other runs")
    assert ids(checks.check_keys([make_task(key=(1, 2)), make_task(key=(1, 2), using="other")])) == []


# django-crontab


def test_e009_a_coroutine_function_that_is_not_awaited() -> None:
    async def job() -> None: ...

    task = singleton_task("job")(job)
    task.__module__, task.__qualname__ = "shop.cron", "job"
    found = checks.check_cronjobs([task, make_task(module="bakery.cron")], ["shop.cron.job", "bakery.cron.job", "x.y"])
    assert ids(found) == ["E009"]


@pytest.mark.parametrize(
    ("schedule", "entries", "expected"),
    [
        ("0 2 * * *", ["0 3 * * *", "0 4 * * *"], ["W004"]),
        ("0 2 * * *", ["0 3 * * *", "0  2 * * *"], []),
        (None, ["0 3 * * *"], []),
    ],
)
def test_w004_cronjobs_disagree_with_a_schedule(schedule: str | None, entries: list[str], expected: list[str]) -> None:
    jobs = [(entry, "shop.cron.job") for entry in entries]
    found = list(checks.check_schedules([make_task(schedule=schedule)], jobs))
    assert ids(found) == expected
    for message in found:
        assert message.msg == (
            'CRONJOBS starts shop.cron.job at "0 3 * * *" and "0 4 * * *", but its schedule= is "0 2 * * *".'
        )


def test_w005_cron_fires_in_another_zone() -> None:
    jobs = [("0 2 * * *", "shop.cron.job")]
    now = datetime(2026, 11, 29, tzinfo=timezone.utc)
    tasks = [make_task(schedule="0 2 * * *", timezone="Europe/Berlin"), make_task(schedule="0 2 * * *")]
    machine = ZoneInfo("Etc/UTC")
    (message,) = found = list(checks.check_zones(tasks, jobs, machine, now))
    assert ids(found) == ["W005"]
    assert message.msg == (
        "cron on this machine fires in Etc/UTC, so shop.cron.job is not started when it is due: "
        'schedule="0 2 * * *" is in Europe/Berlin.'
    )
    assert ids(checks.check_zones(tasks, [], machine, now)) == []


def test_w006_a_schedule_that_django_crontab_cannot_follow() -> None:
    task = make_task(schedule="0 9 L * *")
    (message,) = found = list(checks.check_left_out([task, make_task(schedule="0 9 * * *"), make_task()], cronjobs()))
    assert ids(found) == ["W006"]
    assert message.msg == "cronjobs() leaves shop.cron.job out: cron has no expression for '0 9 L * *'."
    assert ids(checks.check_left_out([task], [("0 9 28-31 * *", "shop.cron.job")])) == []
    assert ids(checks.check_left_out([task], cronjobs("bakery"))) == []
    jobs = cronjobs()
    jobs += [("0 9 28-31 * *", "shop.cron.job")]
    assert ids(checks.check_left_out([task], jobs)) == []


# Warnings


def test_w001_jobs_without_a_lock() -> None:
    for locking, debug, expected in ((True, False, []), (True, True, []), (False, True, []), (False, False, ["W001"])):
        assert ids(checks.check_locking(Settings(locking=locking), debug=debug)) == expected


def test_w002_the_history_is_not_migrated(db: None) -> None:
    tasks = [make_task(), make_task(), make_task(using="unasked")]
    assert ids(checks.check_history(tasks, ["default", "unused"])) == []
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE django_singlecron_jobrun RENAME TO elsewhere")
    (message,) = found = list(checks.check_history(tasks, ["default", "unused"]))
    assert ids(found) == ["W002"]
    assert "Run: manage.py migrate django_singlecron --database default." in str(message.hint)
    assert ids(checks.check_history([], ["default"])) == []
    assert ids(checks.check_history(tasks, [])) == []
    err = StringIO()
    call_command("check", databases=["default"], stderr=err)
    assert "django_singlecron.W002" in err.getvalue()


@pytest.mark.parametrize("database", [UNREACHABLE], indirect=True)
def test_w003_a_database_that_cannot_be_reached(django_db_blocker: Any, database: dict[str, Any]) -> None:
    with django_db_blocker.unblock():
        (message,) = found = list(checks.check_history([make_task(using="other")], ["other", "default"]))
    assert ids(found) == ["W003"]
    assert "refused" in message.msg


# As Django runs them


def test_the_test_project_has_nothing_to_complain_of(db: None, settings: Any) -> None:
    settings.DEBUG = False
    out = StringIO()
    call_command("check", databases=["default"], stdout=out)
    assert out.getvalue() == "System check identified no issues (0 silenced).\n"


def test_deploy_checks_have_none_of_ours(db: None) -> None:
    err = StringIO()
    call_command("check", deploy=True, databases=["default"], stderr=err)
    assert "django_singlecron" not in err.getvalue()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"SINGLECRON": {"LOKING": True}}, ["E001"]),
        ({"SINGLECRON": None}, ["E002"]),
        ({"SINGLECRON": {"DATABASE": "nowhere"}}, ["E004"]),
        ({"SINGLECRON": {"LOCKING": False}, "DEBUG": False}, ["W001"]),
        ({"CRONJOBS": [("* * * * *", "no.such.module")]}, ["E003"]),
        ({"CRONJOBS": cronjobs("no.such_module")}, ["E003"]),
    ],
)
def test_the_checks_are_registered(settings: Any, values: dict[str, Any], expected: list[str]) -> None:
    for name, value in values.items():
        setattr(settings, name, value)
    found = [message for message in checks.run_checks() if str(message.id).startswith("django_singlecron")]
    assert ids(found) == expected
    err = StringIO()
    if expected[0][0] == "E":
        with pytest.raises(SystemCheckError, match=f"django_singlecron.{expected[0]}"):
            call_command("check", stderr=err)
    else:
        call_command("check", stderr=err)
        assert f"django_singlecron.{expected[0]}" in err.getvalue()


def test_database_checks_leave_a_wrong_setting_to_the_others(settings: Any) -> None:
    assert checks.run_database_checks() == []
    settings.SINGLECRON = {"LOKING": True}
    assert checks.run_database_checks(databases=["default"]) == []


def test_migrate_is_not_told_what_it_is_about_to_mend(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE django_singlecron_jobrun RENAME TO elsewhere")
    assert ids(checks.run_database_checks(databases=["default"])) == ["W002"]
    monkeypatch.setattr(sys, "argv", ["manage.py", "migrate"])
    assert checks.run_database_checks(databases=["default"]) == []


def test_a_history_that_lacks_a_column_is_not_migrated(db: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE django_singlecron_jobrun RENAME COLUMN forced TO obliged")
    assert ids(checks.run_database_checks(databases=["default"])) == ["W002"]


def test_database_checks_run_only_when_asked_for(django_assert_num_queries: Any, db: None) -> None:
    with django_assert_num_queries(0):
        call_command("check", stdout=StringIO())
    with django_assert_num_queries(3):
        call_command("check", tags=[Tags.database], databases=["default"], stdout=StringIO())


def test_checking_again_costs_next_to_nothing() -> None:
    checks.run_checks()
    imported = set(sys.modules)
    began = time.process_time()
    for _ in range(10):
        checks.run_checks()
    # About 1 ms each on a small machine: they read the source of the apps' commands.
    assert time.process_time() - began < 0.5
    assert set(sys.modules) == imported


# The docs


def test_every_check_is_in_the_docs() -> None:
    source = Path(checks.__file__).read_text()
    text = DOCS.read_text()
    sections = dict(re.findall(r"^## ([EW]\d{3})\n\n(.+?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    assert set(sections) == set(re.findall(r'"([EW]\d{3})"', source))
    assert list(sections) == sorted(sections)
    for section in sections.values():
        assert "**Why.**" in section
        assert "**What to do.**" in section
