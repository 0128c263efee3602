"""A TCP port on this machine: is it free, and if not, who listens there; and to listen at one."""

from __future__ import annotations

import errno
import os
import random
import socket
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psutil

# Below those for outgoing connections and for port 0 (Linux from 32768, macOS from 49152 on).
_PORTS_BY_HAND = (20_000, 32_768)
_QUESTION = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def free_port() -> int:
    """A port on 127.0.0.1 that nothing uses, and that the kernel gives to nobody by itself."""
    while True:
        port = random.randrange(*_PORTS_BY_HAND)
        if bind_error("127.0.0.1", port) is None:
            return port


def is_port_free(host: str, port: int) -> bool:
    """True when nothing listens there."""
    return bind_error(host, port) != errno.EADDRINUSE


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening TCP socket. `words` is its program's command line: look at it, never show it."""

    pid: int
    address: str
    port: int
    words: tuple[str, ...]


def read_listeners() -> tuple[Listener, ...]:
    """Listening sockets whose process this user may see."""
    return tuple(Listener(*one, _words(one[0])) for one in _listening())


def listening_pid(port: int) -> int | None:
    """The process that listens on the port, if this user may see it."""
    return next((pid for pid, _, its_port in _listening() if its_port == port), None)


def _listening() -> list[tuple[int, str, int]]:
    """(pid, address, port); some systems tell it to root only."""
    import psutil

    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.Error, PermissionError):
        return []
    return sorted(
        {
            (one.pid, one.laddr.ip, one.laddr.port)
            for one in connections
            if one.status == psutil.CONN_LISTEN and one.pid and one.laddr
        }
    )


def port_holder(port: int) -> tuple[int, str] | None:
    """(pid, program) of the process that listens on the port, if this user may see it."""
    import psutil

    pid = listening_pid(port)
    try:
        return None if pid is None else (pid, _program(psutil.Process(pid)))
    except psutil.Error:
        return None


def is_uds_served(path: str) -> bool:
    """Whether somebody listens on a socket file; a killed server leaves one that nobody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except PermissionError:
            return True  # another user's
        except OSError:
            return False
        return True


def remove_stale_uds(path: str) -> None:
    """Remove the socket file that a killed server left; OSError when it is not ours to remove."""
    try:
        is_socket = stat.S_ISSOCK(os.lstat(path).st_mode)
    except FileNotFoundError:
        return
    if is_socket and not is_uds_served(path):
        os.unlink(path)


def uds_answers_http(path: str, timeout_s: float, beginning: bytes = b"") -> bool:
    """The same as `answers_http` over a socket file, for an answer that begins so."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            connection.connect(path)
            connection.sendall(_QUESTION)
            answer = connection.recv(64)
            return answer != b"" and answer.startswith(beginning)
    except OSError:
        return False


def answers_http(host: str, port: int, timeout_s: float) -> bool:
    """Whether a new connection gets any answer to a question in HTTP, whatever it says."""
    try:
        with socket.create_connection((host, port), timeout_s) as connection:
            connection.sendall(_QUESTION)
            return connection.recv(1) != b""
    except OSError:
        return False


def describe_holder(port: int) -> str:
    """`ollama (pid 12)`, or nothing when this user may not see it."""
    holder = port_holder(port)
    return "" if holder is None else f"{holder[1]} (pid {holder[0]})"


def _program(process: psutil.Process) -> str:
    """`ollama`, or `python .../engine/__main__.py`: never further arguments, they may be secret."""
    name, words = process.name(), process.cmdline()
    script = next((word for word in words[1:2] if not word.startswith("-")), None)
    return f"{name} {script}" if name.startswith("python") and script else name


def _words(pid: int) -> tuple[str, ...]:
    import psutil

    try:
        return tuple(psutil.Process(pid).cmdline())
    except psutil.Error:
        return ()


def listen_at(family: int, address: tuple[Any, ...], backlog: int) -> socket.socket:
    """A TCP socket that listens at an address of `getaddrinfo`; OSError where it cannot be had."""
    # asyncio sends without a delay only where the protocol is said.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Listening, not only bound: with SO_REUSEADDR a second bind would succeed otherwise.
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener


def bind_error(host: str, port: int) -> int | None:
    """Why nothing can listen there, as an `errno`; None where something can."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror:
        return errno.EADDRNOTAVAIL
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as probe:
        # As servers do: without it, connections in TIME_WAIT would count as "in use".
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            return error.errno
    return None
