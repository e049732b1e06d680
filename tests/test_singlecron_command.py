"""`manage.py singlecron run`: the wrapped command is as it would be without, but for its lock and its record."""

import io
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.core import management
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connection, transaction

from django_singlecron import registry, singleton_task
from django_singlecron.models import JobRun
from django_singlecron.testing import hold_lock
from tests.commandline.driver import Manage, add_commands_fixture, manage_fixture, run_process, start_process
from tests.commandline.management.commands import probe

__all__ = ["add_commands_fixture", "manage_fixture"]

AddCommands = Callable[..., None]
SKIPPED = "Skipped: its lock is held, by a run that left no record.\n"


def latest() -> JobRun:
    return JobRun.objects.latest()


# On the command line


@pytest.mark.parametrize(
    "words",
    [
        ("tell",),
        ("tell", "a", "b"),
        ("tell", "run", "clearsessions"),
        ("tell", "--name", "x", "--skip-exit-code", "9"),
        ("--name=x", "--skip-exit-code=9", "tell"),
        ("tell", "--skip-exit=9"),
        ("tell", "--", "--name", "-v", "--"),
        ("--", "tell"),
        ("tell", "-v0"),
        ("tell", "--verbosity=3", "--no-color", "--traceback", "--settings", "testproject.settings"),
        ("tell", "--unknown"),
        ("dance",),
        ("tell", "--skip-exit-code", "x"),
        (),
        ("--help",),
        ("-h", "tell"),
        ("tell", "--help"),
        ("--version",),
        ("exit", "0"),
        ("exit", "4"),
        ("fail", "5"),
        ("fail", "0"),
        ("return", "said"),
        ("return", ""),
    ],
)
def test_the_wrapped_command_is_as_without(manage: Manage, words: tuple[str, ...]) -> None:
    assert manage("singlecron", "run", "probe", *words) == manage("probe", *words)


def test_an_attempt_that_cannot_be_parsed_is_not_recorded(manage: Manage) -> None:
    assert manage("singlecron", "run", "probe", "dance").code == 2
    assert manage("singlecron", "run", "probe", "--help").code == 0
    assert not JobRun.objects.exists()


def test_a_run_is_recorded(manage: Manage) -> None:
    manage("singlecron", "run", "probe", "tell", "a")
    run = latest()
    assert (run.job, run.status, run.trigger) == ("probe", "succeeded", "command_line")
    assert run.command == "manage.py singlecron run"
    assert run.arguments == "action='tell', words=['a'], name=None, skip_exit_code=None"
    assert run.output.startswith("to stderr\n")
    manage("singlecron", "run", "probe", "exit", "4")
    assert (latest().status, latest().error_class) == ("failed", "SystemExit")


def test_an_error_comes_out(manage: Manage) -> None:
    with pytest.raises(ZeroDivisionError):
        manage("singlecron", "run", "probe", "raise")
    for words in (("run", "probe", "fail", "5", "--traceback"), ("run", "--traceback", "probe", "fail", "5")):
        with pytest.raises(CommandError, match="failed as told"):
            manage("singlecron", *words)


@pytest.mark.parametrize(
    ("before", "job"),
    [
        (["run"], "probe"),
        (["run", "--"], "probe"),
        (["run", "--name", "x"], "x"),
        (["run", "--name=x", "--"], "x"),
        (["run", "--name", "run"], "run"),
        (["run", "--name", "probe:{name}"], "probe:None"),
        (["run", "--skip-exit-code", "7", "--name", "O'Brien */ -- 🐘"], "O'Brien */ -- 🐘"),
        (["run", "--name", "{{literal}}"], "{literal}"),
    ],
)
def test_options_of_run_stand_before_the_command(manage: Manage, before: list[str], job: str) -> None:
    assert json.loads(manage("singlecron", *before, "probe", "tell").out)["name"] is None
    assert latest().job == job


