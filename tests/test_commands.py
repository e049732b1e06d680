"""Decorated management commands: as undecorated for who runs them, and with their output in the history."""

import io
import logging
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any, cast

import pytest
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, no_translations
from django.db import transaction

from django_singlecron import InvalidTask, commands, singleton_task
from django_singlecron.capture import CapturedLogging
from django_singlecron.conf import Settings
from django_singlecron.models import JobRun
from django_singlecron.testing import hold_lock
from tests.commandline.driver import Manage, add_commands_fixture, manage_fixture, run_process
from tests.commandline.management.commands import probe, probe_decorated

__all__ = ["add_commands_fixture", "manage_fixture"]


def make_command(handle: Callable[..., Any], **members: Any) -> BaseCommand:
    """A decorated command whose `handle()` is given."""
    task = singleton_task("made")(handle)
    command: BaseCommand = type("Command", (BaseCommand,), {"handle": task, **members})()
    return command


def latest() -> JobRun:
    return JobRun.objects.latest()


# As undecorated


@pytest.mark.parametrize(
    "arguments",
    [
        ("tell",),
        ("tell", "a", "--name", "x", "--skip-exit-code=3"),
        ("tell", "--verbosity", "0", "--no-color", "--traceback"),
        ("tell", "--", "--name"),
        ("return", "said"),
        ("return", "said\n"),
        ("return", ""),
    ],
)
def test_call_command_gives_the_same(db: None, arguments: tuple[str, ...]) -> None:
    given = []
    for command in (probe.Command(), probe_decorated.Command()):
        out, err = io.StringIO(), io.StringIO()
        returned = call_command(command, *arguments, stdout=out, stderr=err)
        given.append((returned, out.getvalue(), err.getvalue()))
    assert given[0] == given[1]


def test_options_by_keyword(db: None) -> None:
    out = io.StringIO()
    call_command(probe_decorated.Command(), "tell", "a", skip_exit_code=4, verbosity=3, stdout=out)
    assert '"skip_exit_code": 4, "verbosity": 3' in out.getvalue()
    assert latest().arguments == "action='tell', words=['a'], name=None, skip_exit_code=4"


@pytest.mark.parametrize("arguments", [(), ("dance",), ("tell", "--unknown"), ("tell", "--skip-exit-code", "x")])
def test_wrong_arguments_are_refused_as_without_the_lock(db: None, arguments: tuple[str, ...]) -> None:
    said = []
    for command in (probe.Command(), probe_decorated.Command()):
        with pytest.raises(CommandError) as raised:
            call_command(command, *arguments)
        said.append(str(raised.value))
    assert said[0] == said[1]
    assert not JobRun.objects.exists()


def test_help_is_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    helps = []
    for command in (probe.Command(), probe_decorated.Command()):
        command.print_help("manage.py", "probe")
        helps.append(capsys.readouterr().out)
    assert helps[0] == helps[1]
    assert "Does what its arguments say." in helps[0]


def test_an_error_comes_out_as_it_is(db: None) -> None:
    with pytest.raises(CommandError) as raised:
        call_command(probe_decorated.Command(), "fail", "5")
    assert raised.value.returncode == 5
    run = latest()
    assert (run.status, run.error_class) == ("failed", "django.core.management.base.CommandError")
    with pytest.raises(ZeroDivisionError):
        call_command(probe_decorated.Command(), "raise")
    assert "raised as told" in latest().traceback


def test_exits_come_out_as_they_are(db: None) -> None:
    for code, status in ((0, "succeeded"), (4, "failed")):
        with pytest.raises(SystemExit) as raised:
            call_command(probe_decorated.Command(), "exit", str(code))
        assert raised.value.code == code
        assert latest().status == status


def test_system_checks_are_the_command_s_own(db: None) -> None:
    checked = []
    command = make_command(lambda self, **options: None, check=lambda self, **options: checked.append(options))
    call_command(command, skip_checks=False)
    call_command(command)
    assert len(checked) == 1


