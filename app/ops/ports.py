"""Questions about a TCP port on this machine: is it free, and if not, who listens there."""

from __future__ import annotations

import errno
import random
import socket
from typing import TYPE_CHECKING

from app.errors import ExitCode, StokerError

if TYPE_CHECKING:
    import psutil

# Below those for outgoing connections and for port 0 (Linux from 32768, macOS from 49152 on).
_PORTS_BY_HAND = (20_000, 32_768)


def free_port() -> int:
    """A port on 127.0.0.1 that nothing uses, and that the kernel gives to nobody by itself."""
    while True:
        port = random.randrange(*_PORTS_BY_HAND)
        if _bind_error("127.0.0.1", port) is None:
            return port


def is_port_free(host: str, port: int) -> bool:
    """True when nothing listens there."""
    return _bind_error(host, port) != errno.EADDRINUSE


def require_free_port(host: str, port: int) -> None:
    """Raise StokerError naming who holds the port, or why it cannot be used at all."""
    problem = _bind_error(host, port)
    if problem is None:
        return
    if problem == errno.EADDRINUSE:
        raise StokerError(
            f"port {port} is in use{_by(describe_holder(port))}",
            hint=f"use another one: --port {port + 1 if port < 65535 else port - 1}",
            exit_code=ExitCode.ENGINE_FAILED_TO_START,
        )
    if problem == errno.EACCES:
        raise StokerError(
            f"this user may not listen on port {port}",
            hint="use a port from 1024 on",
            exit_code=ExitCode.ENGINE_FAILED_TO_START,
        )
    raise StokerError(
        f"this machine has no address {host} to listen on",
        hint="--host 127.0.0.1 (this machine only) or --host 0.0.0.0 (open to the network)",
        exit_code=ExitCode.USAGE,
    )


def port_holder(port: int) -> tuple[int, str] | None:
    """(pid, program) of the process that listens on the port, if this user may see it."""
    import psutil

    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.AccessDenied, PermissionError):
        return None
    for connection in connections:
        address = connection.laddr
        is_here = bool(address) and getattr(address, "port", None) == port
        if is_here and connection.status == psutil.CONN_LISTEN and connection.pid:
            try:
                return connection.pid, _program(psutil.Process(connection.pid))
            except psutil.Error:
                return None
    return None


def describe_holder(port: int) -> str:
    """`ollama (pid 12)`, or nothing when this user may not see it."""
    holder = port_holder(port)
    return "" if holder is None else f"{holder[1]} (pid {holder[0]})"


def url_host(host: str) -> str:
    """The host to connect to for a server that listens on `host`, written as in a URL."""
    reachable = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{reachable}]" if ":" in reachable else reachable


def _program(process: psutil.Process) -> str:
    """`ollama`, or `python .../engine/__main__.py`: never further arguments, they may be secret."""
    name, words = process.name(), process.cmdline()
    script = next((word for word in words[1:2] if not word.startswith("-")), None)
    return f"{name} {script}" if name.startswith("python") and script else name


def _by(holder: str) -> str:
    return f" by {holder}" if holder else ""


def _bind_error(host: str, port: int) -> int | None:
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
