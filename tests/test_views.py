"""The check over HTTP: for a token or for staff, and without a trace."""

from __future__ import annotations

from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client, RequestFactory

from django_singlecron.models import JobWatch
from django_singlecron.views import check
from tests.support_watch import AddTask, add_task_fixture, record

__all__ = ["add_task_fixture"]

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.urls_singlecron")]

URL = "/singlecron/check/"
TOKEN = {"Authorization": "Bearer a-token-of-some-length"}


@pytest.fixture(autouse=True)
def _token(settings: Any) -> None:
    settings.SINGLECRON = {"TOKENS": ["a-token-of-some-length"]}


def test_well_or_not(add_task: AddTask, client: Client) -> None:
    add_task(schedule="@daily")
    answer = client.get(URL, headers=TOKEN)
    assert (answer.status_code, answer.json()["status"], answer.json()["jobs"]) == (200, "ok", 1)
    assert "no-cache" in answer.headers["Cache-Control"]
    record(status="failed")
    answer = client.get(URL, headers=TOKEN)
    assert (answer.status_code, answer.json()["status"]) == (503, "critical")
    assert [problem["kind"] for problem in answer.json()["problems"]] == ["failing"]
    assert client.head(URL, headers=TOKEN).status_code == 503
    assert not JobWatch.objects.exists()


def test_what_cannot_be_checked_is_not_well(add_task: AddTask, client: Client) -> None:
    add_task(using="absent")
    answer = client.get(URL, headers=TOKEN)
    assert (answer.status_code, answer.json()["status"]) == (503, "unknown")
    assert answer.json()["obstacles"] == ['There is no database "absent" in DATABASES.']


def test_strangers_are_asked_who_they_are(client: Client) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        answer = client.get(URL, headers=headers)
        assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert "problems" not in answer.json()


def test_staff_may_look_and_others_may_not(add_task: AddTask, client: Client) -> None:
    client.force_login(User.objects.create(username="staff", is_staff=True))
    assert client.get(URL).status_code == 200
    client.force_login(User.objects.create(username="customer"))
    assert client.get(URL).status_code == 403


def test_without_sessions_a_token_is_the_only_way() -> None:
    assert check(RequestFactory().get(URL)).status_code == 401


def test_in_a_test_of_the_project_the_command_works(add_task: AddTask) -> None:
    add_task(schedule="@daily")
    call_command("singlecron", "check")
    assert JobWatch.objects.get().job == "job"


def test_it_is_read_alone(client: Client) -> None:
    assert client.post(URL, headers=TOKEN).status_code == 405


def test_the_admin_shows_the_history_alone() -> None:
    app = apps.get_app_config("django_singlecron")
    assert [model.__name__ for model in app.get_models() if admin.site.is_registered(model)] == ["JobRun"]
    call_command("check", "admin", "django_singlecron", fail_level="WARNING")
