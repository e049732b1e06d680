"""The history in the admin: what it shows, to whom, and what it asks the database for."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_singlecron import admin_list
from django_singlecron.admin import JobRunAdmin
from django_singlecron.admin_list import Calendar
from django_singlecron.models import JobRun

LIST = "/admin/django_singlecron/jobrun/"
NOW = datetime.now(tz=timezone.utc)
LARGE_COLUMNS = ("arguments", "error_message", "traceback", "output")
SCRIPT = "<script>alert(1)</script>"
ESCAPED = "&lt;script&gt;alert(1)&lt;/script&gt;"

pytestmark = pytest.mark.django_db


def make_run(**values: Any) -> JobRun:
    skipped = values.get("status") == "skipped"
    row = {
        "job": "nightly_billing",
        "key": 4242,
        "outcome": "skipped" if skipped else "acquired",
        "skip_reason": "locked" if skipped else "",
        "status": "succeeded",
        "host": "web-1",
        "pid": 1234567,
        "trigger": "command_line",
        "started_at": NOW - timedelta(minutes=5),
        "finished_at": NOW,
    }
    return JobRun.objects.create(**{**row, **values})


@pytest.fixture
def admin_client() -> Client:
    """pytest-django's, without the second that it takes to hash a password."""
    client = Client()
    client.force_login(User.objects.create_superuser("admin"))
    return client


def detail(run: JobRun) -> str:
    return f"{LIST}{run.pk}/change/"


def get(client: Client, url: str) -> str:
    response = client.get(url)
    assert response.status_code == 200, response
    return response.content.decode()


def listed(client: Client, query: str = "") -> list[int]:
    """The numbers of the runs on a page of the list, in its order."""
    page = get(client, f"{LIST}?{query}")
    return [int(number) for number in re.findall(r'class="field-run">.*?>#(\d+)<', page)]


def staff(*permissions: str) -> Client:
    user = User.objects.create_user("ops", is_staff=True)
    user.user_permissions.set(
        Permission.objects.filter(content_type__app_label="django_singlecron", codename__in=permissions)
    )
    client = Client()
    client.force_login(user)
    return client


# Who may do what


@pytest.fixture(params=["view only", "every permission", "superuser"])
def viewer(request: pytest.FixtureRequest) -> Client:
    if request.param == "view only":
        return staff("view_jobrun")
    if request.param == "every permission":
        return staff("view_jobrun", "add_jobrun", "change_jobrun", "delete_jobrun")
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


def test_viewers_see_the_list_and_the_page_of_a_run(viewer: Client) -> None:
    run = make_run()
    assert listed(viewer) == [run.pk]
    page = get(viewer, detail(run))
    assert "nightly_billing" in page
    assert 'name="_save"' not in page
    assert "deletelink" not in page
    assert "historylink" not in page
    assert "jobrun/add/" not in get(viewer, LIST)


def test_nobody_changes_anything(viewer: Client) -> None:
    run = make_run()
    chosen = {"_selected_action": [str(run.pk)], "index": "0"}
    assert viewer.post(LIST, {"action": "delete_selected", **chosen}).status_code == 403
    assert viewer.post(LIST, {"action": "delete_selected", "post": "yes", **chosen}).status_code == 403
    assert viewer.post(detail(run), {"status": "failed"}).status_code == 403
    assert viewer.post(f"{LIST}{run.pk}/delete/", {"post": "yes"}).status_code == 403
    assert viewer.get(f"{LIST}{run.pk}/delete/").status_code == 403
    assert viewer.get(f"{LIST}add/").status_code == 403
    assert viewer.post(f"{LIST}add/", {"job": "made up"}).status_code == 403
    assert JobRun.objects.get().status == "succeeded"


def test_the_list_offers_no_action(viewer: Client) -> None:
    make_run()
    page = get(viewer, LIST)
    assert 'name="action"' not in page
    assert "_selected_action" not in page


def test_staff_without_the_permission_see_nothing() -> None:
    run = make_run()
    client = staff()
    assert client.get(LIST).status_code == 403
    assert client.get(detail(run)).status_code == 403
    assert client.post(LIST, {"action": "delete_selected"}).status_code == 403
    assert "jobrun" not in client.get("/admin/").content.decode()


