"""The server that `stoker batch` starts for itself: supervised as one of `stoker serve`, on a
socket file that only this user may open, and stopped with the same proof.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from app.commands.prepared_start import PreparedStart, run_here
from app.commands.serve import prepare
from app.errors import ExitCode, StokerError, UsageError
from app.launch.engine_launch import EnginePlace
from app.launch.launch_specs import parse_serve_request
from app.supervise.managed_server import ServerCare
from app.supervise.restart_policy import RestartPolicy
from engine.machine.ownership import temporary_base

if TYPE_CHECKING:
    from app.supervise.managed_server import ManagedServer

_START_S = 600.0  # without progress
_RESTARTS = 3
_POLL_S = 0.2

T = TypeVar("T")
Work = Callable[[str, threading.Event], T]
"""What is done with the server at an address, until it is done or the event is set."""


@dataclass(frozen=True, slots=True)
class OwnServer:
    """A model to serve; `served_name` is what the requests call it. None of either is the default.

    `deadline_s` is of the monotonic clock.
    """

    model: str
    served_name: str | None = None
    deadline_s: float | None = None


def with_own_server(own: OwnServer, work: Work[T]) -> tuple[ExitCode, T | None]:
    """Start a server, do the work, stop it. What the work returned last, None if it never began,
    and how the server ended.

    An engine that dies is started again, and the work begins anew. StokerError as of `serve`.
    """
    with tempfile.TemporaryDirectory(prefix="stoker-batch-", dir=_socket_place()) as folder:
        words = [own.model, f"--uds={Path(folder) / 'server.sock'}"]
        if own.served_name is not None:
            words.append(f"--served-model-name={own.served_name}")
        request = parse_serve_request(words)
        spec = prepare(request, EnginePlace(None, None), None, lambda _progress: None)

        def look_at_the_time() -> None:
            if own.deadline_s is not None and time.monotonic() >= own.deadline_s:
                raise StokerError(
                    f"the time was up before {own.model} was loaded",
                    hint="the same command tries again; --time-limit gives it longer",
                    exit_code=ExitCode.NOT_ENOUGH_EVIDENCE,
                )

        start = PreparedStart(
            spec,
            ServerCare(
                idle_probe_s=None, restart=RestartPolicy(is_on=True, max_restarts=_RESTARTS)
            ),
            model_name=request.served_name,
            timeout_s=_START_S,
            is_for_itself=True,
            while_starting=look_at_the_time,
        )
        worker = _Worker(spec.url, work)
        return ExitCode(run_here(start, worker.run)), worker.result


def _socket_place() -> str:
    """The folder for temporary files, or $XDG_RUNTIME_DIR where that is shorter: a socket's path
    has 107 bytes at most, and the folder of a job may be deep.
    """
    place = os.environ.get("XDG_RUNTIME_DIR")
    usable = [place] if place and os.access(place, os.W_OK | os.X_OK) else []
    return min([temporary_base(), *usable], key=len)


class _Worker(Generic[T]):
    """Does the work in a thread; the main thread looks after the server."""

    def __init__(self, url: str, work: Work[T]) -> None:
        self._url = url
        self._work = work
        self._error: BaseException | None = None
        self.result: T | None = None

    def run(self, server: ManagedServer, should_go_on: Callable[[], bool]) -> None:
        stop = threading.Event()
        thread = threading.Thread(target=self._do, args=(stop,), name="batch")
        thread.start()
        try:
            while thread.is_alive():
                if not should_go_on():
                    stop.set()
                server.log.take_events()
                thread.join(_POLL_S)
        finally:
            stop.set()
            thread.join()
        if self._error is not None:
            raise self._error

    def _do(self, stop: threading.Event) -> None:
        try:
            self.result = self._work(self._url, stop)
        except BaseException as error:  # raised again in the main thread
            self._error = error


def served_name_of(names: set[str]) -> str | None:
    """What the server has to be called for requests that name these models."""
    if len(names) > 1:
        raise UsageError(
            f"the requests name {len(names)} models: {', '.join(sorted(names)[:4])}",
            hint="one server has one model; leave `model` out of the bodies, or split the file",
        )
    return next(iter(names), None)
