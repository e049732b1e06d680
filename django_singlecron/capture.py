"""Texts for the history, made safe and bounded: a run's output, its arguments, its error."""

from __future__ import annotations

import logging
import os
import re
import reprlib
import sys
import threading
import traceback
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import IO, Any, ClassVar, TextIO, cast

from django.core.management.base import OutputWrapper
from django.db.models import Manager, Model
from django.db.models.query import QuerySet

from .context import run_context

MAX_ARGUMENTS = 2_000
MAX_ERROR_CLASS = 200
MAX_ERROR_MESSAGE = 10_000
MAX_TRACEBACK = 100_000

# CSI and OSC sequences (ECMA-48, sections 5.4 and 5.6) and other two-byte escapes: colours, cursor moves, titles.
_ESCAPES = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])"
_SENSITIVE = r"(?i)passw|secret|token|api_?key|credential|signature"


def clean(text: str) -> str:
    """Return `text` as PostgreSQL can store it and a page can show it.

    Terminal escapes are removed; NUL and lone surrogates become U+FFFD and `?`.
    """
    text = re.sub(_ESCAPES, "", text).replace("\x00", "\ufffd")
    return text.encode("utf-8", "replace").decode("utf-8")


def cut_middle(text: str, limit: int) -> str:
    """Return `text`, with its middle taken out when it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    note = f"\n[… {len(text) - limit:,} characters cut …]\n"
    kept = max(limit - len(note), 0)
    return text[: kept // 3] + note + text[len(text) - (kept - kept // 3) :]


class OutputTail:
    """The last `limit` characters of what is appended, from any thread, in bounded memory."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._chunks: deque[str] = deque()
        self._kept = 0
        self._total = 0
        # A signal handler may write in the middle of what it interrupts.
        self._lock = threading.RLock()
        self._pid = os.getpid()

    def append(self, text: str) -> None:
        """Add `text` at the end; anything else is left out, as the stream that it is written to refuses it."""
        # A forked child's copy is read by nobody, and a thread that did not come along may hold its lock.
        if not isinstance(text, str) or os.getpid() != self._pid:
            return
        kept = text[-self._limit :] if self._limit else ""
        # Called before the lock, so that no signal handler gets in between a number's being read and written.
        length, kept_length = len(text), len(kept)
        with self._lock:
            self._total += length
            if not kept_length:
                return
            self._chunks.append(kept)
            self._kept += kept_length
            while self._kept - len(self._chunks[0]) >= self._limit:
                self._kept -= len(self._chunks.popleft())

    def text(self) -> str:
        """Return the tail, cleaned, under a line that says how much came before it."""
        # Most jobs write nothing, and what cleans the text need not be compiled for them.
        if not self._total:
            return ""
        with self._lock:
            tail, total = "".join(self._chunks), self._total
        tail = tail[len(tail) - self._limit :] if len(tail) > self._limit else tail
        cut = total - len(tail)
        note = f"[… {cut:,} characters cut …]\n" if cut and tail else ""
        return note + clean(tail)


class TeeOutput(OutputWrapper):
    """A command's `self.stdout` or `self.stderr` that also writes to a tail."""

    def __init__(self, wrapped: OutputWrapper, tail: OutputTail) -> None:
        self._wrapped = wrapped
        self._tail = tail
        super().__init__(cast("TextIO", wrapped), ending=wrapped.ending)

    @property
    def style_func(self) -> Any:
        return self._wrapped.style_func

    @style_func.setter
    def style_func(self, style_func: Any) -> None:
        # OutputWrapper's constructor resets the style; the wrapped one keeps its own.
        if style_func is not None:
            self._wrapped.style_func = style_func

    def write(self, msg: str = "", style_func: Any = None, ending: str | None = None) -> None:  # type: ignore[override]
        # The tail first: a run that is interrupted here has kept what its reader has seen.
        line_end = self.ending if ending is None else ending
        self._tail.append(msg if msg.endswith(line_end) else msg + line_end)
        self._wrapped.write(msg, style_func, ending)

    def writelines(self, lines: Iterable[Any]) -> None:
        # Django's wrapper passes them on to its stream as they are.
        written = list(lines)
        for line in written:
            self._tail.append(line)
        self._wrapped.writelines(written)