def test_strangers_are_sent_to_the_login() -> None:
    run = make_run()
    for url in (LIST, detail(run)):
        assert Client().get(url).headers["location"].startswith("/admin/login/")


def test_a_run_that_is_gone_is_said_to_be(admin_client: Client) -> None:
    assert admin_client.get(f"{LIST}999999/change/").status_code == 302


# What is shown


def test_each_status_and_outcome_has_words_and_a_colour(admin_client: Client) -> None:
    for status in JobRun.Status.values:
        make_run(status=status, lock="none")
    page = get(admin_client, LIST)
    for word in ("acquired", *JobRun.Status.values):
        assert f'<span class="singlecron-badge singlecron-{word}">{word}</span>' in page
    assert "django_singlecron/admin.css" in page


def test_the_skipped_and_the_holder_link_to_each_other(admin_client: Client) -> None:
    holder = make_run(status="running", started_at=NOW, finished_at=None)
    skipped = make_run(status="skipped", held_by=holder, host="web-2")
    link = f'<a href="{detail(holder)}">#{holder.pk}</a>'
    assert link in get(admin_client, LIST)
    page = get(admin_client, detail(skipped))
    assert link in page
    assert "another run holds the lock" in page
    assert f'<a href="{detail(skipped)}">#{skipped.pk}</a> (web-2)' in get(admin_client, detail(holder))


def test_a_holder_names_twenty_that_it_held_up_and_links_to_the_rest(admin_client: Client) -> None:
    holder = make_run()
    held_up = [make_run(status="skipped", held_by=holder).pk for _ in range(21)]
    page = get(admin_client, detail(holder))
    assert f">#{held_up[19]}<" in page
    assert f">#{held_up[20]}<" not in page
    assert f"{LIST}?held_by={holder.pk}" in page
    make_run()
    assert listed(admin_client, f"held_by={holder.pk}") == held_up[::-1]


def test_every_field_is_on_the_page_of_a_run(admin_client: Client) -> None:
    run = make_run(
        job="bill:7",
        status="failed",
        slot=datetime(2026, 1, 2, 2, 59, tzinfo=timezone.utc),
        forced=True,
        arguments="tenant_id=7",
        host="web-3",
        command="manage.py bill 7",
        error_class="ValueError",
        error_message="no fee",
        traceback="\nTraceback:\n  line",
        output="3 invoices written.\n",
        token=7654321,
        backend_pid=87654,
        started_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc),
        finished_at=datetime(2026, 1, 2, 4, 7, 5, tzinfo=timezone.utc),
    )
    page = get(admin_client, detail(run))
    fields = {field.name for field in JobRun._meta.concrete_fields}
    shown = {re.sub("_(link|badge|text|exactly)$", "", name) for name in JobRunAdmin.readonly_fields}
    assert fields - shown == {"id", "key_is_pair", "started_at", "finished_at", "pid"}
    assert {"key", "started", "finished", "process"} <= shown
    for text in (
        f'<a href="{LIST}?job=bill%3A7">bill:7</a>',
        '<pre class="singlecron-text">\ntenant_id=7</pre>',
        '<pre class="singlecron-text">\nno fee</pre>',
        '<pre class="singlecron-text">\n\nTraceback:\n  line</pre>',
        '<pre class="singlecron-text">\n3 invoices written.\n</pre>',
        "ValueError",
        "web-3",
        "1234567",
        "command line",
        "manage.py bill 7",
        "2026-01-02 02:59:00.000 UTC",
        '<div class="readonly">yes</div>',
        "2026-01-02 03:04:05.000 UTC",
        "2026-01-02 04:07:05.000 UTC",
        "1 h 03 min",
        "4242",
        "7654321",
        "87654",
        "transaction-level advisory lock",
    ):
        assert text in page


