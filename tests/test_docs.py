"""README, changelog and docs: every snippet is tried as a reader would, and what they list is what exists."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from pytest_django.plugin import DjangoDbBlocker

import django_singlecron
from django_singlecron import checks, signals
from django_singlecron.conf import Settings
from django_singlecron.context import Run, RunResult
from django_singlecron.doctor.examine import EXAMINATIONS
from django_singlecron.models import JobRun, JobRunQuerySet
from django_singlecron.options import TaskOptions
from tests.documentation.cron import check_schedule, commands_of
from tests.documentation.project import Project
from tests.documentation.snippets import DOCUMENTS, README, ROOT, Snippet, anchors, links, read_snippets
from tests.support.replicas import database_url
from tests.support_doctor import KEEPALIVES

REFERENCE = (ROOT / "docs" / "reference.md").read_text()
CHECKS = ROOT / "docs" / "checks.md"

# A document whose snippets are tests themselves, and the module that runs them.
TESTING, RUNS_TESTING = ROOT / "docs" / "testing.md", ROOT / "tests" / "test_testing.py"

ERRORS = [
    name
    for name in django_singlecron.__all__
    if isinstance(kind := getattr(django_singlecron, name), type) and issubclass(kind, Exception)
]

DEMO = re.compile(r"<!-- demo: begin -->\n```text\n(.*?)\n```\n<!-- demo: end -->", re.DOTALL)


@pytest.fixture
def database(django_db_blocker: DjangoDbBlocker) -> Iterator[dict[str, Any]]:
    """Settings of an empty database, made for one test."""
    name = f"singlecron_docs_{os.getpid()}"
    with django_db_blocker.unblock():
        with connection._nodb_cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name}")
        keys = ("ENGINE", "USER", "PASSWORD", "HOST", "PORT")
        # For the doctor, where the tests reach their server by TCP.
        yield {key: connection.settings_dict[key] for key in keys} | {"NAME": name, "OPTIONS": KEEPALIVES}
        with connection._nodb_cursor() as cursor:
            cursor.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("document", [path for path in DOCUMENTS if path != TESTING], ids=lambda path: path.name)
def test_every_snippet_works(document: Path, database: dict[str, Any], tmp_path: Path) -> None:
    project = Project(tmp_path, database)
    try:
        project.create(installed=document != README)
        for snippet in read_snippets(document):
            if not is_demo_output(snippet):
                project.try_out(snippet)
        project.finish()
    finally:
        project.destroy()


def test_the_snippets_that_are_tests_are_run_as_such() -> None:
    assert TESTING.name in RUNS_TESTING.read_text()


def is_demo_output(snippet: Snippet) -> bool:
    match = DEMO.search(snippet.document.read_text())
    return snippet.language == "text" and match is not None and match[1] == snippet.text


def test_a_snippet_that_nothing_tries_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"README\.md:1 \(no language\): nothing tries"):
        Project(tmp_path, {}).try_out(Snippet(README, 1, "", ""))


def test_a_snippet_that_fails_is_an_error_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"(?s)README\.md:1 \(console\): .*exited with 3"):
        Project(tmp_path, {}).try_out(Snippet(README, 1, "console", "$ exit 3"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("within target", "missed"),
        ("missed.", "reached."),
        ("verdict", "opinion"),
        ("load average", "temperature"),
        ("Python", "Snake"),
    ],
)
def test_a_table_of_the_benchmark_that_contradicts_itself_is_an_error(old: str, new: str, tmp_path: Path) -> None:
    document = ROOT / "docs" / "benchmarks.md"
    [table] = [snippet.text for snippet in read_snippets(document) if snippet.language == "text"]
    changed = re.sub(r"\n.*\Z", "\n1 missed.", table).replace("  missed", "  within target")
    single = "  missed".join(changed.rsplit("  within target", 1))
    Project(tmp_path, {}).try_out(Snippet(document, 1, "text", single))
    with pytest.raises(AssertionError, match=r"benchmarks\.md:1 \(text\)"):
        Project(tmp_path, {}).try_out(Snippet(document, 1, "text", single.replace(old, new, 1)))


@pytest.mark.parametrize("line", ["60 2 * * * x", "0 24 * * * x", "0 2 * * x", "*/x 2 * * * x"])
def test_a_crontab_that_cron_refuses_is_an_error(line: str) -> None:
    with pytest.raises(AssertionError):
        list(commands_of(line))


def test_lists_ranges_and_steps_are_schedules() -> None:
    check_schedule("0,30 8-18/2 1 */3 7")


@pytest.mark.timeout(300)
def test_readme_shows_what_the_demo_prints(database: dict[str, Any]) -> None:
    shown = DEMO.search(README.read_text())
    assert shown is not None
    assert shown[1] == (ROOT / "docs" / "demo-output.txt").read_text().strip()
    printed = subprocess.run(
        [sys.executable, "-m", "testproject.demo"],
        cwd=ROOT,
        env=os.environ | {"DATABASE_URL": database_url(connection, dbname=database["NAME"])},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    ).stdout
    assert shape(shown[1]) == shape(printed)


def shape(output: str) -> Counter[str]:
    """The lines without what differs from run to run: the steps, the numbers, the host, who won and who came first."""
    lines = [line for line in output.splitlines() if not re.search(r"\([\d.]+ s\)$", line)]
    text = re.sub(r"replica-\d", "replica", "\n".join(lines))
    text = re.sub(r"on \S+ \(pid \d+\)", "on host", text)
    text = re.sub(r"since \S+ \S+\.", "since then.", text)
    text = re.sub(r"\d+\.\d+ s", "some time", text)
    text = re.sub(r"(replica +|run )\d+", r"\1number", text)
    return Counter(" ".join(line.split()) for line in text.splitlines())


@pytest.mark.parametrize("document", [*DOCUMENTS, ROOT / "CHANGELOG.md"], ids=lambda path: path.name)
def test_links_within_the_repository_lead_somewhere(document: Path) -> None:
    assert [link for link in links(document) if leads_nowhere(document, link)] == []


def leads_nowhere(document: Path, link: str) -> bool:
    if re.match(r"\w+:", link):
        return False
    path, _, anchor = link.partition("#")
    target = document.parent / path if path else document
    return not target.is_file() or bool(anchor and anchor not in anchors(target))


def test_changelog_knows_this_version() -> None:
    assert f"\n## [{django_singlecron.__version__}] - " in (ROOT / "CHANGELOG.md").read_text()


def test_each_system_check_is_explained() -> None:
    numbers = set(re.findall(r'"([EW]\d{3})"', inspect.getsource(checks)))
    assert numbers
    assert {number.lower() for number in numbers} == anchors(CHECKS) - {"system-checks"}


def test_each_examination_of_the_doctor_is_explained() -> None:
    table = (ROOT / "docs" / "doctor.md").read_text().partition("## Examinations")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([\w.]+)` \|", table, re.MULTILINE) == [each.id for each in EXAMINATIONS]


def listed() -> set[str]:
    """What the first columns of the reference's tables name."""
    rows = re.findall(r"^\| (.+?) \|", REFERENCE, re.MULTILINE)
    return {name.removesuffix("()") for row in rows for name in re.findall(r"`([\w.]+(?:\(\))?)[^`]*`", row)}


