"""The HTTP trigger: who may start which job by a POST, and what is answered."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import urllib.request
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any
from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import include, path

from django_singlecron import checks, current_run, registry, singleton_task, tokens
from django_singlecron.conf import get_settings
from django_singlecron.exceptions import InvalidTask
from django_singlecron.interrupts import Terminated
from django_singlecron.invoke import start
from django_singlecron.models import JobRun
from django_singlecron.task import Request
from django_singlecron.testing import hold_lock
from testproject.billing.models import Tenant
from tests.support.deadlines import DEADLINE
from tests.support.threads import in_threads

OLD, NEW = "an-old-token-of-some-length", "a-new-token-of-some-length"
ASKED: list[Any] = []


@singleton_task("trigger.plain", http=True)
def plain() -> None:
    Tenant.objects.create(name=uuid4(), monthly_fee=1)


@singleton_task("trigger.arguments:{tenant}", http=True)
def with_arguments(tenant: int, *, dry_run: bool = False) -> None:
    ASKED.append((tenant, dry_run))


@singleton_task("trigger/daily", http=True, schedule="0 2 * * *", timezone="Europe/Berlin")
def daily() -> None:
    run = current_run()
    assert run is not None
    ASKED.append(run.slot)


@singleton_task("trigger.coroutine", http=True)
async def coroutine() -> None:
    ASKED.append("awaited")


@singleton_task("trigger.failing", http=True)
def failing(how: str) -> None:
    plain.func()
    if how == "exit":
        sys.exit(3)
    if how == "exit well":
        sys.exit(0)
    if how == "terminate":
        os.kill(os.getpid(), signal.SIGTERM)
    raise ZeroDivisionError("a secret of the job's")


@singleton_task("trigger.closed")
def closed() -> None: ...


class Undecorated(BaseCommand):
    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("word", nargs="?")
        parser.add_argument("--days", type=int, default=1)

    def handle(self, *args: Any, word: str | None, days: int, **options: Any) -> str:
        if word == "fail":
            raise CommandError("failed as told")
        self.stdout.write("for the record")
        ASKED.append((word, days))
        return "said"


@singleton_task("trigger.command", http=True)
class Job(Undecorated):
    pass


@singleton_task("trigger.named:{word}", http=True)
class Named(Undecorated):
    pass


@singleton_task("trigger.beside", http=True)
class Beside(BaseCommand):
    def execute(self, *args: Any, **options: Any) -> None: ...


def in_view(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str(plain().run_id))


urlpatterns = [path("jobs/", include("django_singlecron.urls")), path("in-view/", in_view)]

pytestmark = pytest.mark.urls(__name__)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a job whose database does not exist, of which nothing but this test may know."""
    task = singleton_task("trigger.elsewhere", http=True, using="nowhere")(lambda: None)
    monkeypatch.setitem(registry._tasks, "elsewhere", task)
    return task.name


@pytest.fixture(autouse=True)
def _tokens(settings: Any) -> None:
    settings.SINGLECRON = {"TOKENS": [OLD, NEW]}
    ASKED.clear()


Post = Callable[..., tuple[int, Any]]


def post_to(client: Client, job: str, body: Any = "", token: str = NEW) -> tuple[int, Any]:
    response = client.post(
        f"/jobs/run/{job}/",
        body if isinstance(body, str | bytes) else json.dumps(body),
        content_type="application/json",
        headers={"Authorization": f"Bearer {token}"},
    )
    assert response["Cache-Control"].startswith("max-age=0")
    return response.status_code, response.json()


@pytest.fixture
def post(transactional_db: None) -> Post:
    client = Client(enforce_csrf_checks=True, raise_request_exception=False)
    return lambda *args, **kwargs: post_to(client, *args, **kwargs)


def test_a_job_that_opted_in_runs(post: Post) -> None:
    status, answer = post("trigger.plain")
    run = JobRun.objects.get()
    assert (status, answer) == (200, {"ran": True, "run_id": run.pk, "outcome": "acquired"})
    assert (run.status, Tenant.objects.count()) == ("succeeded", 1)


def test_a_skip_says_who_holds_the_lock(post: Post) -> None:
    with hold_lock(plain):
        status, answer = post("trigger.plain")
    expected = {"ran": False, "reason": "locked", "held_by": None, "run_id": JobRun.objects.get().pk}
    assert (status, answer) == (200, expected)


