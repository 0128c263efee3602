"""Refuses a port that a server cannot have, before anything is started."""

from __future__ import annotations

import errno

from app.errors import ExitCode, StokerError, UsageError
from engine.machine.ports import bind_error, describe_holder


def require_free_port(host: str, port: int) -> None:
    """Raise StokerError naming who holds the port, or why it cannot be used at all."""
    problem = bind_error(host, port)
    if problem is None:
        return
    if problem == errno.EADDRINUSE:
        raise _in_use(port)
    if problem == errno.EACCES:
        raise StokerError(
            f"this user may not listen on port {port}",
            hint="use a port from 1024 on",
            exit_code=ExitCode.ENGINE_FAILED_TO_START,
        )
    raise UsageError(
        f"this machine has no address {host} to listen on",
        hint="--host 127.0.0.1 (this machine only) or --host 0.0.0.0 (open to the network)",
    )


def _in_use(port: int) -> StokerError:
    """A server of ours is named, and can be stopped by that name."""
    from app.registry.server_registry import open_registry

    another = f"--port {port + 1 if port < 65535 else port - 1}"
    ours = [one for one in open_registry().running() if one.address[1] == port]
    if ours:
        name = ours[0].name
        what = f"port {port} is in use by the Stoker server {name}, {ours[0].model}"
        hint = f"use another one: {another}, or end it: stoker stop {name}"
    else:
        what = f"port {port} is in use{_by(describe_holder(port))}"
        hint = f"use another one: {another}"
    return StokerError(what, hint=hint, exit_code=ExitCode.ENGINE_FAILED_TO_START)


def _by(holder: str) -> str:
    return f" by {holder}" if holder else ""