def test_a_handle_may_be_called_directly(db: None) -> None:
    command = make_command(lambda self, *, days=1: f"{days} days")
    assert command.handle(days=2) == "2 days"
    with pytest.raises(TypeError, match="unexpected keyword argument 'weeks'"):
        command.handle(weeks=2)
    assert JobRun.objects.count() == 1


# What refuses a run


def test_a_refused_run_is_a_command_error(transactional_db: None, settings: Any) -> None:
    command = make_command(lambda self, **options: "ran")
    with transaction.atomic(), pytest.raises(CommandError, match=r"Call it outside transaction\.atomic\(\)"):
        call_command(command)
    settings.SINGLECRON = {"DATABASE": "nowhere"}
    with pytest.raises(CommandError, match='there is no database "nowhere" in DATABASES'):
        call_command(command)
    assert not JobRun.objects.exists()


def test_a_name_that_an_option_makes_invalid_is_a_command_error(db: None) -> None:
    command = type("Command", (probe.Command,), {"handle": singleton_task("probe:{name}")(probe.Command.handle)})()
    call_command(command, "return", "x", name="a")
    assert latest().job == "probe:a"
    with pytest.raises(CommandError, match="200 are kept"):
        call_command(command, "return", "x", name="a" * 10_000)


# Skips


def test_a_skip_is_said_on_stderr_and_returns_nothing(db: None) -> None:
    for verbosity, said in ((0, ""), (1, "Skipped: its lock is held, by a run that left no record.\n")):
        out, err = io.StringIO(), io.StringIO()
        with hold_lock(probe_decorated.Command):
            command = probe_decorated.Command()
            returned = call_command(command, "return", "x", verbosity=verbosity, stdout=out, stderr=err)
        assert (returned, out.getvalue(), err.getvalue()) == (None, "", said)
        assert latest().status == JobRun.Status.SKIPPED


def test_a_skip_names_the_holder(transactional_db: None) -> None:
    err = io.StringIO()

    def handle(self: BaseCommand, *args: Any, inner: bool = True, **options: Any) -> str:
        assert inner, "the second call is skipped"
        assert call_command(self, inner=False, stderr=err) is None
        return "ran"

    command = make_command(handle, add_arguments=lambda self, parser: parser.add_argument("--inner"))
    assert call_command(command, inner=True) == "ran"
    ran = JobRun.objects.acquired().get()
    since = ran.started_at.isoformat(sep=" ", timespec="seconds")
    assert err.getvalue() == f"Skipped: run {ran.pk} on {ran.host} (pid {ran.pid}) holds its lock since {since}.\n"


# What is kept of the output


def test_output_is_kept_without_its_style(db: None) -> None:
    def handle(self: BaseCommand, *args: Any, **options: Any) -> str:
        self.stdout.write("a", self.style.ERROR)
        self.stdout.write("b", ending="")
        self.stdout.write("c\n")
        self.stdout.write(self.style.SUCCESS("d"))
        self.stderr.write("e")
        print("f", file=self.stdout)
        self.stdout.write("\x00g\ud800")
        return "returned"

    out, err = io.StringIO(), io.StringIO()
    undecorated = io.StringIO()
    command = make_command(handle)
    call_command(command, stdout=out, stderr=err, force_color=True)
    plain = type("Command", (BaseCommand,), {"handle": handle})()
    call_command(plain, stdout=undecorated, stderr=io.StringIO(), force_color=True)
    assert out.getvalue() == undecorated.getvalue()
    assert out.getvalue().startswith("\x1b[31;1ma\n\x1b[0mbc\n")
    assert latest().output == "a\nbc\nd\ne\nf\n\n\ufffdg?\nreturned\n"


def test_output_of_a_run_that_fails_is_kept(db: None) -> None:
    def handle(self: BaseCommand, *args: Any, **options: Any) -> None:
        self.stdout.write("half-way")
        raise ZeroDivisionError

    command = make_command(handle)
    stdout = command.stdout
    with pytest.raises(ZeroDivisionError):
        call_command(command)
    assert latest().output == "half-way\n"
    assert command.stdout is stdout