@pytest.mark.parametrize(
    "before",
    [
        ["run", "-v", "0", "--no-color"],
        ["run", "-v0", "--no-color", "--"],
        ["run", "--verbosity=0", "--no-color", "--name", "x"],
        ["-v0", "--no-color", "run"],
        ["-v", "0", "run", "--no-color"],
        ["--verbosity", "0", "--settings", "testproject.settings", "--no-color", "run"],
        ["run", "--no-color", "--pythonpath=.", "-v0"],
    ],
)
def test_options_of_every_command_may_stand_before_it_too(manage: Manage, before: list[str]) -> None:
    told = json.loads(manage("singlecron", *before, "probe", "tell").out)
    assert (told["verbosity"], told["no_color"]) == (0, True)
    assert json.loads(manage("singlecron", *before, "probe", "tell", "-v2").out)["verbosity"] == 2


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ([], 2, "the following arguments are required: SUBCOMMAND"),
        (["walk"], 2, "invalid choice: 'walk'"),
        (["run"], 2, "the following arguments are required: COMMAND\n"),
        (["run", "--"], 2, "the following arguments are required: COMMAND\n"),
        (["run", "--name", "probe"], 2, "the following arguments are required: COMMAND\n"),
        (["run", "--nam", "x", "probe", "tell"], 2, "unrecognized arguments: --nam"),
        (["run", "--skip-exit", "1", "probe", "tell"], 2, "unrecognized arguments: --skip-exit"),
        (["run", "nope"], 1, "Unknown command: 'nope'\nType 'manage.py help' for usage.\n"),
        (["run", "prob"], 1, "Unknown command: 'prob'. Did you mean probe?"),
        (["run", "--", "--name"], 2, "expected one argument"),
        (["run", "", "tell"], 1, "Unknown command: ''"),
        (["run", "--name", "", "probe", "tell"], 2, "CommandError: A job's name is empty."),
        (["run", "--name", "{", "probe", "tell"], 2, "CommandError: The job name '{' is malformed"),
        (["run", "--name", "{0}", "probe", "tell"], 2, "CommandError: The job name '{0}' holds the placeholder"),
        (["run", "--name", "{missing}", "probe", "tell"], 1, "needs {missing}, which this call does not give"),
        (["run", "--name", "x" * 201, "probe", "tell"], 2, "201 characters long"),
        (["run", "--name", "x", "probe_decorated", "tell"], 2, "which names itself: leave --name out"),
        *(
            (["run", "--skip-exit-code", code, "probe", "tell"], 2, f"{code!r} is no exit code: 0 to 255.")
            for code in ("", "x", "256", "1.0", "٣", "0x1", "9" * 30)
        ),
        (["run", "--skip-exit-code=-1", "probe", "tell"], 2, "'-1' is no exit code"),
    ],
)
def test_what_is_refused(manage: Manage, words: list[str], code: int, says: str) -> None:
    finished = manage("singlecron", *words)
    assert (finished.code, finished.out) == (code, "")
    assert says in finished.err
    assert "Traceback" not in finished.err
    assert not JobRun.objects.exists()


def test_help_is_that_of_run_before_the_command(manage: Manage) -> None:
    assert "--skip-exit-code N" in manage("singlecron", "run", "--help").out
    assert "--skip-exit-code N" in manage("singlecron", "run", "-h", "probe").out
    assert "Runs management commands as jobs" in manage("singlecron", "--help").out


def test_a_skip_is_said_on_stderr_and_gives_the_exit_code_asked_for(manage: Manage) -> None:
    with hold_lock("probe"):
        for words, code, said in (
            (["run", "probe", "tell"], 0, SKIPPED),
            (["run", "--skip-exit-code", "75", "probe", "tell"], 75, SKIPPED),
            (["run", "--skip-exit-code=75", "probe", "tell", "--skip-exit-code=3", "-v0"], 75, ""),
            (["run", "-v0", "probe", "tell"], 0, ""),
        ):
            finished = manage("singlecron", *words)
            assert (finished.code, finished.out, finished.err) == (code, "", said)
            assert latest().status == JobRun.Status.SKIPPED
        assert manage("singlecron", "run", "--name", "other", "probe", "exit", "0").code == 0
    assert manage("singlecron", "run", "--skip-exit-code", "75", "probe", "tell").code == 0


def test_a_decorated_command_keeps_its_name_and_options(manage: Manage) -> None:
    assert manage("singlecron", "run", "probe_decorated", "return", "x").out == "x\n"
    assert latest().job == "probe_decorated"
    with hold_lock("probe_decorated"):
        finished = manage("singlecron", "run", "--skip-exit-code", "3", "probe_decorated", "return", "x")
    assert (finished.code, finished.out, finished.err) == (3, "", SKIPPED)
    assert JobRun.objects.count() == 2