def parameters(call: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(call).parameters)


def public(kind: type) -> list[str]:
    return [name for name in vars(kind) if not name.startswith("_")]


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("options", parameters(TaskOptions)),
        ("settings", [name.upper() for name in parameters(Settings)]),
        ("exceptions", ERRORS),
        ("signals", [name for name in vars(signals) if name.startswith("run_")]),
        ("results", [*parameters(RunResult), "ran"]),
        ("runs", [*(name for name in Run.__annotations__ if name != "token_if_drawn"), "token"]),
        ("fields", [field.name for field in JobRun._meta.concrete_fields]),
        ("querysets", public(JobRunQuerySet)),
    ],
)
def test_reference_lists_everything(what: str, expected: list[str]) -> None:
    assert expected
    assert not set(expected) - listed(), what


def test_the_tests_that_show_what_a_fault_does_exist() -> None:
    suite = {path.name: path.read_text() for path in (ROOT / "tests" / "faults").glob("test_*.py")}
    defined = set(re.findall(r"^(?:class|def) (\w+)", "\n".join(suite.values()), re.MULTILINE)) | {*suite}
    named = set(re.findall(r"`([Tt]est_?\w+(?:\.py)?)`", (ROOT / "docs" / "reliability.md").read_text()))
    assert named - defined == set()
    assert len(named) > 40
