"""A TCP proxy between client and server that knows a run's steps and stops the flow there until it is told to go on."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tests.faults.steps import Point, Step, step_of
from tests.support.deadlines import DEADLINE, wait_until

T = TypeVar("T")

# https://www.postgresql.org/docs/current/protocol-message-formats.html
CANCEL_REQUEST, SSL_REQUEST, GSSENC_REQUEST = 80877102, 80877103, 80877104


@dataclass
class Stopped:
    """Where the flow was stopped."""

    point: Point
    backend_pid: int
    """The server process of the session; 0 when it has none yet."""
    session: Session


class Proxy:
    """Listens on a port of the loopback interface, for as long as the block lasts.

    Arguments: `server`, the path of the server's socket, or its host and port.
    """

    def __init__(self, server: str | tuple[str, int]) -> None:
        self.server = server
        self.sessions: list[Session] = []
        self.is_dark = False
        self._stop_at: list[Point] = []
        self._stopped: list[Stopped] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        listening = self._loop.create_server(lambda: _Side(Session(self), "client"), "127.0.0.1", 0)
        self._listener = asyncio.run_coroutine_threadsafe(listening, self._loop).result(DEADLINE)
        self.port: int = self._listener.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all sessions and listen no more."""
        if not self._loop.is_running():
            return
        self._do(self._close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE)
        self._loop.close()

    def stop_at(self, *points: Point) -> None:
        """Stop the first session that comes to each of these points. What is stopped stays so until `go_on`."""
        self._do(lambda: self._stop_at.extend(points))

    def forget_stops(self) -> None:
        """Stop nobody any more."""
        self._do(self._stop_at.clear)

    def stopped(self) -> list[Stopped]:
        """Return who is stopped now, in the order of their coming; not those whose client is gone."""
        return self._do(lambda: list(self._stopped))

    def wait_until_stopped(self, seconds: float = DEADLINE) -> Stopped:
        """Wait until a session is stopped; return the first. Fails after the deadline."""
        return wait_until(self.stopped, what="a run stopped in the proxy", seconds=seconds)[0]

    def go_on(self) -> None:
        """Let all that are stopped go on."""
        self._do(lambda: [stopped.session.go_on() for stopped in self._stopped[:]])

    def reset(self, session: Session | None = None) -> list[Step | None]:
        """Break a session, or all, with a TCP RST to each side; return the steps that they were at.

        What is on its way is lost. A server behind a Unix socket gets an end of file in its place.
        """
        return self._do(lambda: [each.reset() for each in ([session] if session else self.sessions[:])])

    def go_dark(self) -> None:
        """Drop all that comes from either side from now on, ends of sessions as well: a black hole."""
        self._do(lambda: setattr(self, "is_dark", True))

    def light_up(self) -> None:
        """Be a proxy again, to new sessions. Those that were in the dark stay there until they are reset."""
        self._do(lambda: setattr(self, "is_dark", False))

    def _close(self) -> None:
        self._listener.close()
        for session in self.sessions[:]:
            session.reset()

    def _do(self, operation: Callable[[], T]) -> T:
        """Do something in the thread that moves the data."""
        done: Future[T] = Future()

        def do() -> None:
            try:
                done.set_result(operation())
            except BaseException as error:
                done.set_exception(error)

        self._loop.call_soon_threadsafe(do)
        return done.result(DEADLINE)

    def take_stop(self, step: Step | None, when: str) -> Point | None:
        """Return the point that is to be stopped at, which is the first comer's alone."""
        for point in self._stop_at:
            if (point.step, point.when) == (step, when):
                self._stop_at.remove(point)
                return point
        return None

    def note_stopped(self, stopped: Stopped) -> None:
        self._stopped.append(stopped)

    def forget_stopped(self, session: Session) -> None:
        self._stopped = [stopped for stopped in self._stopped if stopped.session is not session]


