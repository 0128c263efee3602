"""A real HTTP server on a free loopback port, in a thread, whose answers a test can change."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from engine.machine.ports import free_port


@dataclass
class Answer:
    """One HTTP answer; `chunks` are flushed one by one."""

    chunks: Iterable[bytes] = ()
    status: int = 200
    content_type: str = "text/plain"
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Call:
    """One request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Route = Callable[[Call], Answer]


@dataclass
class LocalServer:
    """Routes by path, with its query or without, else 404. `calls` is in order of arrival."""

    routes: dict[str, Route]
    port: int = 0
    calls: list[Call] = field(default_factory=list)
    _server: ThreadingHTTPServer | None = None
    _thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen; a second start takes the port of the first again, which nobody else is given."""
        handler = _handler(self)
        self.port = self.port or free_port()
        self._server = _Server(("127.0.0.1", self.port), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def stop(self) -> None:
        """Close the port and every open connection."""
        if self._server and self._thread:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
        self._server = self._thread = None


class _Server(ThreadingHTTPServer):
    allow_reuse_address = True
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news."""


def _not_found(_call: Call) -> Answer:
    return Answer([b"not found"], 404)


def _handler(server: LocalServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            call = Call(self.command, self.path, dict(self.headers), self.rfile.read(length))
            server.calls.append(call)
            plain = self.path.partition("?")[0]
            route = server.routes.get(self.path) or server.routes.get(plain, _not_found)
            answer = route(call)
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.content_type)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            for chunk in answer.chunks:
                self.wfile.write(chunk)
                self.wfile.flush()

        do_GET = do_POST = _answer

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    return Handler


@contextlib.contextmanager
def serving(routes: dict[str, Route]) -> Iterator[LocalServer]:
    """A started LocalServer, stopped at the end."""
    server = LocalServer(routes)
    server.start()
    try:
        yield server
    finally:
        server.stop()
