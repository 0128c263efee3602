"""The client's errors as the commands': what to type and the exit code, in the same words for all.

The client itself (app.client) knows neither exit codes nor the names of our options.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from app.client.errors import (
    BadStatus,
    ClientError,
    InvalidKeyFile,
    InvalidRecording,
    InvalidUrl,
    ModelNotServed,
    ServerLoading,
    Unauthorized,
    Unreachable,
)
from app.errors import ExitCode, StokerError, UsageError
from app.registry.server_registry import ServerRecord, open_registry

API_KEY = "API key into STOKER_API_KEY, or into a file for --api-key-file"
LOADING = "the server is there and loads its model: ask again in a moment"
START_ONE = "start one with `stoker serve`"
_MISTAKES = (InvalidUrl, InvalidKeyFile, InvalidRecording)


@contextlib.contextmanager
def client_errors(
    api_key: str | None = None, *, absent: str | None = None, key: str = API_KEY
) -> Iterator[None]:
    """Turn the client's errors into the command's."""
    try:
        yield
    except ClientError as error:
        raise explained(error, api_key, absent=absent, key=key) from error


def explained(
    error: ClientError,
    api_key: str | None = None,
    *,
    absent: str | None = None,
    key: str = API_KEY,
) -> StokerError:
    """The error with its exit code, and what to do about it.

    `absent` is what to do when nothing answers, else the servers here are named; `key` is which
    secret it wants and where that goes.
    """
    if isinstance(error, _MISTAKES):
        return UsageError(str(error))
    if isinstance(error, Unreachable):
        hint = absent or absent_hint(str(error))
        return StokerError(str(error), hint=hint, exit_code=ExitCode.UNREACHABLE)
    if isinstance(error, Unauthorized):
        hint = f"this one is refused; put the right {key}" if api_key else f"put the {key}"
        return StokerError(str(error), hint=hint, exit_code=ExitCode.UNREACHABLE)
    if isinstance(error, ServerLoading):
        return StokerError(str(error), hint=LOADING, exit_code=ExitCode.UNREACHABLE)
    if isinstance(error, BadStatus) and error.url.endswith("/metrics"):
        return _without_metrics(error)
    if isinstance(error, ModelNotServed):
        return StokerError(str(error), hint="leave --model out to take the server's first one")
    return StokerError(str(error))


def absent_hint(error: str) -> str:
    """What to type when nothing answers: the servers that do run here, or how to start one."""
    records = open_registry().running()
    if not records:
        return f"{START_ONE}, or give the address of another: http://HOST:PORT"
    for record in records:
        if record.url in error:
            return f"`stoker status {record.name}` says how it is"
    return running_hint(records)


def running_hint(records: Sequence[ServerRecord]) -> str:
    """The servers that a word could have meant."""
    if not records:
        return f"none runs now; {START_ONE}"
    return f"servers: {', '.join(f'{record.name} ({record.url})' for record in records)}"


def _without_metrics(error: BadStatus) -> StokerError:
    """It answers, but there is nothing to watch."""
    from app.client.metrics.absence import metrics_hint

    hint = metrics_hint(error.status) or absent_hint(error.url)
    return StokerError(str(error), hint=hint, exit_code=ExitCode.UNREACHABLE)
