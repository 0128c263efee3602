"""Serves the supervisor's own pages: on a unix socket (0600), and over HTTP where a port is given.

The socket lies beside the server's record; where that path is too long for the kernel, in a folder
below the temporary one that is named after this process.
"""

from __future__ import annotations

import contextlib
import http.server
import os
import socket
import socketserver
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.errors import ExitCode, StokerError
from app.supervise.status_pages import Page
from engine.machine.ownership import temporary_base
from engine.machine.ports import describe_holder

LOOPBACK = "127.0.0.1"
_LONGEST_SOCKET_PATH = 100  # bytes; the kernel takes 107, or 103 on macOS
_REQUEST_TIMEOUT_S = 5.0
Answer = Callable[[str], Page]


class StatusEndpoint:
    """Answers from the moment it is opened until `close`."""

    def __init__(self, answer: Answer) -> None:
        self._handler = _handler(answer)
        self._listeners: list[_Listener] = []
        self._socket_path: Path | None = None

    def open_port(self, port: int, host: str = LOOPBACK) -> None:
        """Listen on `host`; StokerError when that is not possible."""
        kind = _TcpServer6 if ":" in host else _TcpServer
        try:
            server = kind((host, port), self._handler)
        except OSError as error:
            holder = describe_holder(port)
            by = f" by {holder}" if holder else ""
            raise StokerError(
                f"--status-port {port} cannot be used: {error.strerror}{by}",
                hint="choose another port",
                exit_code=ExitCode.ENGINE_FAILED_TO_START,
            ) from error
        self._listeners.append(_Listener(server))

    def open_socket(self, path: Path) -> Path:
        """Listen on a unix socket; says where it lies."""
        if len(os.fsencode(path)) > _LONGEST_SOCKET_PATH:
            folder = tempfile.mkdtemp(prefix=f"stoker-{os.getpid()}-", dir=temporary_base())
            path = Path(folder, "status.sock")
        path.unlink(missing_ok=True)  # of a supervisor that was killed
        before = os.umask(0o177)
        try:
            server = _UnixServer(str(path), self._handler)  # type: ignore[arg-type]
        finally:
            os.umask(before)
        self._socket_path = path
        self._listeners.append(_Listener(server))
        return path

    def close(self) -> None:
        """Answer no more, and leave no socket file."""
        while self._listeners:
            self._listeners.pop().close()
        path, self._socket_path = self._socket_path, None
        if path is not None:
            path.unlink(missing_ok=True)
            if path.name == "status.sock":
                path.parent.rmdir()


class _TcpServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away in the middle is nobody's concern."""


class _TcpServer6(_TcpServer):
    address_family = socket.AF_INET6


class _UnixServer(_TcpServer):
    address_family = socket.AF_UNIX
    allow_reuse_address = False


class _Listener:
    """One listening socket and its thread."""

    def __init__(self, server: _TcpServer) -> None:
        self._server = server
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="status-endpoint", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wake the thread, which waits without a limit, by a connection."""
        self._is_over = True
        with contextlib.suppress(OSError), socket.socket(self._server.address_family) as waker:
            waker.connect(self._server.server_address)
        self._thread.join(_REQUEST_TIMEOUT_S)
        self._server.server_close()

    def _run(self) -> None:
        while not self._is_over:
            self._server.handle_request()


def _handler(answer: Answer) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = _REQUEST_TIMEOUT_S

        def do_GET(self) -> None:
            found = answer(self.path.partition("?")[0])
            body = found.body.encode()
            self.send_response(found.code)
            self.send_header("Content-Type", found.content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            """Probes come every few seconds."""

    return Handler