def test_of_two_posts_at_once_one_runs(transactional_db: None) -> None:
    answered = threading.Event()
    blocking.wait = answered

    def replica(number: int) -> tuple[int, Any]:
        status, answer = post_to(Client(), "trigger.blocking")
        if not answer["ran"]:
            answered.set()
        return status, answer

    answers = sorted(in_threads(2, replica), key=lambda answer: answer[1]["ran"])
    (winner, loser) = (JobRun.objects.acquired().get(), JobRun.objects.skipped().get())
    assert answers == [
        (200, {"ran": False, "reason": "locked", "held_by": winner.pk, "run_id": loser.pk}),
        (200, {"ran": True, "run_id": winner.pk, "outcome": "acquired"}),
    ]


@singleton_task("trigger.blocking", http=True)
def blocking() -> None:
    assert blocking.wait.wait(DEADLINE)  # type: ignore[attr-defined]


def test_over_a_real_connection(live_server: Any) -> None:
    def post(number: int) -> Any:
        request = urllib.request.Request(
            f"{live_server.url}/jobs/run/trigger.plain/", method="POST", headers={"Authorization": f"Bearer {OLD}"}
        )
        with urllib.request.urlopen(request, timeout=DEADLINE) as response:
            return response.status, json.load(response)["ran"]

    assert post(0) == (200, True)
    assert {status for status, _ in in_threads(4, post)} == {200}
    assert Tenant.objects.count() == JobRun.objects.succeeded().count() >= 2
    assert JobRun.objects.count() == 5


@pytest.mark.parametrize("job", ["trigger.plain", "trigger.coroutine"])
def test_under_asgi(transactional_db: None, job: str) -> None:
    headers = {"Authorization": f"Bearer {NEW}"}
    response = async_to_sync(AsyncClient().post)(
        f"/jobs/run/{job}/", "{}", content_type="application/json", headers=headers
    )
    assert (response.status_code, response.json()["ran"]) == (200, True)
    assert JobRun.objects.get().status == "succeeded"


def test_outside_the_transactions_of_requests(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "ATOMIC_REQUESTS", True)
    assert post("trigger.plain")[0] == 200
    # The setting is at work: another view's job is refused.
    assert Client(raise_request_exception=False).get("/in-view/").status_code == 500
    assert JobRun.objects.count() == 1


def test_a_view_without_that_setting_may_call_a_job(transactional_db: None) -> None:
    assert Client().get("/in-view/").content.decode() == str(JobRun.objects.get().pk)


@pytest.mark.parametrize("token", [OLD, NEW])
def test_either_token_of_a_rotation(post: Post, token: str) -> None:
    assert post("trigger.plain", token=token)[0] == 200


@pytest.mark.parametrize("authorization", [None, "Bearer", f"Bearer {NEW}x", f"Bearer {NEW[:-1]}", f"Basic {NEW}", NEW])
@pytest.mark.parametrize("job", ["trigger.plain", "trigger.closed", "nothing"])
def test_without_a_valid_token(db: None, authorization: str | None, job: str) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    response = Client().post(f"/jobs/run/{job}/", headers=headers)
    assert (response.status_code, response["WWW-Authenticate"]) == (401, 'Bearer realm="singlecron"')
    assert response.json() == {"error": "A valid bearer token is needed."}
    assert not JobRun.objects.exists()


def test_all_tokens_are_compared_in_constant_time(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[str, str]] = []

    def compare(given: str, token: str) -> bool:
        compared.append((given, token))
        return constant_time(given, token)

    constant_time = tokens.constant_time_compare
    monkeypatch.setattr(tokens, "constant_time_compare", compare)
    assert post("trigger.plain", token=OLD)[0] == 200
    assert compared == [(OLD, OLD), (OLD, NEW)]


@pytest.mark.parametrize("off", [{}, {"TOKENS": []}])
def test_off_unless_configured(db: None, settings: Any, off: dict[str, Any]) -> None:
    settings.SINGLECRON = off
    for method in ("get", "post"):
        response = getattr(Client(), method)("/jobs/run/trigger.plain/", headers={"Authorization": "Bearer "})
        assert response.status_code == 404
    assert not JobRun.objects.exists()