def test_a_key_that_is_a_pair_is_shown_as_two_numbers(admin_client: Client) -> None:
    run = make_run(key=(-7 << 32) | 4294967295, key_is_pair=True)
    assert '<div class="readonly">-7, -1</div>' in get(admin_client, detail(run))
    run = make_run(key=None, lock="none", token=None)
    page = get(admin_client, detail(run))
    assert "no lock" in page


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-1, "0 ms"),
        (0.0042, "4 ms"),
        (59.94, "59.9 s"),
        (61, "1 min 01 s"),
        (3600, "1 h 00 min"),
        (86400 * 2 + 3 * 3600 + 59 * 60, "2 d 3 h"),
    ],
)
def test_durations_are_said_in_two_units(admin_client: Client, seconds: float, words: str) -> None:
    make_run(started_at=NOW - timedelta(seconds=seconds), finished_at=NOW)
    assert f'<td class="field-took">{words}</td>' in get(admin_client, LIST)


def test_a_lost_run_took_at_most_the_time_until_it_was_found_out(admin_client: Client) -> None:
    make_run(status="lost")
    assert '<td class="field-took">at most 5 min 00 s</td>' in get(admin_client, LIST)
    make_run(status="lost", error_class="LockLost")
    assert '<td class="field-took">5 min 00 s</td>' in get(admin_client, LIST)


def test_a_run_that_goes_on_says_for_how_long_and_a_skipped_one_took_no_time(admin_client: Client) -> None:
    make_run(status="running", lock="none", finished_at=None, started_at=NOW - timedelta(hours=2))
    make_run(status="skipped")
    page = get(admin_client, LIST)
    assert re.search(r'<td class="field-took">2 h \d\d min so far</td>', page)
    assert '<td class="field-took">-</td>' in page


def test_times_are_told_without_a_zone_where_the_project_has_none(admin_client: Client, settings: Any) -> None:
    run = make_run(started_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc))
    settings.USE_TZ = False
    assert re.search(r'<td class="field-started">2026-01-0\d \d\d:\d\d:05</td>', get(admin_client, LIST))
    assert re.search(r'<div class="readonly">2026-01-0\d \d\d:\d\d:05.000</div>', get(admin_client, detail(run)))


def test_markup_is_shown_as_text(admin_client: Client) -> None:
    texts = ("job", "host", "command", "error_class", *LARGE_COLUMNS)
    run = make_run(status="failed", **{name: SCRIPT + name for name in texts})
    make_run(status="skipped", held_by=run, host=SCRIPT)
    page = get(admin_client, detail(run))
    assert SCRIPT not in page
    for name in texts:
        assert ESCAPED + name in page
    for query in ("", f"?job={SCRIPT}", f"?q={SCRIPT}"):
        page = get(admin_client, LIST + query)
        assert SCRIPT not in page
        assert ESCAPED in page


# Filters, search, dates


def test_filters_choose_rows(admin_client: Client) -> None:
    ran = make_run()
    skipped = make_run(job="clearsessions", status="skipped", trigger="function")
    assert listed(admin_client) == [skipped.pk, ran.pk]
    assert listed(admin_client, "job=clearsessions") == [skipped.pk]
    assert listed(admin_client, "job=unheard_of") == []
    assert listed(admin_client, "job=%00") == []
    assert listed(admin_client, "status=succeeded") == [ran.pk]
    assert listed(admin_client, "status=lost") == []
    assert listed(admin_client, "outcome=acquired") == [ran.pk]
    assert listed(admin_client, "outcome=skipped") == [skipped.pk]
    assert listed(admin_client, "skip_reason=locked") == [skipped.pk]
    assert listed(admin_client, "skip_reason=already_ran") == []
    assert listed(admin_client, "trigger=function") == [skipped.pk]
    assert listed(admin_client, "trigger=function&job=nightly_billing") == []


@pytest.mark.parametrize(
    "query", ["status=nonsense", "outcome=nonsense", "p=abc", "p=0", "p=-5", "p=99999999999", "o=3.-1"]
)
def test_nonsense_in_the_address_is_passed_over(admin_client: Client, query: str) -> None:
    runs = [make_run().pk, make_run().pk]
    assert listed(admin_client, query) == runs[::-1]


@pytest.mark.parametrize("query", ["output__contains=x", "host=web-1", "held_by__job=x", "job__regex=x"])
def test_questions_that_no_index_answers_are_refused(admin_client: Client, query: str) -> None:
    assert admin_client.get(f"{LIST}?{query}").status_code == 400


