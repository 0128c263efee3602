"""What `stoker serve` prints around and beside the dashboard: start, service as lines, end."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from app import output
from app.client import formatting
from app.views.start import StartView
from engine.machine.sizes import human_bytes

if TYPE_CHECKING:
    from app.launch.launch_specs import LaunchSpec
    from app.supervise.ending import StopReport
    from app.supervise.managed_server import ManagedServer
    from app.supervise.serving import BackOff, ServingScreens
    from app.watch.start_history import StartHistory
    from logparse import Event, LogReport

_FOLLOW_POLL_S = 0.2
_WORST_RANKS = 3  # of a warning: it costs correctness, capacity or speed
_MOST_WARNINGS = 3
# One is said before the start, for every engine; the other is what a model's makers wanted, which
# `stoker logs` tells whoever asks.
_NOT_OF_A_START = ("no-api-key", "sampling-defaults")
Running = Callable[["ManagedServer", Callable[[], bool]], None]


class ServeView:
    """Context manager around the whole life of a server; every start gets a view of its own."""

    def __init__(
        self,
        server: ManagedServer,
        history: StartHistory,
        on_ready: Callable[[ManagedServer], None] = lambda server: None,
        *,
        greets: bool = True,
    ) -> None:
        """Without `greets` nobody is told how the server can be asked."""
        self._server = server
        self._greets = greets
        self._spec = server.spec
        self._history = history
        self._on_ready = on_ready
        self._start = self._new_start()

    def __enter__(self) -> ServeView:
        self._start.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._start.close("not finished")

    def screens(self, running: Running) -> ServingScreens:
        """This view as `serve_until_stopped` calls it, one function per state."""
        from app.supervise.serving import ServingScreens

        return ServingScreens(
            starting=self._starting,
            ready=self._ready,
            running=running,
            stopping=self._stopping,
            stopped=self._stopped,
            backing_off=self._backing_off,
            starting_again=self._starting_again,
        )

    def _new_start(self) -> StartView:
        typical = self._history.typical(self._spec.engine, self._spec.model)
        where = (
            f"for node 0 at {self._spec.host}"
            if self._spec.is_headless
            else f"on {self._spec.addresses}"
        )
        return StartView(f"starting {self._spec.model} {where}", typical)

    def _starting(self, events: tuple[Event, ...]) -> None:
        _say_told(self._server)
        self._start.show(events)

    def _ready(self, server: ManagedServer) -> None:
        self._start.close()
        self._remember()
        if self._greets and not server.care.is_background:
            say_warnings(server.log.report(), server.name)
            _print_ready(server)
        self._on_ready(server)

    def _remember(self) -> None:
        from app.watch.start_history import StartTimes

        times = StartTimes(self._server.elapsed_s(), self._start.phase_seconds())
        try:
            self._history.add(self._spec.engine, self._spec.model, times)
        except OSError as error:
            output.say(f"note: the time of this start is not kept: {error.strerror}")

    def _stopping(self) -> None:
        from app.launch.engines import LLAMA_CPP

        self._start.close("stopped")
        _say_told(self._server)
        drain = f"; running requests get up to {self._spec.shutdown_timeout_s:g} s"
        has_requests = self._spec.engine != LLAMA_CPP and not self._spec.is_headless
        drain = drain if has_requests else ""  # llama-server ends them at once
        output.say(f"stopping the server{drain} (Ctrl-C again to hurry)")

    def _stopped(self, report: StopReport) -> None:
        _print_stopped(report, self._spec)
        _say_news(self._server)
        warn_of_incomplete_log(self._server)

    def _backing_off(self, back_off: BackOff) -> None:
        self._start.close("not finished")
        output.say(f"error: {back_off.error}")
        if back_off.error.hint:
            output.say(f"hint: {back_off.error.hint}")
        number = f"restart {back_off.number} of {back_off.limit}"
        output.say(f"{number} in {back_off.delay_s:g} s (Ctrl-C: end)")

    def _starting_again(self) -> None:
        self._start = self._new_start()
        self._start.__enter__()


def say_warnings(report: LogReport, name: str) -> None:
    """What the log of a start warns of, and costs correctness, capacity or speed."""
    shown = (one for one in report.insight.warnings if one.id not in _NOT_OF_A_START)
    found = [one for one in shown if one.rank <= _WORST_RANKS]
    for warning in found[:_MOST_WARNINGS]:
        output.say(f"warning: {warning.title}")
        for fix in warning.fixes[:1]:
            output.say(f"hint: {fix.text}: {fix.command}" if fix.command else f"hint: {fix.text}")
    if found[_MOST_WARNINGS:]:
        output.say(f"{len(found) - _MOST_WARNINGS} more: stoker logs {name}")


def read_report(log_path: Path) -> LogReport:
    """What the log of a start says so far."""
    from logparse import LogParser
    from logparse.reading.log_parts import open_log
    from logparse.reading.source import decoded_lines

    parser = LogParser(tells_events=False)
    with open_log(log_path) as stream:
        for line in decoded_lines(stream):
            parser.feed(line)
    return parser.report()


def wait_quietly(server: ManagedServer, should_go_on: Callable[[], bool]) -> None:
    """In the background nobody reads along: only what is wrong is said."""
    while should_go_on():
        _say_news(server)
        server.log.take_events()
        time.sleep(_FOLLOW_POLL_S)


def print_throughput(server: ManagedServer, should_go_on: Callable[[], bool]) -> None:
    """Print a line whenever the server's log has new throughput numbers."""
    has_warned = False
    while should_go_on():
        _say_news(server)
        if not has_warned:
            has_warned = warn_of_incomplete_log(server)
        if _has_throughput(server.log.take_events()):
            print(_throughput_line(server), flush=True)
        time.sleep(_FOLLOW_POLL_S)


