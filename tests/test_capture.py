"""Texts for the history: whatever a job logs, prints, is called with or raises can be stored and shown."""

from __future__ import annotations

import io
import logging
import threading
from typing import Any

import pytest
from django.core.management.base import OutputWrapper
from django.core.management.color import no_style

from django_singlecron.capture import (
    _RUN_HANDLER,
    CapturedLogging,
    OutputTail,
    TeeOutput,
    TeeStream,
    clean,
    cut_middle,
    describe_arguments,
    error_class,
    error_message,
    error_traceback,
)
from testproject.billing.models import Tenant

from .support_core import job, real_database, the_run


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("plain ünïcödé 🐘", "plain ünïcödé 🐘"),
        ("nul\x00byte", "nul\ufffdbyte"),
        ("half \ud83d pair", "half ? pair"),
        (b"caf\xe9".decode("utf-8", "surrogateescape"), "caf?"),
        ("\x1b[31mred\x1b[0m \x1b]0;title\x07rest \x1b]8;;u\x1b\\link \x1bMup", "red rest link up"),
    ],
)
def test_text_is_made_fit_for_the_database(text: str, cleaned: str) -> None:
    assert clean(text) == cleaned


def test_a_long_text_loses_its_middle_and_says_so() -> None:
    text = "a" * 500 + "b" * 500
    cut = cut_middle(text, 100)
    assert len(cut) == 100
    assert cut.startswith("aaa")
    assert cut.endswith("bbb")
    assert "[… 900 characters cut …]" in cut
    assert cut_middle("short", 100) == "short"


def test_the_tail_is_the_end_of_what_was_written() -> None:
    tail = OutputTail(10)
    for text in ("first", "", "second", "third"):
        tail.append(text)
    assert tail.text() == "[… 6 characters cut …]\n" + "econdthird"
    tail.append("x" * 1_000_000)
    assert tail.text().endswith("\n" + "x" * 10)


def test_a_tail_that_was_not_filled_is_whole() -> None:
    tail = OutputTail(10)
    assert tail.text() == ""
    tail.append("0123456789")
    assert tail.text() == "0123456789"


def test_a_tail_of_nothing_keeps_nothing() -> None:
    tail = OutputTail(0)
    tail.append("text")
    assert tail.text() == ""