@pytest.mark.parametrize("query", ["started_at__month=5", "started_at__day=5", "started_at__year=x"])
def test_half_a_date_is_refused(admin_client: Client, query: str) -> None:
    assert admin_client.get(f"{LIST}?{query}").headers["location"].endswith("?e=1")


def test_job_filter_lists_a_hundred_jobs_and_the_chosen_one(admin_client: Client) -> None:
    JobRun.objects.bulk_create(
        JobRun(job=f"bill:{number:03}", outcome="acquired", status="succeeded", pid=1, started_at=NOW)
        for number in range(101)
    )
    page = get(admin_client, LIST)
    assert "?job=bill%3A099" in page
    assert "?job=bill%3A100" not in page
    assert "?job=bill%3A100" in get(admin_client, f"{LIST}?job=bill:100")


def test_search_finds_jobs_by_part_of_their_name_and_a_run_by_its_number(admin_client: Client) -> None:
    first = make_run(job="Nightly_Billing")
    second = make_run(job="clearsessions")
    third = make_run(job=f"bill:{first.pk}")
    assert listed(admin_client, "q=nightly") == [first.pk]
    assert listed(admin_client, "q=bill") == [third.pk, first.pk]
    assert listed(admin_client, "q=+clear+") == [second.pk]
    assert listed(admin_client, f"q={second.pk}") == [second.pk]
    assert listed(admin_client, f"q=%23{first.pk}") == [first.pk]
    assert listed(admin_client, f"q=:{first.pk}") == [third.pk]
    assert listed(admin_client, "q=%25") == []
    assert listed(admin_client, "q=+") == [third.pk, second.pk, first.pk]
    assert listed(admin_client, "q=9999999999999999999") == []
    assert listed(admin_client, "q=99999999999999999999999") == []


def test_dates_go_from_years_to_months_to_days(admin_client: Client) -> None:
    def at(*moment: int) -> JobRun:
        started_at = datetime(*moment, tzinfo=timezone.utc)  # type: ignore[misc, arg-type]
        return make_run(started_at=started_at, finished_at=started_at)

    old, new_year, january, february = at(2024, 12, 31, 23), at(2025, 1, 1), at(2025, 1, 15), at(2025, 2, 1, 2)
    page = get(admin_client, LIST)
    assert "?started_at__year=2024" in page
    assert "?started_at__year=2025" in page

    assert listed(admin_client, "started_at__year=2024") == [old.pk]
    page = get(admin_client, f"{LIST}?started_at__year=2025")
    assert re.findall(r"started_at__month=(\d+)&amp;started_at__year=2025", page) == ["1", "2"]

    query = "started_at__year=2025&started_at__month=1"
    assert listed(admin_client, query) == [january.pk, new_year.pk]
    days = re.findall(r"started_at__day=(\d+)&amp;", get(admin_client, f"{LIST}?{query}"))
    assert days == [str(day) for day in range(1, 32)]

    assert listed(admin_client, f"{query}&started_at__day=15") == [january.pk]
    assert listed(admin_client, f"{query}&started_at__day=15&status=failed") == []
    assert listed(admin_client, "started_at__year=2025&started_at__month=2") == [february.pk]


def test_dates_of_an_empty_history(admin_client: Client) -> None:
    assert listed(admin_client) == []
    assert Calendar(None, None, None, None).datetimes("started_at", "year") == []


def test_calendar_begins_and_ends_with_the_history() -> None:
    first = datetime(2025, 11, 20, tzinfo=timezone.utc)
    last = datetime(2026, 2, 3, tzinfo=timezone.utc)
    assert [day.year for day in Calendar(first, last, None, None).datetimes("started_at", "year")] == [2025, 2026]
    assert [day.month for day in Calendar(first, last, "2025", None).datetimes("started_at", "month")] == [11, 12]
    assert [day.day for day in Calendar(first, last, "2026", "2").datetimes("started_at", "day")] == [1, 2, 3]
    assert [day.day for day in Calendar(first, last, "2025", "11").datetimes("started_at", "day")] == [*range(20, 31)]
    assert Calendar(first, last, "2027", None).datetimes("started_at", "month") == []