@dataclass(eq=False)
class Session:
    """One client's connection, with the one to the server that belongs to it."""

    proxy: Proxy
    step: Step | None = None
    """The request that is on its way, or was the last."""
    backend_pid: int = 0
    sides: dict[str, asyncio.Transport] = field(default_factory=dict)
    _inbox: dict[str, bytes] = field(default_factory=lambda: {"client": b"", "server": b""})
    _statements: dict[bytes, str] = field(default_factory=dict)
    _begun: bool = False
    _raw: bool = False
    _held: bytes | None = None
    """What has been let through so far of an answer that is to be stopped at its end."""
    _point: Point | None = None
    _stopped: bool = False
    _may_pass: bool = False
    _connecting: asyncio.Future[None] | None = None
    _dark: bool = False
    _server_is_gone: bool = False

    def connected(self, side: str, transport: asyncio.Transport) -> None:
        if self._dark:
            transport.abort()
            return
        self.sides[side] = transport
        # Small requests and answers, each at once.
        connection = transport.get_extra_info("socket")
        if connection.family == socket.AF_INET:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if side == "client":
            self.proxy.sessions.append(self)
        self._pump()

    def received(self, side: str, data: bytes) -> None:
        self._dark = self._dark or self.proxy.is_dark
        if not self._dark:
            self._inbox[side] += data
            self._pump()

    def lost(self, side: str) -> None:
        self._dark = self._dark or self.proxy.is_dark
        if self._dark:
            return
        if side == "server" and self._stopped:
            # The client comes to know when the flow goes on.
            self._server_is_gone = True
            return
        if side == "server" and self._held:
            self._send("client", self._held)
        self._end()

    def go_on(self) -> None:
        self.proxy.forget_stopped(self)
        self._stopped = False
        self._may_pass = self._held is None
        if self._held is not None:
            held, self._held = self._held, None
            self._send("client", held)
        self._pump()
        if self._server_is_gone:
            self._end()

    def reset(self) -> Step | None:
        for transport in self.sides.values():
            connection = transport.get_extra_info("socket")
            if connection.family == socket.AF_INET and connection.fileno() >= 0:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()
        self._forget()
        return self.step

    def _end(self) -> None:
        """End both sides when one has, after what was on its way; not after what is stopped."""
        for transport in self.sides.values():
            transport.close()
        self._forget()

    def _forget(self) -> None:
        self._dark = True
        self.proxy.forget_stopped(self)
        if self in self.proxy.sessions:
            self.proxy.sessions.remove(self)

    def _send(self, side: str, data: bytes) -> None:
        if not self.sides[side].is_closing():
            self.sides[side].write(data)

    def _pump(self) -> None:
        """Let through what may go."""
        for side, pass_on in (("server", self._from_server), ("client", self._from_client)):
            while not self._stopped and not self._dark and self._inbox[side]:
                message = self._next_message(side)
                if message is None or not pass_on(message):
                    break
                self._inbox[side] = self._inbox[side][len(message) :]

    def _next_message(self, side: str) -> bytes | None:
        data = self._inbox[side]
        if self._raw:
            return data
        length_at = 1 if self._begun else 0
        if len(data) < length_at + 4:
            return None
        end = length_at + int.from_bytes(data[length_at : length_at + 4], "big")
        return data[:end] if len(data) >= end else None

    def _from_client(self, message: bytes) -> bool:
        """Pass a message on; False when it has to wait."""
        if not self._begun:
            return self._from_new_client(message)
        statement = self._statement(message)
        if statement is not None:
            self.step = step_of(statement)
            if self._stops("before"):
                return False
            self._arm_after()
        self._send("server", message)
        return True

    def _from_new_client(self, message: bytes) -> bool:
        code = int.from_bytes(message[4:8], "big")
        if code in (SSL_REQUEST, GSSENC_REQUEST):
            self._send("client", b"N")
            return True
        self.step = Step.CONNECT
        if code != CANCEL_REQUEST and self._connecting is None and self._stops("before"):
            return False
        if "server" not in self.sides:
            if self._connecting is None:
                self._connecting = asyncio.ensure_future(self._connect())
            return False
        self._raw = code == CANCEL_REQUEST
        self._begun = True
        self._arm_after()
        self._send("server", message)
        return True

    async def _connect(self) -> None:
        loop, server = asyncio.get_running_loop(), self.proxy.server
        try:
            if isinstance(server, str):
                await loop.create_unix_connection(lambda: _Side(self, "server"), server)
            else:
                await loop.create_connection(lambda: _Side(self, "server"), *server)
        except OSError:
            self.reset()

    def _from_server(self, message: bytes) -> bool:
        if message[:1] == b"K" and not self._raw:
            self.backend_pid = int.from_bytes(message[5:9], "big")
        if self._held is None:
            self._send("client", message)
            return True
        self._held += message
        if message[:1] == b"Z" and self._point is not None:
            self._stop(self._point)
        return True

    def _statement(self, message: bytes) -> str | None:
        """Return the text of the statement that a message asks to be done."""
        kind, body = message[:1], message[5:]
        if kind == b"Q":
            return body.rstrip(b"\0").decode(errors="replace").strip()
        if kind == b"P":
            name, text, _ = body.split(b"\0", 2)
            self._statements[name] = text.decode(errors="replace").strip()
        if kind == b"B":
            return self._statements.get(body.split(b"\0", 2)[1], "")
        return None

    def _stops(self, when: str) -> bool:
        if self._may_pass:
            self._may_pass = False
            return False
        point = self.proxy.take_stop(self.step, when)
        if point is not None:
            self._stop(point)
        return point is not None

    def _arm_after(self) -> None:
        self._point = self.proxy.take_stop(self.step, "after")
        if self._point is not None:
            self._held = b""

    def _stop(self, point: Point) -> None:
        self._stopped = True
        self.proxy.note_stopped(Stopped(point, self.backend_pid, self))


class _Side(asyncio.Protocol):
    """One of the two ends of a session."""

    def __init__(self, session: Session, side: str) -> None:
        self._session = session
        self._side = side

    def connection_made(self, transport: Any) -> None:
        self._session.connected(self._side, transport)

    def data_received(self, data: bytes) -> None:
        self._session.received(self._side, data)

    def connection_lost(self, error: Exception | None) -> None:
        self._session.lost(self._side)
