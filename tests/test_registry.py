"""Tasks that nobody has imported yet are found, and what cannot be imported is told."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from django_singlecron import registry, singleton_task

CRON = """
from django_singlecron import singleton_task

@singleton_task
def job(): ...
"""

COMMAND = """
from django.core.management.base import BaseCommand
from django_singlecron import singleton_task

@singleton_task
class Command(BaseCommand): ...
"""


class Apps:
    """Writes apps, and puts them into INSTALLED_APPS."""

    def __init__(self, directory: Path, settings: Any) -> None:
        self.directory = directory
        self.settings = settings

    def write(self, files: dict[str, str], *, install: tuple[str, ...]) -> None:
        for name, text in files.items():
            path = self.directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            for package in path.relative_to(self.directory).parents[:-1]:
                (self.directory / package / "__init__.py").touch()
        self.settings.INSTALLED_APPS = [*self.settings.INSTALLED_APPS, *install]


@pytest.fixture
def apps(tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Apps]:
    monkeypatch.setattr(registry, "_tasks", {})
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    settings.CRONJOBS = []
    before = set(sys.modules)
    yield Apps(tmp_path, settings)
    for module in set(sys.modules) - before:
        del sys.modules[module]


def names() -> list[str]:
    return [task.name for task in registry.tasks()]


def test_cron_modules_commands_and_cronjobs_are_found(apps: Apps) -> None:
    apps.write(
        {
            "shop/cron.py": CRON,
            "shop/management/commands/restock.py": COMMAND,
            "shop/management/commands/plain.py": "raise RuntimeError('not to be imported')",
            "elsewhere/jobs.py": CRON,
            "elsewhere/cron.py": "raise RuntimeError('of no app')",
        },
        install=("shop",),
    )
    apps.settings.CRONJOBS = [("* * * * *", "elsewhere.jobs.job"), ["* * * * *", "shop.cron.job", ["argument"]]]
    assert names() == []
    assert registry.autodiscover() == []
    assert names() == ["elsewhere.jobs.job", "shop.cron.job", "restock"]
    assert registry.autodiscover() == []


def test_a_cron_package_is_found(apps: Apps) -> None:
    apps.write({"shop/cron/__init__.py": CRON, "shop/cron/nightly.py": ""}, install=("shop",))
    assert registry.autodiscover() == []
    assert names() == ["shop.cron.job"]


def test_what_cannot_be_imported_is_told(apps: Apps) -> None:
    apps.write(
        {
            "shop/cron.py": "1 / 0",
            "bakery/cron.py": "import no_such_module",
            "garage/cron.py": "raise SystemExit(3)",
            "harbour/cron.py": "def (:",
            "farm/cron.py": "from django_singlecron import singleton_task\nsingleton_task('')(lambda: None)",
            "farm/management/commands/harvest.py": "import django_singlecron.nothing",
        },
        install=("shop", "bakery", "garage", "harbour", "farm"),
    )
    apps.settings.CRONJOBS = [("* * * * *", "nowhere.at_all.job")]
    failures = {failure.module: type(failure.error).__name__ for failure in registry.autodiscover()}
    assert failures == {
        "shop.cron": "ZeroDivisionError",
        "bakery.cron": "ModuleNotFoundError",
        "garage.cron": "SystemExit",
        "harbour.cron": "SyntaxError",
        "farm.cron": "InvalidName",
        "farm.management.commands.harvest": "ModuleNotFoundError",
        "nowhere.at_all": "ModuleNotFoundError",
    }
    # It stays so until it is mended.
    assert len(registry.autodiscover()) == len(failures)


@pytest.mark.parametrize(
    ("jobs", "targets"),
    [
        (None, []),
        ((), []),
        ([("* * * * *", "a.b"), ["* * * * *", "c.d", [1]]], ["a.b", "c.d"]),
        ([("* * * * *",), ("* * * * *", 5), "* * * * * a.b", None], []),
    ],
)
def test_cronjobs_that_are_none_are_left_to_django_crontab(settings: Any, jobs: Any, targets: list[str]) -> None:
    settings.CRONJOBS = jobs
    assert registry.cronjob_targets() == targets


def test_a_cronjob_without_a_module_and_a_project_without_cronjobs(apps: Apps) -> None:
    apps.settings.CRONJOBS = [("* * * * *", "print")]
    assert registry.autodiscover() == []
    del apps.settings.CRONJOBS
    assert registry.autodiscover() == []


def test_an_app_without_modules_is_passed_over(apps: Apps, monkeypatch: pytest.MonkeyPatch) -> None:
    from django.apps import apps as installed

    monkeypatch.setattr(installed.get_app_config("billing"), "module", None)
    assert "testproject.billing.cron" not in set(registry._cron_modules())


def test_a_command_without_source_is_passed_over(apps: Apps) -> None:
    apps.write({"shop/management/commands/restock.py": COMMAND}, install=("shop",))
    (apps.directory / "shop/management/commands/restock.py").rename(
        apps.directory / "shop/management/commands/restock.pyc"
    )
    assert "shop.management.commands.restock" not in set(registry._command_modules())


def test_a_module_that_is_imported_again_redefines_its_tasks(apps: Apps) -> None:
    apps.write({"shop/cron.py": CRON}, install=("shop",))
    registry.autodiscover()
    before = registry.tasks()
    del sys.modules["shop.cron"]
    registry.autodiscover()
    assert names() == ["shop.cron.job"]
    assert registry.tasks() != before


def test_what_a_function_defines_is_no_task_of_the_project(apps: Apps) -> None:
    singleton_task("local")(lambda: None)
    assert registry.tasks() == []