def warn_of_incomplete_log(server: ManagedServer) -> bool:
    """Say why the log is incomplete, if it is."""
    if server.log.write_error is None:
        return False
    output.say(f"warning: the log {server.log.path} is incomplete: {server.log.write_error}")
    return True


def _say_told(server: ManagedServer) -> None:
    for text in server.take_told():
        output.say(text)


def _say_news(server: ManagedServer) -> None:
    _say_told(server)
    for note in server.take_notes():
        output.say(f"warning: {note}; the server goes on")
    if (reason := server.take_stall()) is not None:
        output.say(f"warning: the server is stalled: {reason}")


def _has_throughput(events: tuple[Event, ...]) -> bool:
    from logparse import FactFound

    wanted = ("prompt_tokens_per_s", "generation_tokens_per_s", "num_running", "num_waiting")
    return any(isinstance(event, FactFound) and event.key in wanted for event in events)


def _throughput_line(server: ManagedServer) -> str:
    facts = server.log.report().facts
    values = (
        ("prompt", facts.prompt_tokens_per_s, _speed),
        ("generation", facts.generation_tokens_per_s, _speed),
        ("running", facts.num_running, formatting.count),
        ("waiting", facts.num_waiting, formatting.count),
        ("KV cache", facts.kv_usage_percent, lambda value: formatting.percent(value / 100)),
    )
    shown = (f"{title} {text(value)}" for title, value, text in values if value is not None)
    return f"{time.strftime('%H:%M:%S')}  {'  '.join(shown)}"


def _speed(value: float) -> str:
    return f"{formatting.rate(value)} tok/s"


def _print_ready(server: ManagedServer) -> None:
    took = formatting.age(server.elapsed_s())
    if server.spec.is_headless:
        print(f"ready: this node serves node 0 ({took}), log {server.log.path}", flush=True)
        output.say("next: ask node 0, which has the API server    (Ctrl-C here ends all nodes)")
        return
    print(f"ready at {server.spec.addresses} ({took}), log {server.log.path}", flush=True)
    if server.care.service.address is not None:
        return  # nobody sits there to type anything
    from app.client.transport import DEFAULT_URL

    address = "" if server.spec.url == DEFAULT_URL else f" {server.spec.url}"
    tasks = server.log.report().facts.supported_tasks
    asking = f'echo "Hello" | stoker chat{address}'
    if tasks is not None and "generate" not in tasks:
        asking = embedding_command(server.spec.url, has_key=server.spec.api_key is not None)
    output.say(f"next: {asking}    (Ctrl-C here stops the server)")


def embedding_command(url: str, *, has_key: bool) -> str:
    """What asks a server that writes no text for a vector."""
    key = ' -H "Authorization: Bearer $STOKER_API_KEY"' if has_key else ""
    kind = "-H 'Content-Type: application/json'"
    return f'curl {url}/v1/embeddings {kind}{key} -d \'{{"input": "Hello"}}\''


def _print_stopped(report: StopReport, spec: LaunchSpec) -> None:
    port = "free" if report.is_port_free else "still in use"
    processes = "1 process" if report.num_ended == 1 else f"{report.num_ended} processes"
    freed = report.gpu_freed_bytes
    memory = f", {human_bytes(freed)} of GPU memory back" if freed else ""
    memory = "" if report.gpu_left else memory
    place = "" if spec.is_headless else f", {spec.place} {port}"
    output.say(f"stopped: {processes} ended{place}{memory}")
