"""How `stoker serve` runs what it has checked: here, in the background, behind a dashboard."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from app.cli import exit_code_of
from app.output import say
from app.paths import START_TIMES, logs_dir, state_dir
from app.registry.server_registry import open_registry
from app.registry.states import SERVICE_STATES
from app.server_logs.log_sink import new_log_path
from app.supervise.background import (
    follow_start,
    leave_terminal,
    open_output,
    start_in_background,
)
from app.supervise.front import DETACH, FAILED, serve_with_front
from app.supervise.managed_server import ManagedServer
from app.supervise.serving import serve_until_stopped
from app.supervise.steady_output import steady_output
from app.views.serve import (
    ServeView,
    print_throughput,
    read_report,
    say_warnings,
    wait_quietly,
)
from app.watch.start_history import StartHistory

if TYPE_CHECKING:
    from app.launch.launch_specs import LaunchSpec
    from app.registry.server_registry import ServerRegistry
    from app.supervise.front import FrontLink
    from app.supervise.managed_server import ServerCare
    from app.views.serve import Running
    from logparse import Event


def _note_nothing(server: ManagedServer) -> None:
    """This start is not for the ledger."""


def _go_on() -> None:
    """Nothing but a signal ends the start."""


@dataclass(frozen=True, slots=True)
class PreparedStart:
    """A server that can be started now: nothing of it is left to be refused."""

    spec: LaunchSpec
    care: ServerCare
    model_name: str  # what clients call the model; its last part names a server without a name
    timeout_s: float  # without progress
    name: str | None = None
    note: Callable[[ManagedServer], None] = _note_nothing  # keeps what a start that got ready took
    is_for_itself: bool = False  # the command that starts it is its only client
    while_starting: Callable[[], None] = _go_on  # what it raises ends the start

    def free_name(self, registry: ServerRegistry) -> str:
        """The name that the server gets; UsageError if the wanted one is taken."""
        node = f"-node-{self.spec.node_rank}" if self.spec.is_headless else ""
        return registry.free_name(self.name, Path(self.model_name).name + node, self.spec.port)


def end_at_once(server: ManagedServer, should_go_on: Callable[[], bool]) -> None:
    """It was only to be seen that it gets ready."""


def run_here(start: PreparedStart, running: Running | None = None) -> int:
    """Until the server has stopped; `running` is what happens while it serves."""
    registry = open_registry()
    name = start.free_name(registry)
    log_path = new_log_path(logs_dir(), name)
    server = ManagedServer(
        start.spec, name=name, log_path=log_path, registry=registry, care=start.care
    )
    usual = wait_quietly if start.care.is_background else print_throughput
    history = StartHistory(state_dir() / START_TIMES)
    greets = not start.is_for_itself
    with steady_output(), ServeView(server, history, start.note, greets=greets) as view:
        screens = view.screens(running or usual)

        def starting(events: tuple[Event, ...]) -> None:
            start.while_starting()
            screens.starting(events)

        return serve_until_stopped(server, replace(screens, starting=starting), start.timeout_s)


def run_detached(start: PreparedStart) -> int:
    """Start in the background; the start is shown here until it is over."""
    registry = open_registry()
    name = start.free_name(registry)

    def supervise() -> int:
        return exit_code_of(lambda: run_here(replace(start, name=name)), debug=False)

    def is_ready() -> bool:
        running = (one for one in registry.running() if one.name == name)
        return any(one.state in SERVICE_STATES for one in running)

    started = start_in_background(supervise, logs_dir() / f"{name}.out")
    code = follow_start(started, is_ready, lambda text: print(text, end="", file=sys.stderr))
    if code is not None:
        return code
    log_path = next((one.log_path for one in registry.running() if one.name == name), None)
    if log_path is not None:
        say_warnings(read_report(Path(log_path)), name)
    _say_detached(name, start.spec.addresses)
    return 0


def run_with_front(start: PreparedStart) -> int:
    """The dashboard is shown by this process, the server looked after by another one."""

    def supervise(link: FrontLink) -> int:
        with steady_output():
            return exit_code_of(lambda: run_here(start, _watched(link)), debug=False)

    return serve_with_front(supervise, _dashboard_of(start.spec))


def _watched(link: FrontLink) -> Running:
    """Until the user ends the server; when the user detaches, it goes on in the background."""

    def running(server: ManagedServer, should_go_on: Callable[[], bool]) -> None:
        if server.care.is_background:
            wait_quietly(server, should_go_on)
            return
        end = link.show(server.log.path, should_go_on)
        if end == DETACH:
            _detach(server, link)
            wait_quietly(server, should_go_on)
        elif end == FAILED:
            print_throughput(server, should_go_on)

    return running


def _detach(server: ManagedServer, link: FrontLink) -> None:
    server.go_to_background()
    _say_detached(server.name, server.spec.addresses)
    leave_terminal(open_output(logs_dir() / f"{server.name}.out"))
    link.let_go()


def _say_detached(name: str, addresses: str) -> None:
    print(f"ready at {addresses}, {name} runs in the background", flush=True)
    say(f"next: stoker status {name}, stoker attach {name}, stoker stop {name}")


def _dashboard_of(spec: LaunchSpec) -> Callable[[Path, Callable[[], bool]], str]:
    """What the front shows; one start after the other, the history goes on."""
    from app.commands.top import new_history

    history = new_history()

    def show(log_path: Path, should_go_on: Callable[[], bool]) -> str:
        from app.commands.top import open_dashboard

        try:
            return open_dashboard(
                spec.url,
                api_key=spec.api_key,
                log_path=log_path,
                server_alive=should_go_on,
                history=history,
                is_owner=True,
            )
        except Exception as error:  # of a screen: no reason to end the server
            say(f"note: {error}; the server goes on, Ctrl-C stops it")
            return FAILED

    return show