class TeeStream:
    """A text stream such as `sys.stdout` that also writes to a tail."""

    def __init__(self, stream: IO[str], tail: OutputTail) -> None:
        self._stream = stream
        self.tail = tail

    def write(self, text: str) -> int:
        self.tail.append(text)
        return self._stream.write(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_LINE = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")


class _RunHandler(logging.Handler):
    """Appends what is logged inside a run to that run's tail."""

    def emit(self, record: logging.LogRecord) -> None:
        context = run_context.get()
        if context is None:
            return
        try:
            context.tail.append(_LINE.format(record) + "\n")
        except Exception:
            # What logging does for every handler: a message that cannot be formatted is not the job's failure.
            self.handleError(record)


_RUN_HANDLER = _RunHandler()


class _LastResort:
    """Logging's last resort, which writes to stderr what nobody handles, and then the run's handler.

    All else that is asked of it, the original does. No handler itself: each run makes one, and a handler has a lock.
    """

    def __init__(self, original: logging.Handler | None) -> None:
        self.original = original

    def handle(self, record: logging.LogRecord) -> bool:
        if self.original:
            self.original.handle(record)
        context = run_context.get()
        # On a command line, stderr is teed, and so has put it into the tail already.
        is_teed = context and isinstance(sys.stderr, TeeStream) and sys.stderr.tail is context.tail
        if not (self.original and is_teed):
            _RUN_HANDLER.handle(record)
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original or _NO_LAST_RESORT, name)


# What stands in where a project has none.
_NO_LAST_RESORT = logging.NullHandler(logging.WARNING)


class CapturedLogging:
    """In its block, what is logged inside a run and reaches the root logger is appended to that run's tail.

    In a project that configures no handler for that, none is added: it would take the place of logging's last resort,
    and a job's own `logging.basicConfig()` would do nothing. What the last resort gets is appended instead. The last
    block that is left, in whichever thread, leaves logging as it was.
    """

    # A signal handler may run a job in the middle of a change.
    _lock: ClassVar = threading.RLock()
    _entered: ClassVar = 0

    def __enter__(self) -> None:
        root = logging.getLogger()
        with self._lock:
            if root.handlers:
                root.addHandler(_RUN_HANDLER)
            elif not isinstance(logging.lastResort, _LastResort):
                logging.lastResort = cast("logging.Handler", _LastResort(logging.lastResort))
            # Last: what an interruption before it leaves, the next block takes away.
            CapturedLogging._entered += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            CapturedLogging._entered -= 1
            if CapturedLogging._entered:
                return
            logging.getLogger().removeHandler(_RUN_HANDLER)
            if isinstance(logging.lastResort, _LastResort):
                logging.lastResort = logging.lastResort.original

    @classmethod
    def renew_lock(cls) -> None:
        """Let a forked child not wait for a thread of its parent's."""
        cls._lock = threading.RLock()


with suppress(AttributeError):  # where there are no forks
    os.register_at_fork(after_in_child=CapturedLogging.renew_lock)


class _ArgumentRepr(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 200
        self.maxlevel = 3

    def repr1(self, x: Any, level: int) -> str:
        if isinstance(x, Model):
            return f"{type(x).__name__}(pk={super().repr1(x.pk, level)})"
        if isinstance(x, QuerySet | Manager):
            # Their repr would run a query.
            return f"<{type(x).__name__} of {getattr(x.model, '__name__', x.model)}>"
        return super().repr1(x, level)


def describe_arguments(arguments: Mapping[str, Any]) -> str:
    """Return a call's arguments as text, such as `tenant=Tenant(pk=7), dry_run=False`.

    No query is run for it, what looks like a secret by its name is masked, and it is at most 2,000 characters long.
    """
    if not arguments:
        return ""
    shorten = _ArgumentRepr().repr
    parts = []
    for name, value in arguments.items():
        try:
            text = "********" if re.search(_SENSITIVE, name) and value is not None else shorten(value)
        except Exception:
            text = f"<{type(value).__name__}, whose repr failed>"
        parts.append(f"{name}={text}")
    return cut_middle(clean(", ".join(parts)), MAX_ARGUMENTS)


def error_class(error: BaseException) -> str:
    """Return the error's class with its module, builtins without."""
    kind = type(error)
    try:
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    except Exception:  # a class may be made with anything for a module
        name = kind.__qualname__
    return clean(name)[:MAX_ERROR_CLASS]


def error_message(error: BaseException) -> str:
    """Return the error's text, cut to 10,000 characters; a text that cannot be had is said to be so."""
    try:
        text = str(error)
    except BaseException:  # __str__ is the job's code: whatever it raises must not replace the job's own error
        text = f"<{type(error).__name__}, whose text could not be had>"
    return cut_middle(clean(text), MAX_ERROR_MESSAGE)


def error_traceback(error: BaseException) -> str:
    """Return the whole traceback with causes and notes, its middle cut out when it exceeds 100,000 characters."""
    try:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except BaseException:  # as above
        frames: list[str] = []
        with suppress(BaseException):
            frames = traceback.format_tb(error.__traceback__)
        text = "".join(frames) + f"{error_class(error)}: {error_message(error)}\n"
    return cut_middle(clean(text), MAX_TRACEBACK)