class OwnExecute(BaseCommand):
    def execute(self, *args: Any, **options: Any) -> str:
        return f"<{super().execute(*args, **options)}>"

    def handle(self, *args: Any, **options: Any) -> str:
        return "handled"


class BesideHandle(BaseCommand):
    def execute(self, *args: Any, **options: Any) -> None:
        self.stdout.write("executed")


class OwnErrors(BaseCommand):
    def run_from_argv(self, argv: list[str]) -> None:
        with pytest.raises(ZeroDivisionError):
            super().run_from_argv(argv)

    def handle(self, *args: Any, **options: Any) -> None:
        raise ZeroDivisionError


def test_commands_that_override_execute(manage: Manage, add_commands: AddCommands) -> None:
    add_commands(own=OwnExecute(), errors=OwnErrors())
    assert call_command("singlecron", "run", "own") == "<handled>"
    assert latest().job == "own"
    assert manage("singlecron", "run", "errors").code == 0
    assert latest().status == JobRun.Status.FAILED
    add_commands(beside=BesideHandle())
    finished = manage("singlecron", "run", "beside")
    assert finished.code == 1
    assert "beside did its work without calling handle(), so under no lock." in finished.err


def test_the_wrapper_wrapped_in_itself_is_refused(manage: Manage) -> None:
    finished = manage("singlecron", "run", "singlecron", "run", "probe", "return", "x")
    assert (finished.code, finished.out) == (1, "")
    assert 'it was called inside the job "singlecron"' in finished.err
    assert JobRun.objects.get().status == JobRun.Status.FAILED


def test_the_wrapped_command_s_class_is_left_alone(manage: Manage) -> None:
    before = vars(probe.Command).copy()
    manage("singlecron", "run", "probe", "return", "x")
    assert vars(probe.Command) == before
    assert not [task for task in registry.tasks() if task.func is probe.Command.handle and task.name == "probe"]


# Through call_command


def test_call_command(db: None, add_commands: AddCommands) -> None:
    for arguments in (("return", "said"), ("return", ""), ("tell", "--name", "x"), ("--name=x", "tell")):
        given = []
        for prefix in ((), ("singlecron", "run")):
            out, err = io.StringIO(), io.StringIO()
            returned = call_command(*prefix, "probe", *arguments, stdout=out, stderr=err)
            given.append((returned, out.getvalue(), err.getvalue()))
        assert given[0] == given[1]
        assert (latest().job, latest().trigger) == ("probe", "function")


@pytest.mark.parametrize(
    ("words", "options", "expected"),
    [
        (["run", "probe", "tell"], {}, (1, False)),
        (["run", "probe", "tell"], {"verbosity": 0, "no_color": True}, (0, True)),
        (["-v0", "--no-color", "run", "probe", "tell"], {}, (0, True)),
        (["run", "probe", "tell", "-v2", "--no-color"], {}, (2, True)),
    ],
)
def test_call_command_passes_on_the_options_of_every_command(
    db: None, add_commands: AddCommands, words: list[str], options: dict[str, Any], expected: tuple[int, bool]
) -> None:
    out = io.StringIO()
    call_command("singlecron", *words, stdout=out, stderr=io.StringIO(), **options)
    told = json.loads(out.getvalue())
    assert (told["verbosity"], told["no_color"]) == expected


def test_call_command_with_options_of_run(db: None, add_commands: AddCommands) -> None:
    call_command("singlecron", "run", "probe", "return", "x", name="by-keyword")
    assert latest().job == "by-keyword"
    err = io.StringIO()
    with hold_lock("probe"), pytest.raises(SystemExit) as raised:
        call_command("singlecron", "run", "probe", "return", "x", skip_exit_code=75, stderr=err)
    assert (raised.value.code, err.getvalue()) == (75, SKIPPED)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "nope"], "Unknown command: 'nope'"),
        (["run"], "the following arguments are required: COMMAND"),
        ([], "the following arguments are required: SUBCOMMAND"),
        (["run", "probe", "dance"], "invalid choice: 'dance'"),
        (["run", "--name", "x", "probe_decorated", "tell"], "leave --name out"),
        (["run", "--skip-exit-code", "x", "probe", "tell"], "is no exit code"),
    ],
)
def test_call_command_refuses(db: None, add_commands: AddCommands, words: list[str], says: str) -> None:
    with pytest.raises(CommandError, match=says):
        call_command("singlecron", *words)
    assert not JobRun.objects.exists()