# Pages


def bulk(number: int, **values: Any) -> None:
    row = {"job": "nightly_billing", "outcome": "acquired", "status": "succeeded", "host": "web-1", "pid": 1}
    JobRun.objects.bulk_create(JobRun(**{**row, "started_at": NOW, **values}) for _ in range(number))


def test_pages_look_ten_ahead(admin_client: Client) -> None:
    bulk(560)
    newest = JobRun.objects.order_by("-pk").values_list("pk", flat=True)
    assert "more than 550 job runs" in get(admin_client, LIST)
    page = get(admin_client, f"{LIST}?p=2")
    assert "560 job runs" in page
    assert "more than" not in page
    assert listed(admin_client, "p=2") == list(newest[50:100])
    assert listed(admin_client, "p=12") == list(newest[550:])
    assert admin_client.get(f"{LIST}?p=13").headers["location"] == f"{LIST}?e=1"


def test_a_few_rows_are_counted(admin_client: Client) -> None:
    make_run()
    assert re.search(r"\s1 job run\s", get(admin_client, LIST))
    bulk(59)
    page = get(admin_client, LIST)
    assert "60 job runs" in page
    assert "?all=" in page
    assert len(listed(admin_client, "all=")) == 60


def test_pages_end_somewhere_and_say_so(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_list, "MOST_PAGES", 2)
    bulk(101)
    page = get(admin_client, LIST)
    assert "more than 100 job runs" in page
    assert "There are more attempts." in page


def test_a_filter_without_an_index_looks_through_the_newest_and_says_so(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_list, "WINDOW", 10)
    early = make_run(trigger="function", started_at=datetime(2024, 1, 1, tzinfo=timezone.utc))
    bulk(10, trigger="command_line")
    assert listed(admin_client, "trigger=function") == []
    assert "looked through the newest 10 attempts" in get(admin_client, f"{LIST}?trigger=function")
    assert listed(admin_client, "trigger=function&started_at__year=2024") == [early.pk]
    for query in ("", "?status=succeeded", "?trigger=function&started_at__year=2024"):
        assert "looked through" not in get(admin_client, LIST + query)


# What the database is asked

QUERIES = [
    "",
    "p=3",
    "all=",
    "job=job_3",
    "job=weekly",
    "status=failed",
    "status=lost",
    "status=running",
    "outcome=acquired",
    "outcome=skipped",
    "skip_reason=locked",
    "trigger=function",
    "job=job_3&status=succeeded",
    "q=job_3",
    "q=weekly",
    "q=EKL",
    "q=job_1",
    "job=job_3&status=failed",
    "q=17",
    "q=unheard_of",
    "held_by=100",
    "started_at__year=2025",
    "started_at__year=2025&started_at__month=6",
    "started_at__year=2025&started_at__month=6&started_at__day=3",
    "started_at__year=2025&started_at__month=6&started_at__day=3&trigger=function",
]

# Twenty jobs each minute or so through 2025, of which one in a thousand attempts failed; and one that ended in January.
FILL = """
INSERT INTO django_singlecron_jobrun
    (id, job, key, outcome, skip_reason, status, held_by_id, host, pid, trigger, started_at, finished_at, output)
SELECT n, CASE WHEN n % 200 = 0 AND n < 2000 THEN 'weekly' ELSE 'job_' || n % 20 END, n % 20,
       CASE WHEN n % 3 = 0 THEN 'acquired' ELSE 'skipped' END,
       CASE WHEN n % 3 = 0 THEN '' ELSE 'locked' END,
       CASE WHEN n % 3 <> 0 THEN 'skipped' WHEN n % 999 = 0 THEN 'failed' ELSE 'succeeded' END,
       CASE WHEN n % 3 <> 0 THEN n - n % 3 END,
       'web-' || n % 3, n, 'command_line',
       timestamptz '2025-01-01' + n * interval '365 days' / %s, timestamptz '2025-01-01' + n * interval '365 days' / %s,
       repeat('x', 200)
FROM generate_series(1, %s) AS n
"""
ROWS = 20_000


