"""The package itself: its public names, its app, its cost."""

import json
import subprocess
import sys
from io import StringIO

import pytest
from django.apps import apps
from django.core.management import call_command

import django_singlecron
from tests.commandline.driver import ROOT, environment

IMPORTS = """
import json, sys
from django_singlecron import *
print(json.dumps([name for name in sys.modules if name.startswith(("django.contrib", "django_singlecron"))]))
"""

COMMAND = """
import sys, django
django.setup()
import django_singlecron.management.commands.singlecron
print(sorted(name for name in sys.modules if name.startswith("django_singlecron")))
"""

CALL = """
import sys, django
django.setup()
import django_singlecron.calling
print(sorted(name for name in sys.modules if name.startswith("django_singlecron")))
"""

LATE = """
import sys, django
django.setup()
print(sorted(name for name in sys.modules if name.startswith("testproject.billing")))
"""


def imported_by(script: str) -> str:
    """Return what a process that runs `script` prints."""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, cwd=ROOT, check=True, text=True, env=environment()
    )
    return done.stdout


def test_public_names() -> None:
    assert sorted(django_singlecron.__all__) == django_singlecron.__all__
    for name in django_singlecron.__all__:
        assert getattr(django_singlecron, name).__doc__
    assert django_singlecron.__version__ == "0.1.0"


def test_every_error_is_a_singlecron_error_that_says_what_it_means() -> None:
    errors = [
        error
        for error in map(vars(django_singlecron).get, django_singlecron.__all__)
        if isinstance(error, type) and issubclass(error, BaseException)
    ]
    assert errors
    assert all(issubclass(error, django_singlecron.SinglecronError) for error in errors)


def test_the_app() -> None:
    config = apps.get_app_config("django_singlecron")
    assert str(config.verbose_name) == "cron jobs"
    assert [model.__name__ for model in config.get_models()] == ["JobRun", "JobWatch"]


def test_the_package_may_be_imported_before_django_is_set_up() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", IMPORTS], capture_output=True, cwd=ROOT, check=True)
    imported = json.loads(done.stdout)
    assert "django_singlecron.decorators" in imported
    assert not {"django_singlecron.models", "django_singlecron.runner"} & set(imported)


def test_its_names_are_listed_and_no_others_are_had() -> None:
    assert set(django_singlecron.__all__) <= set(dir(django_singlecron))
    with pytest.raises(AttributeError, match="module 'django_singlecron' has no attribute 'singleton'"):
        _ = django_singlecron.singleton  # type: ignore[attr-defined]


@pytest.mark.django_db
def test_a_run_does_not_import_the_doctor() -> None:
    imported = imported_by(COMMAND)
    assert "django_singlecron.watch" in imported
    assert "django_singlecron.doctor.examine" not in imported


@pytest.mark.django_db
def test_a_call_does_not_import_what_only_few_need() -> None:
    imported = imported_by(CALL)
    assert "django_singlecron.runner" in imported
    assert "django_singlecron.claims" not in imported
    assert "django_singlecron.unlocked" not in imported


@pytest.mark.django_db
def test_setting_up_imports_no_cron_module() -> None:
    imported = imported_by(LATE)
    assert "testproject.billing.models" in imported
    assert "testproject.billing.cron" not in imported


@pytest.mark.django_db
def test_migrations_are_complete() -> None:
    out = StringIO()
    call_command("makemigrations", "django_singlecron", check=True, dry_run=True, stdout=out)
    assert out.getvalue() == "No changes detected in app 'django_singlecron'\n"