def test_call_command_inside_a_transaction_says_what_to_do(transactional_db: None, add_commands: AddCommands) -> None:
    with transaction.atomic(), pytest.raises(CommandError, match=r"Call it outside transaction\.atomic\(\)"):
        call_command("singlecron", "run", "probe", "tell")
    assert not JobRun.objects.exists()


def test_call_command_loads_a_command_by_its_app(db: None) -> None:
    call_command("singlecron", "run", "clearsessions")
    assert (latest().job, latest().status) == ("clearsessions", "succeeded")


def test_a_job_may_be_named_by_the_wrapped_commands_options(db: None, add_commands: AddCommands) -> None:
    call_command("singlecron", "run", "--name", "probe:{name}", "probe", "return", "x", "--name", "7")
    assert latest().job == "probe:7"


def test_a_wrapped_coroutine_function_is_awaited(db: None, add_commands: AddCommands) -> None:
    class Command(BaseCommand):
        async def handle(self, *args: Any, **options: Any) -> str:  # type: ignore[override]
            return "awaited"

    add_commands(coroutine=Command())
    assert call_command("singlecron", "run", "coroutine", stdout=io.StringIO()) == "awaited"


def test_a_task_that_calls_the_wrapper_is_told_what_to_do(transactional_db: None, add_commands: AddCommands) -> None:
    task = singleton_task("outer")(lambda: call_command("singlecron", "run", "probe", "return", "x"))
    with pytest.raises(CommandError, match="inside the job"):
        task()


# In a process of its own


def test_two_processes(transactional_db: None) -> None:
    with start_process("singlecron", "run", "probe", "echo") as holder:
        deadline = time.monotonic() + 20
        while not _lock_is_held():
            assert holder.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        run = JobRun.objects.running().get()
        loser = run_process("singlecron", "run", "--skip-exit-code", "75", "probe", "echo")
        out, err = holder.communicate("ünd\n", timeout=20)
    since = run.started_at.isoformat(sep=" ", timespec="seconds")
    assert (loser.code, loser.out) == (75, "")
    assert loser.err == f"Skipped: run {run.pk} on {run.host} (pid {holder.pid}) holds its lock since {since}.\n"
    assert (holder.returncode, out, err) == (0, "ünd\n", "")
    assert [(run.status, run.held_by_id) for run in JobRun.objects.order_by("id")] == [
        ("succeeded", None),
        ("skipped", run.pk),
    ]


def _lock_is_held() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        return bool(cursor.fetchone()[0])


def test_a_process_that_fails_prints_what_the_undecorated_prints(transactional_db: None) -> None:
    wrapped = run_process("singlecron", "run", "probe", "fail", "5")
    assert (wrapped.code, wrapped.out, wrapped.err) == (5, "", "CommandError: failed as told\n")
    assert latest().status == JobRun.Status.FAILED


def test_what_is_no_base_command_is_refused(
    manage: Manage, add_commands: AddCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Adapter:
        def run_from_argv(self, argv: list[str]) -> None: ...

    load = management.load_command_class
    adapter = Adapter()
    monkeypatch.setattr(
        management, "load_command_class", lambda app, name: adapter if name == "clicky" else load(app, name)
    )
    add_commands(clicky="shop")
    finished = manage("singlecron", "run", "clicky")
    assert (finished.code, finished.out) == (1, "")
    assert finished.err.startswith("CommandError: clicky is no BaseCommand")
    assert JobRun.objects.count() == 0


@pytest.mark.parametrize("option", [["--verbosity", "0"], ["-v0"], ["--no-color", "-v", "0"]])
def test_call_command_takes_the_options_of_every_command_after_run_too(
    db: None, add_commands: AddCommands, option: list[str]
) -> None:
    stderr = io.StringIO()
    with hold_lock("probe"):
        call_command("singlecron", "run", *option, "probe", "tell", stderr=stderr)
    assert stderr.getvalue() == ""
    assert latest().status == "skipped"
