"""Texts for the history: bounded, storable, and the end of what was written."""

from __future__ import annotations

import io
from typing import Any

import pytest
from django.db import connection
from hypothesis import example, given
from hypothesis import strategies as st

from django_singlecron.capture import (
    MAX_ARGUMENTS,
    MAX_ERROR_CLASS,
    MAX_ERROR_MESSAGE,
    MAX_TRACEBACK,
    OutputTail,
    TeeStream,
    clean,
    cut_middle,
    describe_arguments,
    error_class,
    error_message,
    error_traceback,
)
from tests.properties.values import Hostile, anything

# With what needs care oftener than chance would have it.
texts = st.lists(
    st.one_of(st.text(max_size=20), st.sampled_from(["\x00", "\ud83d", "🐘", "\x1b[31m", "\x1b]0;t\x07", "\x1b", "\n"]))
).map("".join)


def is_storable(text: str) -> bool:
    return "\x00" not in text and text.encode().decode() == text


@given(text=texts)
def test_a_cleaned_text_is_storable_and_clean(text: str) -> None:
    cleaned = clean(text)
    assert is_storable(cleaned)
    assert len(cleaned) <= len(text)
    assert (
        clean(text.replace("\x1b", ""))
        == text.replace("\x1b", "").replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
    )


@pytest.mark.django_db
@given(text=texts)
def test_a_cleaned_text_comes_back_from_the_database_as_it_went_in(text: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s::text", [clean(text)])
        assert cursor.fetchone() == (clean(text),)


@given(chunks=st.lists(texts), limit=st.integers(0, 60))
def test_a_tail_is_the_end_of_what_was_written_whatever_its_pieces(chunks: list[str], limit: int) -> None:
    whole, in_pieces = OutputTail(limit), OutputTail(limit)
    written = "".join(chunks)
    whole.append(written)
    for chunk in chunks:
        in_pieces.append(chunk)
    kept = written[-limit:] if limit else ""
    cut = len(written) - len(kept)
    note = f"[… {cut:,} characters cut …]\n" if cut and kept else ""
    assert in_pieces.text() == whole.text() == note + clean(kept)
    assert is_storable(in_pieces.text())


@given(chunks=st.lists(st.text(min_size=1, max_size=30), min_size=1), limit=st.integers(1, 20))
def test_a_tail_holds_little_more_than_it_shows(chunks: list[str], limit: int) -> None:
    tail = OutputTail(limit)
    for chunk in chunks:
        tail.append(chunk)
        held = sum(map(len, tail._chunks))
        assert held < 2 * limit


@given(text=texts.map(lambda text: text * 10), limit=st.integers(60, 200))
def test_a_text_without_its_middle_has_its_beginning_and_its_end(text: str, limit: int) -> None:
    cut = cut_middle(text, limit)
    assert len(cut) <= limit
    if cut != text:
        head, end = cut.split("\n[… ", 1)[0], cut.rsplit(" characters cut …]\n", 1)[1]
        assert text.startswith(head)
        assert text.endswith(end)


@given(written=st.lists(anything, max_size=5))
@example(written=[b"bytes", "text"])
def test_what_a_stream_refuses_is_not_in_the_tail(written: list[Any]) -> None:
    stream, tail = io.StringIO(newline=""), OutputTail(10_000)
    tee = TeeStream(stream, tail)
    for each in written:
        if isinstance(each, str):
            tee.write(each)
        else:
            with pytest.raises(TypeError):
                tee.write(each)
    assert tail.text() == clean(stream.getvalue())


@given(arguments=st.dictionaries(st.text(), anything))
def test_any_arguments_are_described(arguments: dict[str, Any]) -> None:
    described = describe_arguments(arguments)
    assert len(described) <= MAX_ARGUMENTS
    assert is_storable(described)


class Awkward(Exception):
    __str__ = Hostile.__repr__


errors = st.builds(
    lambda kind, name, module, args: type(clean(name) or "Error", (kind,), {"__module__": module})(*args),
    st.sampled_from([Exception, ValueError, KeyError, SystemExit, BaseException, Awkward, OSError, UnicodeError]),
    st.text(max_size=300),
    st.one_of(st.text(max_size=10), st.none(), st.integers(), st.just("builtins")),
    st.lists(anything, max_size=2),
)


@given(error=errors, cause=st.one_of(st.none(), errors), note=st.one_of(st.none(), anything))
def test_any_error_is_described(error: BaseException, cause: BaseException | None, note: Any) -> None:
    try:
        raise error from cause
    except BaseException as caught:
        if note is not None:
            caught.__notes__ = note
        check_description(caught)


def check_description(error: BaseException) -> None:
    for text, limit in (
        (error_class(error), MAX_ERROR_CLASS),
        (error_message(error), MAX_ERROR_MESSAGE),
        (error_traceback(error), MAX_TRACEBACK),
    ):
        assert is_storable(text)
        assert len(text) <= limit
    assert "check_description" not in error_traceback(error)
    assert error_class(error)
