"""What ends a job from outside its code: its deadline, a SIGTERM, a fork."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from .context import run_context
from .exceptions import RunTimedOut

if TYPE_CHECKING:
    from typing_extensions import Self

INTERRUPT_AGAIN_AFTER = 1.0

_SIGTERM_EXIT_CODE = 128 + signal.SIGTERM

# What holds the locks of this process's runs, in whichever thread they are: their connections, and the sockets that
# deadlines have doubled.
_run_connections: set[BaseDatabaseWrapper] = set()
_deadline_sockets: set[socket.socket] = set()


class Terminated(SystemExit):
    """A SIGTERM, raised in the job so that its work is rolled back and its record written; exit code 143."""

    def __init__(self) -> None:
        super().__init__(_SIGTERM_EXIT_CODE)

    def __str__(self) -> str:
        return "The process received SIGTERM, as a deploy or a shutdown sends it."


class Interruption(BaseException):
    """What a deadline raises in the job; at the end of the deadline's block `RunTimedOut` takes its place.

    It is no `Exception`, so a job that carries on after each of those does not carry on after this.
    """


class Deadline:
    """Ends the run in its block once `timeout` has passed, and raises `RunTimedOut` at the block's end.

    A SIGTERM or Ctrl-C that comes while the job is being interrupted goes on outward in its place.

    The connection's socket is shut down, so the server rolls back and frees the lock whatever the job is doing; it
    notices within a tenth of a second on Linux. Then the job is interrupted: in the main thread even out of a blocking
    system call, in other threads when they next run Python code, and again each second, should the job catch it. Code
    in C that never returns to Python cannot be interrupted.

    Arguments: the `job`'s name, for the error; `connection`, whose socket to shut down, or None to leave it.
    """

    def __init__(self, job: str, timeout: timedelta, connection: BaseDatabaseWrapper | None) -> None:
        self._message = (
            f'The job "{job}" exceeded its timeout of {timeout.total_seconds():g} s. '
            "Its work was rolled back and its lock is free."
        )
        self._seconds = timeout.total_seconds()
        self._connection = connection
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._watch_clock, name="singlecron-deadline", daemon=True)
        self._socket: socket.socket | None = None
        self._session: object = None
        self.passed = False
        self._by_signal = threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGURG")
        self._previous_handler = signal.getsignal(signal.SIGURG) if self._by_signal else None
        self._interrupt: Callable[[], object] = self._send_signal if self._by_signal else self._raise_in_thread

    def interrupt_with(self, interrupt: Callable[[], object]) -> None:
        """Interrupt the job by calling `interrupt`, from another thread: the way for a coroutine."""
        self._interrupt = interrupt

    def __enter__(self) -> Self:
        self._thread_id = threading.get_ident()
        try:
            if self._connection is not None:
                # A descriptor of its own: the job may close the connection, and the number be used again.
                self._socket = own_socket(self._connection)
                self._session = self._connection.connection
                _deadline_sockets.add(self._socket)
            if self._by_signal:
                # The system ignores SIGURG by default, so one that arrives late harms nobody.
                signal.signal(signal.SIGURG, self._on_signal)
            self._watch.start()
        except BaseException as error:
            # It passed already, or a SIGTERM or Ctrl-C came.
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._stop()
        finally:
            # Also when a SIGTERM or Ctrl-C breaks that off.
            if self._by_signal:
                signal.signal(signal.SIGURG, self._previous_handler)
            if self._socket is not None:
                self._socket.close()
                _deadline_sockets.discard(self._socket)
        # Whoever asked the process to end meanwhile is still waiting for that.
        if self.passed and not isinstance(error, Terminated | KeyboardInterrupt):
            raise RunTimedOut(self._message) from error

    def _watch_clock(self) -> None:
        wait = self._seconds
        while not self._over.wait(wait):
            if not self.passed:
                self._end_session()
            self.passed = True
            self._interrupt()
            wait = INTERRUPT_AGAIN_AFTER

    def _end_session(self) -> None:
        # Not one that the job gave back: Django's pool may have lent it to others.
        if self._socket is not None and self._connection and self._connection.connection is self._session:
            shut_down(self._socket)

    def _send_signal(self) -> None:
        signal.pthread_kill(self._thread_id, signal.SIGURG)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.passed and not self._over.is_set():
            raise Interruption(self._message)
        if callable(self._previous_handler):
            # The deadline of the run that this one was called from.
            self._previous_handler(number, frame)

    def _raise_in_thread(self) -> None:
        _set_async_exception(self._thread_id, Interruption)

    def _stop(self) -> None:
        # An interruption may still arrive in here, until the watch has ended and what it left pending is raised.
        while True:
            try:
                self._over.set()
                # One that has not begun yet, since its start was broken off, ends as soon as it does.
                with suppress(RuntimeError):
                    self._watch.join()
                break
            except Interruption:
                continue
        if self.passed and self._interrupt == self._raise_in_thread:
            _raise_pending(self._thread_id)


def own_socket(connection: BaseDatabaseWrapper) -> socket.socket:
    """Return the socket of an open connection under a descriptor of its own, to be closed by the caller."""
    return socket.socket(fileno=os.dup(connection.connection.fileno()))


def shut_down(own_socket: socket.socket) -> None:
    """End a connection by its socket, whatever its owner waits for."""
    # An error says that the connection is gone already, and the lock with it.
    with suppress(OSError):
        own_socket.shutdown(socket.SHUT_RDWR)


def _set_async_exception(thread_id: int, error: type[BaseException]) -> None:
    # https://docs.python.org/3/c-api/threads.html#c.PyThreadState_SetAsyncExc
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), ctypes.py_object(error))


def _raise_pending(thread_id: int) -> None:
    """Let this thread have no interruption pending, by raising one here in place of it.

    Taking it back instead, as SetAsyncExc with NULL does, leaves Python 3.11 and older looking for it for ever: a
    thread that is traced, for its coverage or by a debugger, then never gets on.
    """
    with suppress(Interruption):
        while True:
            _set_async_exception(thread_id, Interruption)


class SigtermRaises:
    """Raises `Terminated` on SIGTERM in its block, in the main thread of a process that would simply die of it."""

    _takes_over = False

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            self._takes_over = True
            signal.signal(signal.SIGTERM, _raise_terminated)

    def __exit__(self, *_: object) -> None:
        # Unless the job installed a handler of its own, to last.
        if self._takes_over and signal.getsignal(signal.SIGTERM) is _raise_terminated:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _raise_terminated(number: int, frame: FrameType | None) -> None:
    raise Terminated


class KeptFromChildren:
    """Lets no child that is forked in its block, by whichever thread, keep the connection's socket.

    A child that outlived a killed parent would else keep the session, and with it the lock, for as long as it lives.
    """

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        _run_connections.add(self._connection)

    def __exit__(self, *_: object) -> None:
        _run_connections.discard(self._connection)


def _leave_run_after_fork() -> None:
    """Cut a forked child off from its parent's runs.

    The child shares the parent's socket, and what it sent there would end the parent's transaction. So it forgets the
    connection without a word to the server (the drivers' destructors keep still in a child) and, should it need the
    database, gets one of its own.
    """
    for connection in _run_connections:
        # One that is closed has no socket, and one to a file none either.
        with suppress(Exception):
            _replace_socket(connection.connection.fileno())
        _forget_transaction(connection)
    for deadline_socket in _deadline_sockets:
        deadline_socket.close()
    _run_connections.clear()
    _deadline_sockets.clear()
    context = run_context.get()
    while context is not None:
        # In a thread that a job's context was copied to, another one than the run's.
        _forget_transaction(connections[context.run.using])
        context = context.outer
    run_context.set(None)


def _forget_transaction(connection: BaseDatabaseWrapper) -> None:
    connection.connection = None
    connection.in_atomic_block = False
    connection.needs_rollback = False
    connection.atomic_blocks = []
    connection.savepoint_ids = []
    connection.run_on_commit = []


def _replace_socket(descriptor: int) -> None:
    # Not closed: the driver may still use the number, which must not become that of another file.
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, descriptor, inheritable=False)
    os.close(null)


with suppress(AttributeError):  # where there are no forks
    os.register_at_fork(after_in_child=_leave_run_after_fork)