@pytest.mark.parametrize("method", ["get", "head", "put", "patch", "delete", "options"])
def test_nothing_but_post(db: None, method: str) -> None:
    headers = {"Authorization": f"Bearer {NEW}"}
    response = getattr(Client(), method)("/jobs/run/trigger.plain/", headers=headers)
    assert (response.status_code, response["Allow"]) == (405, "POST")
    assert not JobRun.objects.exists()


@pytest.mark.parametrize("job", ["nothing", "trigger.closed", "trigger.arguments:7", "nightly_billing"])
def test_jobs_that_have_not_opted_in_are_unknown(post: Post, job: str) -> None:
    assert post(job) == (404, {"error": "No job of this name may be run over HTTP."})
    assert not JobRun.objects.exists()


def test_a_slot_is_run_once_unless_forced(post: Post) -> None:
    slot = {"slot": "2024-10-01T02:00"}
    assert post("trigger/daily", slot)[1]["ran"]
    first = JobRun.objects.get().pk
    status, answer = post("trigger/daily", {"slot": "2024-10-01T00:00Z"})
    assert (status, answer["reason"], answer["held_by"]) == (200, "already_ran", first)
    assert post("trigger/daily", {**slot, "force": True, "arguments": {}})[1]["ran"]
    assert [datetime(2024, 10, 1, tzinfo=timezone.utc)] * 2 == ASKED
    assert [run.forced for run in JobRun.objects.acquired().order_by("id")] == [False, True]
    assert post("trigger/daily", {"slot": None})[1]["ran"]


@pytest.mark.parametrize("arguments", [{"tenant": 7, "dry_run": True}, {"tenant": 7}, [7]])
def test_arguments(post: Post, arguments: Any) -> None:
    assert post("trigger.arguments:{tenant}", {"arguments": arguments})[1]["ran"]
    assert [(7, isinstance(arguments, dict) and arguments.get("dry_run", False))] == ASKED
    assert JobRun.objects.get().job == "trigger.arguments:7"


@pytest.mark.parametrize(
    ("job", "body", "says"),
    [
        ("trigger.plain", "{", "no JSON"),
        ("trigger.plain", b"\xff", "no JSON"),
        ("trigger.plain", "[" * 100_000, "no JSON"),
        ("trigger.plain", [], "no JSON object"),
        ("trigger.plain", {"slto": "x", "also": 1}, "unknown keys: 'also', 'slto'"),
        ("trigger.plain", {"force": 1}, "force is neither"),
        ("trigger.plain", {"arguments": "x"}, "arguments is neither"),
        ("trigger.plain", {"slot": "2024-10-01T02:00"}, "has no slots"),
        ("trigger/daily", {"slot": 7}, "slot is no date and time"),
        ("trigger/daily", {"slot": "yesterday"}, "slot is no date and time"),
        ("trigger/daily", {"slot": "2024-13-01T02:00"}, "month must be in"),
        ("trigger/daily", {"slot": "0001-01-01T02:00"}, "years are 1970 to 2199"),
        ("trigger/daily", {"slot": "2024-10-01T03:00"}, "The nearest are 2024-10-01T02:00:00+02:00 and 2024-10-02"),
        ("trigger.plain", {"arguments": {"tenant": 1}}, "unexpected keyword argument 'tenant'"),
        ("trigger.plain", {"arguments": [1]}, "too many positional arguments"),
        ("trigger.arguments:{tenant}", "", "missing a required argument: 'tenant'"),
        ("trigger.arguments:{tenant}", {"arguments": {"tenant": [1]}}, "is a list"),
        ("trigger.command", {"arguments": {"stdout": "x", "traceback": True}}, "Not over HTTP: stdout, traceback"),
        ("trigger.command", {"arguments": {"day": 1}}, "Unknown option(s)"),
        ("trigger.command", {"arguments": ["a", "b"]}, "unrecognized arguments: b"),
        ("trigger.command", {"arguments": {"command_name": "flush"}}, "multiple values"),
        ("trigger.named:{word}", {"arguments": ["x" * 201]}, "characters long"),
    ],
)
def test_what_is_wrong_with_a_body(post: Post, job: str, body: Any, says: str) -> None:
    status, answer = post(job, body)
    assert (status, list(answer)) == (400, ["error"])
    assert says in answer["error"]
    assert not JobRun.objects.exists()
    assert not ASKED