class Sink(io.StringIO):
    written = 0

    def write(self, text: str) -> int:
        self.written += len(text)
        return len(text)


def test_two_hundred_megabytes_are_passed_on_and_their_tail_is_kept(db: None) -> None:
    megabyte, sink = "x" * (1 << 20), Sink()

    def handle(self: BaseCommand, *args: Any, **options: Any) -> None:
        tracemalloc.start()
        for _ in range(200):
            self.stdout.write(megabyte, ending="")
        for number in range(10_000):
            self.stdout.write(f"{number}")

    call_command(make_command(handle), stdout=sink)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20
    assert sink.written > 200 << 20
    output = latest().output
    assert output.startswith("[… ")
    assert output.endswith("\n9999\n")
    assert len(output) < Settings().output_limit + 100


def test_print_is_kept_on_the_command_line_alone(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[bool] = []

    def handle(self: BaseCommand, *args: Any, **options: Any) -> None:
        print("printed")
        print("warned", file=sys.stderr)
        sys.stdout.writelines(["one\n", "two\n"])
        seen.append(sys.stdout.isatty() or self.stdout.isatty())

    streams = sys.stdout, sys.stderr
    make_command(handle).run_from_argv(["manage.py", "made"])
    assert (sys.stdout, sys.stderr) == streams
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("printed\none\ntwo\n", "warned\n")
    run = latest()
    assert (run.trigger, run.output) == ("command_line", "printed\nwarned\none\ntwo\n")
    call_command(make_command(handle))
    run = latest()
    assert (run.trigger, run.output) == ("function", "")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    make_command(handle).run_from_argv(["manage.py", "made"])
    assert seen == [False, False, True]


def test_a_process_whose_streams_are_closed_runs(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    command = make_command(lambda self, **options: print("nowhere"))
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    command.run_from_argv(["manage.py", "made"])
    assert latest().status == JobRun.Status.SUCCEEDED


# Logging


@pytest.fixture
def unconfigured(monkeypatch: pytest.MonkeyPatch) -> Callable[[], logging.Logger]:
    """Take away pytest's handlers, which come after the fixtures: a logger in a project that configures none."""

    def get_logger() -> logging.Logger:
        monkeypatch.setattr(logging.getLogger(), "handlers", [])
        return logging.getLogger("shop")

    return get_logger


def test_what_nobody_handles_is_on_stderr_as_undecorated(
    transactional_db: None, unconfigured: Callable[[], logging.Logger], capsys: pytest.CaptureFixture[str]
) -> None:
    logger = unconfigured()

    def handle(self: BaseCommand, *args: Any, **options: Any) -> None:
        logger.info("not said")
        logger.warning("said")

    last_resort = logging.lastResort
    make_command(handle).run_from_argv(["manage.py", "made"])
    assert latest().output == capsys.readouterr().err == "said\n"
    call_command(make_command(handle))
    assert capsys.readouterr().err == "said\n"
    assert latest().output.endswith(" WARNING shop: said\n")
    assert logging.lastResort is last_resort


def test_a_failure_is_not_said_twice(
    db: None, unconfigured: Callable[[], logging.Logger], capsys: pytest.CaptureFixture[str]
) -> None:
    unconfigured()
    with pytest.raises(CommandError):
        call_command(probe_decorated.Command(), "fail", "5")
    assert capsys.readouterr() == ("", "")


def test_a_job_may_configure_logging(db: None, unconfigured: Callable[[], logging.Logger]) -> None:
    logger = unconfigured()
    stream = io.StringIO()

    def job() -> None:
        logging.basicConfig(stream=stream, format="%(message)s")
        logger.warning("configured")

    assert singleton_task("configures")(job)()
    assert stream.getvalue() == "configured\n"


def test_runs_at_once_share_the_last_resort(unconfigured: Callable[[], logging.Logger]) -> None:
    unconfigured()
    last_resort = logging.lastResort
    first, second = CapturedLogging(), CapturedLogging()
    first.__enter__()
    second.__enter__()
    shared = logging.lastResort
    first.__exit__(None, None, None)
    assert logging.lastResort is shared is not last_resort
    second.__exit__(None, None, None)
    assert logging.lastResort is last_resort


def test_a_project_may_do_without_a_last_resort(
    db: None,
    unconfigured: Callable[[], logging.Logger],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    logger = unconfigured()
    monkeypatch.setattr(logging, "lastResort", None)
    assert singleton_task("silent")(lambda: logger.warning("kept"))()
    assert latest().output.endswith(" WARNING shop: kept\n")
    assert capsys.readouterr().err == ""
    assert logging.lastResort is None


def test_the_last_resort_keeps_the_level_that_it_is_given(
    db: None,
    unconfigured: Callable[[], logging.Logger],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    logger = unconfigured()
    own = logging.StreamHandler()
    monkeypatch.setattr(logging, "lastResort", own)
    task = singleton_task("says")(lambda: logger.warning("said"))
    assert task()
    assert latest().output.endswith(" WARNING shop: said\n")
    own.setLevel(logging.ERROR)
    assert task()
    assert (latest().output, capsys.readouterr().err) == ("", "said\n")
    assert singleton_task("sets")(lambda: cast("Any", logging.lastResort).setLevel(logging.INFO))()
    assert (logging.lastResort, own.level) == (own, logging.INFO)
    assert task()
    assert capsys.readouterr().err == "said\n"


def test_a_last_resort_that_the_job_sets_stays(
    db: None, unconfigured: Callable[[], logging.Logger], monkeypatch: pytest.MonkeyPatch
) -> None:
    unconfigured()
    own = logging.NullHandler()
    monkeypatch.setattr(logging, "lastResort", logging.lastResort)
    assert singleton_task("sets")(lambda: setattr(logging, "lastResort", own))()
    assert logging.lastResort is own


# Handles that call handles


@pytest.fixture
def reorder() -> tuple[type[BaseCommand], list[str]]:
    """A command whose own `handle()` calls the decorated one that it inherits, and what was done."""
    done: list[str] = []

    @singleton_task
    class Base(BaseCommand):
        def handle(self, *args: Any, **options: Any) -> str:
            done.append("base")
            return "restocked"

    class Command(Base):
        __module__ = "shop.management.commands.reorder"

        def handle(self, *args: Any, **options: Any) -> str:
            done.append("own")
            return str(super().handle(*args, **options))

    return Command, done


@pytest.mark.parametrize("how", ["itself", "wrapped", "decorated"])
def test_a_handle_that_calls_the_one_it_inherits_does_the_work_of_both(
    manage: Manage, add_commands: Callable[..., None], reorder: tuple[type[BaseCommand], list[str]], how: str
) -> None:
    command, done = reorder
    add_commands(reorder=(singleton_task(command) if how == "decorated" else command)())
    words = ["singlecron", "run"] if how == "wrapped" else []
    finished = manage(*words, "reorder")
    assert (finished.code, finished.out, finished.err) == (0, "restocked\n", "")
    assert done == ["own", "base"]
    assert list(JobRun.objects.values_list("job", "status")) == [("reorder", "succeeded")]


def test_a_handle_that_is_called_under_another_name_is_refused(
    manage: Manage, add_commands: Callable[..., None], reorder: tuple[type[BaseCommand], list[str]]
) -> None:
    command, done = reorder
    add_commands(reorder=command())
    finished = manage("singlecron", "run", "--name", "other", "reorder")
    assert (finished.code, done) == (1, ["own"])
    assert 'The job "reorder" did not run: it was called inside the job "other"' in finished.err


def test_a_handle_that_calls_itself_is_skipped_inside(db: None) -> None:
    inside: list[Any] = []

    def handle(self: BaseCommand, *args: Any, **options: Any) -> None:
        inside.append(self.handle(*args, **options))

    call_command(make_command(handle))
    assert inside == [None]
    assert sorted(JobRun.objects.values_list("status", flat=True)) == ["skipped", "succeeded"]


def test_a_handle_below_another_decorator_is_refused_before_it_runs(db: None) -> None:
    @no_translations
    @singleton_task
    def handle(self: Any, *args: Any, **options: Any) -> None:
        """Never runs."""

    command = type("Command", (BaseCommand,), {"handle": handle})()
    with pytest.raises(InvalidTask, match="Put @singleton_task on top, or on the class"):
        call_command(command)
    assert JobRun.objects.count() == 0


# What is said of a skip


class Closed(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("verbosity", ["0", "1", None, 1])
def test_a_skip_is_told_by_whatever_verbosity_a_caller_gives(db: None, verbosity: Any) -> None:
    stderr = io.StringIO()
    with hold_lock("made"):
        call_command(make_command(lambda self, **options: None), verbosity=verbosity, stderr=stderr)
    assert bool(stderr.getvalue()) is (verbosity != "0")


def test_a_skip_that_nobody_can_be_told_of_is_one_all_the_same(db: None) -> None:
    with hold_lock("made"):
        call_command(make_command(lambda self, **options: None), stderr=Closed())
    assert latest().status == "skipped"


def test_lines_that_are_written_together_are_kept(db: None) -> None:
    out = io.StringIO()
    call_command(make_command(lambda self, **options: self.stdout.writelines(["a\n", "b\n"])), stdout=out)
    assert out.getvalue() == latest().output == "a\nb\n"


# In a process of its own


def test_a_process(transactional_db: None) -> None:
    echoed = run_process("probe_decorated", "echo", stdin=b"\xff\x00 bytes")
    assert (echoed.code, echoed.out, echoed.err) == (0, "\udcff\x00 bytes", "")
    run = latest()
    assert (run.job, run.command, run.arguments) == (
        "probe_decorated",
        "manage.py probe_decorated",
        "action='echo', words=[], name=None, skip_exit_code=None",
    )
    with hold_lock("probe_decorated"):
        skipped = run_process("probe_decorated", "tell")
    assert (skipped.code, skipped.out) == (0, "")
    assert skipped.err == "Skipped: its lock is held, by a run that left no record.\n"
    failed = run_process("probe_decorated", "fail", "5")
    assert (failed.code, failed.err) == (5, "CommandError: failed as told\n")


def test_command_lines(manage: Manage) -> None:
    for words in (("tell", "a"), ("fail", "5"), ("exit", "4"), ("tell", "--unknown"), ("--help",), ("return", "x")):
        decorated, undecorated = manage("probe_decorated", *words), manage("probe", *words)
        assert decorated.code == undecorated.code
        # Usage is wrapped by the length of the name.
        assert (decorated.out + decorated.err).replace("probe_decorated", "probe").split() == (
            undecorated.out + undecorated.err
        ).split()
    with pytest.raises(ZeroDivisionError):
        manage("probe_decorated", "raise")


# Descriptions


@pytest.mark.parametrize(
    ("argv", "described"),
    [
        ([], ""),
        ([""], ""),
        (["/srv/manage.py"], "manage.py"),
        (["/srv/manage.py", "bill", "--password=x"], "manage.py bill"),
        (["manage.py", "--settings=x", "bill"], "manage.py"),
        (["manage.py", "singlecron", "run", "bill"], "manage.py singlecron run"),
        (["manage.py", "singlecron", "--version"], "manage.py singlecron"),
        (["/bin/django-admin", "bill"], "django-admin bill"),
        (["/lib/django/__main__.py", "bill"], "python -m django bill"),
        (["/lib/celery/__main__.py", "worker", "secret"], "python -m celery"),
        (["/bin/gunicorn", "shop.wsgi"], "gunicorn"),
        (["x" * 300], "x" * 255),
    ],
)
def test_processes_are_described_without_their_arguments(argv: list[str], described: str) -> None:
    assert commands.describe_process(tuple(argv)) == described


def test_arguments_of_a_command() -> None:
    options = {"verbosity": 1, "settings": None, "stdout": None, "days": 3}
    assert commands.job_arguments((), options) == {"days": 3}
    assert commands.job_arguments(("a",), options) == {"args": ("a",), "days": 3}
