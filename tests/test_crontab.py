"""django-crontab catches what a job raises and exits with 0; a singleton task that fails there exits as it should."""

import atexit
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.core.management.base import CommandError

from django_singlecron import crontab, singleton_task
from django_singlecron.models import JobRun
from django_singlecron.testing import hold_lock
from tests.commandline.driver import Finished, run_process

# Keeps the file that it is given, and prints it with -l, as crontab does.
CRONTAB = """#!/bin/sh
if [ "$1" = -l ]; then cat "$0.kept" 2>/dev/null; else cat "$1" > "$0.kept"; fi
"""


@pytest.fixture
def own_crontab(tmp_path: Path) -> Path:
    executable = tmp_path / "crontab"
    executable.write_text(CRONTAB)
    executable.chmod(0o700)
    return executable


def run_line(command: str) -> Finished:
    return run_process(shell=command)


def test_jobs_run_by_the_lines_that_django_crontab_writes(transactional_db: None, own_crontab: Path) -> None:
    # django-crontab leaves the pipe from crontab open.
    variables = {"TEST_CRONTAB": str(own_crontab), "PYTHONWARNINGS": "error,ignore::ResourceWarning"}
    added = run_process("crontab", "add", **variables)
    assert (added.code, added.err) == (0, "")
    assert "tests.commandline.cron.fail" in run_process("crontab", "show", **variables).out
    lines = Path(f"{own_crontab}.kept").read_text().splitlines()
    commands = [line.removeprefix("* * * * * ").partition(" #")[0] for line in lines]
    with ThreadPoolExecutor(2) as replicas:
        succeed, fail, leave_0, leave_3, decorated, wrapped = replicas.map(run_line, commands)
    assert (succeed.code, succeed.out, succeed.err) == (0, "done\n", "")
    assert (fail.code, fail.out) == (1, "the job's own exit handler\n")
    assert "RuntimeError: out of ink" in fail.err
    assert [finished.code for finished in (leave_0, leave_3, decorated, wrapped)] == [0, 3, 5, 5]
    assert set(JobRun.objects.values_list("job", "status", "command")) == {
        ("cron.succeed", "succeeded", "manage.py crontab"),
        ("cron.fail", "failed", "manage.py crontab"),
        ("cron.leave_with:0", "succeeded", "manage.py crontab"),
        ("cron.leave_with:3", "failed", "manage.py crontab"),
        ("probe_decorated", "failed", "manage.py crontab"),
        ("probe", "failed", "manage.py crontab"),
    }
    with hold_lock("cron.fail"):
        skipped = run_line(commands[1])
    assert (skipped.code, skipped.out, skipped.err) == (0, "", "")


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What is registered for this process's exit, without its being called then."""
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(atexit, "register", lambda *call: calls.append(call))
    return calls


class Bare(CommandError):
    def __init__(self) -> None: ...


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError(), 1),
        (KeyboardInterrupt(), 1),
        (CommandError("x"), 1),
        (CommandError("x", returncode=5), 5),
        (Bare(), 1),
        (SystemExit(3), 3),
        (SystemExit("a text"), 1),
        (SystemExit(True), 1),
        (SystemExit(-1), -1),
    ],
)
def test_failures_under_django_crontab(
    monkeypatch: pytest.MonkeyPatch, registered: list[tuple[Any, ...]], error: BaseException, code: int
) -> None:
    monkeypatch.setattr(sys, "argv", ["manage.py", "crontab", "run", "hash", "--settings=x"])
    crontab.keep_exit_code(error)
    assert registered == [(crontab._exit, code)]


@pytest.mark.parametrize("error", [SystemExit(), SystemExit(None), SystemExit(0), SystemExit(False)])
def test_exits_of_success_under_django_crontab(
    monkeypatch: pytest.MonkeyPatch, registered: list[tuple[Any, ...]], error: BaseException
) -> None:
    monkeypatch.setattr(sys, "argv", ["manage.py", "crontab", "run", "hash"])
    crontab.keep_exit_code(error)
    assert registered == []


@pytest.mark.parametrize(
    "argv",
    [[], ["manage.py"], ["manage.py", "crontab", "add"], ["manage.py", "bill", "crontab", "run"], ["crontab", "run"]],
)
def test_other_processes_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, registered: list[tuple[Any, ...]], argv: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    crontab.keep_exit_code(ValueError())
    assert registered == []


def test_a_task_called_with_wrong_arguments_is_a_failure_too(
    db: None, monkeypatch: pytest.MonkeyPatch, registered: list[tuple[Any, ...]]
) -> None:
    monkeypatch.setattr(sys, "argv", ["manage.py", "crontab", "run", "hash"])
    with pytest.raises(TypeError):
        singleton_task("job")(lambda: None)(1)
    assert registered == [(crontab._exit, 1)]


def test_the_exit_comes_after_all_other_exit_handlers_and_output(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[object] = []
    monkeypatch.setattr(atexit, "_run_exitfuncs", lambda: happened.append("exit handlers"))
    monkeypatch.setattr(sys.stdout, "flush", lambda: happened.append("flush"))
    monkeypatch.setattr("logging.shutdown", lambda: happened.append("logging"))
    monkeypatch.setattr(os, "_exit", happened.append)
    crontab._exit(5)
    assert happened == ["exit handlers", "logging", "flush", 5]
    happened.clear()

    def broken_pipe() -> None:
        raise BrokenPipeError

    monkeypatch.setattr(sys.stdout, "flush", broken_pipe)
    with pytest.raises(BrokenPipeError):
        crontab._exit(-1)
    assert happened == ["exit handlers", "logging", 255]