def test_a_command(post: Post, capsys: pytest.CaptureFixture[str]) -> None:
    assert post("trigger.command")[1]["ran"]
    assert post("trigger.command", {"arguments": {"days": 3, "verbosity": 0}})[1]["ran"]
    assert post("trigger.command", {"arguments": ["word", "--days", "5"]})[1]["ran"]
    assert ASKED == [(None, 1), (None, 3), ("word", 5)]
    assert JobRun.objects.latest().output == "for the record\nsaid\n"
    with hold_lock("trigger.command"):
        assert post("trigger.command")[1]["reason"] == "locked"
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("job", "arguments", "error"),
    [
        ("trigger.failing", ["raise"], "ZeroDivisionError"),
        ("trigger.failing", ["exit"], "SystemExit"),
        ("trigger.command", ["fail"], "CommandError"),
    ],
)
def test_a_failure_has_its_run_and_no_traceback(post: Post, job: str, arguments: list[str], error: str) -> None:
    status, answer = post(job, {"arguments": arguments})
    run = JobRun.objects.get()
    assert (status, answer) == (500, {"ran": True, "run_id": run.pk, "outcome": "acquired", "error": error})
    assert (run.status, Tenant.objects.count()) == ("failed", 0)
    assert error in run.traceback


def test_leaving_with_0_is_success(post: Post) -> None:
    status, answer = post("trigger.failing", {"arguments": ["exit well"]})
    assert (status, answer) == (200, {"ran": True, "run_id": JobRun.objects.get().pk, "outcome": "acquired"})
    assert Tenant.objects.count() == 1


def test_a_process_that_is_asked_to_end_ends(post: Post) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(Terminated):
            post("trigger.failing", {"arguments": ["terminate"]})
    finally:
        signal.signal(signal.SIGTERM, before)
    assert JobRun.objects.get().status == "failed"


def test_a_refusal(post: Post, elsewhere: str, caplog: pytest.LogCaptureFixture) -> None:
    assert post(elsewhere) == (409, {"ran": False, "run_id": None, "error": "RunRefused"})
    assert 'there is no database "nowhere"' in caplog.text


@pytest.mark.parametrize("job", ["trigger.plain", "trigger.command"])
def test_a_database_that_cannot_be_reached(
    post: Post, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, job: str
) -> None:
    connections["default"].close()
    monkeypatch.setitem(connections["default"].settings_dict, "HOST", "/no/such/directory")
    assert post(job) == (503, {"ran": False, "run_id": None, "error": "DatabaseUnavailable"})
    monkeypatch.undo()
    assert "cannot be reached" in caplog.text
    assert not JobRun.objects.exists()


def test_what_goes_wrong_before_a_run_is_logged(post: Post, caplog: pytest.LogCaptureFixture) -> None:
    assert post("trigger.beside") == (500, {"ran": False, "run_id": None, "error": "CommandError"})
    assert "without calling handle()" in caplog.text


def test_no_token_is_logged_recorded_or_shown(
    post: Post, elsewhere: str, caplog: pytest.LogCaptureFixture, settings: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    for job in ("trigger.plain", elsewhere, "trigger.beside", "nothing"):
        post(job)
    post("trigger.failing", {"arguments": ["raise"]})
    wrong = "a-wrong-token-of-some-length"
    post("trigger.plain", token=wrong)
    told = caplog.text + repr(get_settings()) + repr(list(JobRun.objects.values())) + "".join(capsys.readouterr())
    settings.SINGLECRON = {"TOKENS": NEW}
    told += repr(list(checks.check_setting(settings.SINGLECRON)))
    settings.SINGLECRON = {"TOKENS": [NEW[:5]]}
    told += repr(checks.run_checks())
    assert "E010" in told
    assert not [token for token in (OLD, NEW, NEW[:5], wrong) if token in told]


@pytest.mark.parametrize(
    ("given", "expected"),
    [([], []), ([NEW], []), (["x" * 16], []), ([NEW, "x" * 15], ["E010"]), (["a", "b"], ["E010"])],
)
def test_the_check_of_the_tokens_length(given: list[str], expected: list[str]) -> None:
    found = list(checks.check_tokens(given))
    assert [str(message.id).removeprefix("django_singlecron.") for message in found] == expected


def test_http_is_true_or_false() -> None:
    with pytest.raises(InvalidTask, match="http='yes' is neither True nor False"):
        singleton_task(http="yes")  # type: ignore[call-overload]
    assert plain.options.http
    assert not closed.options.http


def test_start_without_arguments(transactional_db: None) -> None:
    assert start(plain, Request()).result.ran