def test_the_tail_is_written_from_many_threads() -> None:
    tail = OutputTail(100_000)
    threads = [threading.Thread(target=lambda: [tail.append("x") for _ in range(1000)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert tail.text() == "x" * 8000


def test_a_commands_output_goes_to_both_with_its_style_on_the_terminal_alone() -> None:
    terminal, tail = io.StringIO(), OutputTail(100)
    wrapped = OutputWrapper(terminal)
    tee = TeeOutput(wrapped, tail)
    assert tee.style_func is wrapped.style_func
    tee.style_func = str.upper
    assert wrapped.style_func("styled") == "styled"  # a style is for terminals alone
    tee.write("one", lambda text: f"<{text}>")
    tee.write("two\n")
    tee.write("three", ending="")
    tee.write("\nfour", no_style().NOTICE)
    tee.flush()
    assert terminal.getvalue() == "<one\n>two\nthree\nfour\n"
    assert tail.text() == "one\ntwo\nthree\nfour\n"


def test_a_signal_handler_may_write_in_the_middle_of_what_it_interrupts() -> None:
    class Interrupted(str):
        def __len__(self) -> int:
            tail.append("by the handler, ")
            return super().__len__()

        def __getitem__(self, key: Any) -> str:
            return self

    tail = OutputTail(100)
    with tail._lock:
        # As while the lock is held, too.
        tail.append(Interrupted("by the job"))
    assert tail.text() == "by the handler, " * 2 + "by the job"


def test_a_signal_handler_may_run_a_job_while_another_begins() -> None:
    with CapturedLogging._lock, CapturedLogging():
        pass
    assert CapturedLogging._entered == 0


def test_a_stream_is_written_to_both_and_is_itself_otherwise() -> None:
    stream, tail = io.StringIO(), OutputTail(100)
    tee = TeeStream(stream, tail)
    print("printed", file=tee)
    assert tee.write("text") == 4
    tee.writelines(["a", "b"])
    with pytest.raises(TypeError):
        tee.write(b"refused")  # type: ignore[arg-type]  # as a job does to find out what the stream takes
    assert stream.getvalue() == tail.text() == "printed\ntextab"
    assert not tee.closed
    assert tee.seekable()


@real_database
def test_what_a_job_logs_is_kept_and_what_others_log_is_not(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("billing")

    def log() -> None:
        logger.warning("%s tenants \x00 billed", 7)
        other = threading.Thread(target=logger.warning, args=("from another thread",))
        other.start()
        other.join(10)

    handlers = list(logging.getLogger().handlers)
    assert job(log)()
    logger.warning("after the run")
    assert logging.getLogger().handlers == handlers
    lines = the_run().output.splitlines()
    assert len(lines) == 1
    assert lines[0].endswith("WARNING billing: 7 tenants \ufffd billed")


@real_database
def test_a_message_that_cannot_be_formatted_is_reported_as_logging_does(capsys: pytest.CaptureFixture[str]) -> None:
    record = logging.LogRecord("billing", logging.INFO, __file__, 1, "%d", ("no number",), None)
    assert job(lambda: _RUN_HANDLER.handle(record))()
    assert the_run().output == ""
    assert "Logging error" in capsys.readouterr().err


class Hostile:
    def __repr__(self) -> str:
        raise ValueError("no repr")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, ""),
        ({"tenant": Tenant(pk=7), "dry_run": False}, "tenant=Tenant(pk=7), dry_run=False"),
        ({"tenants": [Tenant(pk=7)]}, "tenants=[Tenant(pk=7)]"),
        ({"password": "hunter2", "api_key": b"x", "auth_token": 1, "secret": None}, None),
        ({"rows": Tenant.objects.all()}, "rows=<TenantQuerySet of Tenant>"),
        ({"manager": Tenant.objects}, "manager=<Manager of Tenant>"),
        ({"nul": "\x00\udcff"}, "nul='\\x00\\udcff'"),
    ],
)
def test_arguments_are_described_without_a_query_or_a_secret(arguments: dict[str, Any], text: str | None) -> None:
    described = describe_arguments(arguments)
    if text is None:
        text = "password=********, api_key=********, auth_token=********, secret=None"
    assert described == text.replace("TenantQuerySet", "QuerySet")


def test_arguments_are_bounded() -> None:
    described = describe_arguments({f"a{number}": "x" * 10_000 for number in range(1000)})
    assert len(described) == 2_000


def test_an_argument_without_a_repr_is_named_by_its_class() -> None:
    not_a_dict = type("dict", (), {})()
    assert "Hostile" in describe_arguments({"it": Hostile()})
    assert describe_arguments({"it": not_a_dict}) == "it=<dict, whose repr failed>"


class BadText(Exception):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __str__(self) -> str:
        raise self.error


@pytest.mark.parametrize("raised", [ValueError("no"), SystemExit(3), KeyboardInterrupt(), RecursionError()])
def test_an_error_whose_text_raises_is_described_all_the_same(raised: BaseException) -> None:
    try:
        raise BadText(raised)
    except BadText as error:
        caught = error
    assert error_message(caught) == "<BadText, whose text could not be had>"
    described = error_traceback(caught)
    assert "test_capture.py" in described
    assert "BadText" in described


def test_a_traceback_that_cannot_be_formatted_is_made_of_its_frames() -> None:
    class Broken(Exception):
        @property
        def __cause__(self) -> None:  # type: ignore[override]
            raise SystemExit(1)

    try:
        raise Broken("text")
    except Broken as error:
        described = error_traceback(error)
    assert "raise Broken" in described
    assert described.rstrip().endswith("Broken: text")


def test_texts_of_errors_are_bounded() -> None:
    error = ValueError("x" * 10_000_000)
    assert len(error_message(error)) == 10_000
    assert len(error_traceback(error)) == 100_000


def test_an_errors_class_is_named_with_its_module() -> None:
    assert error_class(ValueError()) == "ValueError"
    assert error_class(BadText(ValueError())) == "tests.test_capture.BadText"
    assert len(error_class(type("X" * 1000, (Exception,), {})())) == 200
    assert error_class(type("X", (Exception,), {"__module__": Hostile()})()) == "X"


def test_causes_groups_and_notes_are_part_of_the_traceback() -> None:
    try:
        try:
            raise KeyError("cause")
        except KeyError as cause:
            raise ValueError("effect") from cause
    except ValueError as error:
        described = error_traceback(error)
    assert "KeyError: 'cause'" in described
    assert "direct cause" in described
    assert described.endswith("ValueError: effect\n")
