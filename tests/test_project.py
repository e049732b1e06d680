"""The test project, which newcomers copy: it is in order, and its cron jobs run."""

from __future__ import annotations

from importlib import import_module

import pytest
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.checks import run_checks
from django.core.management import call_command
from django.test import Client

from django_singlecron.models import JobRun
from testproject.billing.models import Invoice, Tenant

pytestmark = pytest.mark.django_db


def test_migrations_are_complete() -> None:
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)


def test_checks_find_nothing_of_ours() -> None:
    messages = run_checks(include_deployment_checks=True, databases=["default"])
    assert [message for message in messages if str(message.id).startswith("django_singlecron.")] == []


def test_cron_jobs_run() -> None:
    tenant = Tenant.objects.create(name="Tenant", monthly_fee=10)
    for _when, path, *arguments in settings.CRONJOBS:
        module, _, name = str(path).rpartition(".")
        getattr(import_module(module), name)(*(arguments[0] if arguments else ()))
    assert Invoice.objects.get().tenant == tenant
    assert Invoice.objects.get().reminded
    assert set(JobRun.objects.values_list("job", "status")) == {
        ("nightly_billing", "succeeded"),
        ("testproject.billing.cron.send_reminders", "succeeded"),
        ("clearsessions", "succeeded"),
    }


@pytest.mark.parametrize("model", ["tenant", "invoice"])
def test_admin_shows_the_work(client: Client, model: str) -> None:
    tenant = Tenant.objects.create(name="Tenant 7", monthly_fee=10)
    Invoice.objects.create(tenant=tenant, amount=10)
    client.force_login(get_user_model().objects.create_superuser("admin"))
    assert "Tenant 7" in client.get(f"/admin/billing/{model}/").content.decode()