@pytest.fixture
def long_history() -> None:
    with connection.cursor() as cursor:
        cursor.execute(FILL.replace("n % ", "n %% "), [ROWS] * 3)
        cursor.execute("ANALYZE django_singlecron_jobrun")


@pytest.fixture
def small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window that is to these rows as the real one is to millions."""
    monkeypatch.setattr(admin_list, "WINDOW", 1_000)


@pytest.fixture
def asked(admin_client: Client) -> Callable[[str], list[str]]:
    """What a page asks of the history."""

    def statements(url: str) -> list[str]:
        with CaptureQueriesContext(
            connection,
        ) as queries:
            get(admin_client, url)
        found = [query["sql"] for query in queries if "django_singlecron_jobrun" in query["sql"]]
        assert found
        return found

    return statements


@pytest.mark.parametrize("query", QUERIES)
def test_the_list_counts_nothing_and_leaves_large_columns_unread(asked: Callable[[str], list[str]], query: str) -> None:
    bulk(120)
    statements = asked(f"{LIST}?{query}")
    for sql in statements:
        assert "COUNT(" not in sql.upper()
        assert "DISTINCT" not in sql.upper()
        assert " JOIN " not in sql.upper()
        assert not any(f'"{column}"' in sql for column in LARGE_COLUMNS)
    assert len([sql for sql in statements if '"host"' in sql]) <= 1 + query.startswith("status=")


def test_the_rows_of_a_page_are_read_by_one_query(asked: Callable[[str], list[str]]) -> None:
    first = make_run()
    for _ in range(5):
        make_run(status="skipped", held_by=first)
    assert len([sql for sql in asked(LIST) if '"host"' in sql]) == 1


@pytest.mark.usefixtures("long_history", "small_window")
def test_every_page_touches_few_rows_of_many(asked: Callable[[str], list[str]]) -> None:
    runs = [f"{LIST}{pk}/change/" for pk in (3, 9_999, ROWS)]
    for url in [*(f"{LIST}?{query}" for query in QUERIES), *runs]:
        for sql in asked(url):
            assert_touches_few_rows(sql)


def assert_touches_few_rows(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {sql}")
        plan = cursor.fetchone()[0]
    plan = json.loads(plan) if isinstance(plan, str) else plan
    scans = [node for node in nodes(plan[0]["Plan"]) if node.get("Relation Name") == "django_singlecron_jobrun"]
    assert not [node for node in scans if node["Node Type"] == "Seq Scan"], sql
    touched = sum(
        node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) for node in scans
    )
    assert touched <= 2_000, sql


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


# Without PostgreSQL

ON_SQLITE = """
import django
from django.conf import settings

settings.configure(
    SECRET_KEY="x", USE_TZ=True, ROOT_URLCONF="testproject.urls", STATIC_URL="/static/", SINGLECRON={"LOCKING": False},
    ALLOWED_HOSTS=["testserver"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    INSTALLED_APPS=["django.contrib." + name for name in ("admin", "auth", "contenttypes", "sessions", "messages")]
    + ["django.contrib.staticfiles", "django_singlecron"],
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ],
    TEMPLATES=[{
        "BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True,
        "OPTIONS": {"context_processors": [
            "django.template.context_processors.request",
            "django.contrib.auth.context_processors.auth",
            "django.contrib.messages.context_processors.messages",
        ]},
    }],
)
django.setup()
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client
from django_singlecron import singleton_task
from django_singlecron.models import JobRun

call_command("migrate", verbosity=0)

@singleton_task("nightly_billing")
def job():
    page = client.get("/admin/django_singlecron/jobrun/").content.decode()
    assert 'singlecron-running">running<' in page

client = Client()
client.force_login(User.objects.create_superuser("root"))
job()
for query in ("", "?q=night", "?job=nightly_billing", "?status=lost", "?status=running", "?started_at__year=2026"):
    assert client.get("/admin/django_singlecron/jobrun/" + query).status_code == 200
page = client.get(f"/admin/django_singlecron/jobrun/{JobRun.objects.get().pk}/change/").content.decode()
assert "no lock" in page
print("shown")
"""


def test_the_history_of_a_project_on_sqlite_is_shown() -> None:
    command = [sys.executable, "-c", ON_SQLITE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "shown\n", done.stderr
