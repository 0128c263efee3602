"""Connections: how many there may be, and how long a client may take to say what it wants.

Without that, idle connections use up the process's file descriptors, and nobody is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.types import Scope
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState as UvicornState

from engine.logger import get_logger

logger = get_logger(__name__)

WANTED_OPEN_FILES = 65_535  # as vLLM's utils/system_utils.py
_RESERVED_FILES = 160  # sockets to EngineCore, logs, libraries, the grammar process
_FEW_OPEN_FILES = 4096
_SAY_AGAIN_S = 60.0
_STATE_KEY = "connection"

_TOO_MANY = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 5\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%s"
)
_TOO_MANY_BODY = (
    b'{"error":{"message":"The server has as many connections as it can hold; try again.",'
    b'"type":"ServiceUnavailableError","param":null,"code":"too_many_connections"}}'
)
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """`head_s` is for a request's first line and headers, `body_s` for its body."""

    max_connections: int
    head_s: float = 60.0
    body_s: float = 300.0


def raise_open_files_limit() -> ConnectionLimits:
    """Let this process open as many files as vLLM's, if it may; returns what that is enough for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, WANTED_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # then the smaller number has to do
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    number = WANTED_OPEN_FILES if soft == resource.RLIM_INFINITY else soft
    if number < _FEW_OPEN_FILES:
        logger.warning(
            "This process may open %d files, which is enough for %d connections; allow more with "
            "ulimit -n %d.",
            number,
            _connections(number),
            WANTED_OPEN_FILES,
        )
    return ConnectionLimits(_connections(number))


def _connections(open_files: int) -> int:
    return max(open_files - _RESERVED_FILES, open_files // 4, 1)


class Connections:
    """Those of one server, the oldest first; `protocol` is uvicorn's with these limits."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._open: dict[_BoundedProtocol, None] = {}
        self._unsent: list[_BoundedProtocol] = []
        self._told = _Sometimes()

    def protocol(
        self,
        config: Config,
        server_state: UvicornState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> asyncio.Protocol:
        """What uvicorn calls for each new connection."""
        return _BoundedProtocol(self, config, server_state, app_state, _loop)

    def admit(self, newcomer: _BoundedProtocol) -> bool:
        """Take a connection in, for the oldest idle one if need be; False when all are at work."""
        if len(self._open) >= self.limits.max_connections:
            idle = next((connection for connection in self._open if connection.is_idle), None)
            self._told.warn(
                "There are %d connections, the most that the limit on open files allows; idle "
                "ones are closed for new ones.",
                len(self._open),
            )
            if idle is None:
                return False
            self.remove(idle)
            idle.transport.close()
        self._open[newcomer] = None
        return True

    def remove(self, connection: _BoundedProtocol) -> None:
        self._open.pop(connection, None)

    def send_soon(self, connection: _BoundedProtocol) -> None:
        """Send what it has together with what others have, before any task runs that is woken from
        now on.

        One after the other in between, each would give the core to the client that it wakes, and
        find its caches full of the client's.
        """
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._send_all)
        self._unsent.append(connection)

    def _send_all(self) -> None:
        unsent, self._unsent = self._unsent, []
        for connection in unsent:
            connection.send_parts()


def connection_of(scope: Scope) -> Connection | None:
    """The connection that a request came over; None where another kind of server runs the app."""
    connection: Connection | None = scope.get("state", {}).get(_STATE_KEY)
    return connection


class Connection(Protocol):
    """What a request may ask of its connection."""

    @property
    def can_write(self) -> bool:
        """Whether the answer has begun and can go on without waiting for the client."""

    def write(self, data: bytes) -> None:
        """Send a part of the answer's body soon, past the application's wrappers."""

    @property
    def is_lost(self) -> bool:
        """Whether it has ended, whoever closed it."""

    def bind(self, task: asyncio.Task[Any]) -> None:
        """Cancel the task, once it has begun, when the connection is lost; one at a time."""

    def unbind(self, task: asyncio.Task[Any]) -> None:
        """Let it be; harmless where the next request's is bound already."""


class _BoundedProtocol(H11Protocol):
    def __init__(self, all_of_them: Connections, *args: Any) -> None:
        super().__init__(*args)
        self._all = all_of_them
        self.app_state = {**self.app_state, _STATE_KEY: self}
        self._deadline: asyncio.TimerHandle | None = None
        self._timed: RequestResponseCycle | None = None  # whose body has a deadline
        self._parts: list[bytes] = []  # of the answer, to be sent soon
        self._bound: asyncio.Task[Any] | None = None
        self.is_lost = False

    @property
    def is_idle(self) -> bool:
        """True while it waits for a request."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def can_write(self) -> bool:
        """Whether the body of the answer that has begun can go on at once."""
        cycle = self.cycle
        return (
            cycle.response_started
            and not self.flow.write_paused
            and not cycle.disconnected
            and not cycle.response_complete
            and not self.transport.is_closing()
        )

    def write(self, data: bytes) -> None:
        """A chunk of the body; to a client of HTTP/1.0, which knows no chunks, the data alone."""
        is_chunked = self.cycle.scope["http_version"] != "1.0"
        if not self._parts:
            self._all.send_soon(self)
        self._parts.append(b"%x\r\n%b\r\n" % (len(data), data) if is_chunked else data)

    def send_parts(self) -> None:
        """Send what was to be sent soon."""
        parts, self._parts = self._parts, []
        if not self.transport.is_closing():
            self.transport.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def bind(self, task: asyncio.Task[Any]) -> None:
        """Cancel the task, once it has begun, when the connection is lost."""
        self._bound = task
        self.flow.resume_reading()  # else nothing tells that the client has gone
        if self.is_lost:
            self.loop.call_soon(task.cancel)

    def unbind(self, task: asyncio.Task[Any]) -> None:
        if self._bound is task:
            self._bound = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not self._all.admit(self):
            transport.write(_TOO_MANY % (len(_TOO_MANY_BODY), _TOO_MANY_BODY))
            transport.close()
            return
        self._set_deadline(self._all.limits.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        self._all.remove(self)
        super().connection_lost(exc)
        self.is_lost = True
        if self._bound is not None:
            self._bound.cancel()

    def handle_events(self) -> None:
        super().handle_events()
        if self.transport.is_closing():
            return
        if self.is_idle:
            if self._deadline is None:  # the next request, or what is left of the last one
                self._set_deadline(self._all.limits.head_s)
        elif not self.cycle.more_body:
            self._cancel_deadline()
        elif self._timed is not self.cycle:
            self._timed = self.cycle
            self._set_deadline(self._all.limits.body_s)

    def on_response_complete(self) -> None:
        self._cancel_deadline()
        super().on_response_complete()

    def _set_deadline(self, seconds: float) -> None:
        self._cancel_deadline()
        self._deadline = self.loop.call_later(seconds, self._give_up)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        if self.transport.is_closing():
            return
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            self.transport.write(_TOO_SLOW)
        self.transport.close()


class _Sometimes:
    """Warns at once, and again when a while has passed."""

    def __init__(self) -> None:
        self._last_s: float | None = None

    def warn(self, message: str, *values: object) -> None:
        now = time.monotonic()
        if self._last_s is None or now - self._last_s >= _SAY_AGAIN_S:
            self._last_s = now
            logger.warning(message, *values)


def exception_handler() -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """For the event loop: a failed accept is one line now and then, not a traceback each."""
    told = _Sometimes()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "accept" in str(context.get("message")) and isinstance(
            context.get("exception"), OSError
        ):
            told.warn("No connection can be accepted: %s.", context["exception"])
        else:
            loop.default_exception_handler(context)

    return handle
