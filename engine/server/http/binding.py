"""The listening socket: taken before anything slow, so that a port in use is known at once."""

from __future__ import annotations

import errno
import os
import socket

from engine.errors import ConfigError
from engine.machine.ports import is_uds_served, listen_at, remove_stale_uds

_BACKLOG = 2048


def bind_socket(host: str, port: int) -> socket.socket:
    """Bind and listen; port 0 picks a free one. OSError when the address cannot be had."""
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port {port} is out of range; it must be from 0 to 65535.")
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    # `localhost` may name ::1 first, while most clients try 127.0.0.1.
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    family, _, _, _, address = found[0]
    sock = listen_at(family, address, _BACKLOG)
    sock.setblocking(False)
    return sock


def bind_uds(path: str) -> socket.socket:
    """Listen on a socket file that only this user may open.

    One that a killed server left is replaced; ConfigError for one that somebody listens on, and for
    any other file.
    """
    if is_uds_served(path):
        raise ConfigError(f"--uds {path} is in use by a server that answers; name another file.")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        remove_stale_uds(path)
        sock.bind(path)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        why = "a file is there" if error.errno == errno.EADDRINUSE else error.strerror or error
        raise ConfigError(f"--uds {path} cannot be listened on: {why}.") from error
    finally:
        os.umask(before)
    sock.setblocking(False)
    return sock


def explain_bind_error(error: OSError, host: str, port: int) -> str:
    """What was asked, why it failed, and what to type instead."""
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} is already in use on {host}; stop the program that holds it, or use "
            "--port N with another number (--port 0 picks a free one)."
        )
    if error.errno == errno.EACCES:
        return f"port {port} needs more rights than this user has; use --port N with N above 1023."
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return f"--host {host} is no address of this machine; use 127.0.0.1, or 0.0.0.0 for all."
    return f"cannot listen on {host} port {port}: {error}."


def socket_url(sock: socket.socket) -> str:
    """`http://host:port` or `unix:PATH` of a listening socket."""
    if sock.family == socket.AF_UNIX:
        return f"unix:{sock.getsockname()}"
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
