"""Real starts and stops of a small fake engine, or of ours, each followed by a search for remains.

Every process of a trial carries a mark in its environment, so that none can hide from the search.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from app.errors import StokerError
from app.launch.launch_specs import LaunchSpec
from app.registry.server_registry import ServerRecord, ServerRegistry
from app.selftest.terminal import start_in_terminal
from app.supervise.background import (
    BackgroundStart,
    leave_terminal,
    open_output,
    start_in_background,
)
from app.supervise.ending import StopTimes
from app.supervise.front import FrontLink, Show, serve_with_front
from app.supervise.managed_server import ManagedServer, ServerCare
from app.supervise.ownerless_files import remove_ownerless_files
from app.supervise.serving import ServingScreens, serve_until_stopped
from app.supervise.waiting import POLL_S, wait_until
from engine.machine.ports import free_port, is_port_free
from logparse import parse_lines

_MARK, _NAME = "STOKER_SELFTEST", "selftest"
_PATIENCE_S = 60.0  # on a busy machine an end takes its time
_START_S = 120.0
_TIMES = StopTimes(grace_s=1.0, group_s=1.0, kill_s=5.0)
STALL_S = 1.0
LOG_NAME = "engine.log"
NEIGHBOUR, _SHOWN = "neighbour", "shown"


class TrialFailed(Exception):
    """What was expected of the server did not come."""


@dataclass(frozen=True, slots=True)
class TrialResult:
    """`problem` is None when all was as it should be."""

    title: str
    seconds: float
    problem: str | None


@dataclass(frozen=True, slots=True)
class TrialTerminal:
    """A terminal with a dashboard. `has_neighbour`: `nohup stoker serve &` was typed there too."""

    show: Show
    ignores_hangups: bool = False
    has_neighbour: bool = False


@dataclass(frozen=True, slots=True)
class Trial:
    """One server from its start to its end: what is done to it, and how its supervisor must end.

    `may_be_done`: it may get ready just before it is interrupted, which is an end without fault.
    In a `terminal`, `exit_code` is that of the terminal.
    """

    title: str
    mode: str
    act: Callable[[RunningTrial], None]
    exit_code: int
    care: ServerCare = field(default=ServerCare(stall_s=STALL_S))
    may_be_done: bool = False
    terminal: TrialTerminal | None = None


@dataclass(frozen=True, slots=True)
class RunningTrial:
    """The supervisor process of a trial, with what it leaves on disk."""

    start: BackgroundStart
    registry: ServerRegistry
    folder: Path

    def record(self) -> ServerRecord:
        """The server's record, as soon as there is one."""
        wait_for(lambda: bool(self.registry.running()), "a record in the registry")
        return self.registry.running()[0]

    def wait_for_state(self, *states: str) -> None:
        """Until the record has one of these states."""
        wait_for(lambda: self.record().state in states, f"the state {' or '.join(states)}")

    def hold_state(self, state: str) -> None:
        """It stays so for twice as long as a stall takes."""
        if wait_until(lambda: self.record().state != state, 2 * STALL_S):
            raise TrialFailed(f"{state} became {self.record().state}")

    def wait_for_line(self, text: str) -> None:
        """Until the server has printed it."""
        log = self.folder / LOG_NAME
        wait_for(lambda: log.exists() and text in log.read_text(), f"the line {text!r}")

    def wait_for_phase(self, name: str) -> None:
        """Until the log says that this part of the start has begun."""
        wait_for(lambda: name in self._phases(), f"the phase {name!r}")

    def _phases(self) -> list[str]:
        log = self.folder / LOG_NAME
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return [phase.name for phase in parse_lines(lines).phases if phase.state != "absent"]

    def num_starts(self) -> int:
        """How many logs there are."""
        return len(list(self.folder.glob("*.log")))

    def neighbour(self) -> RunningTrial:
        """The other server of its terminal."""
        folder = self.folder / NEIGHBOUR
        return RunningTrial(self.start, ServerRegistry(folder / "servers"), folder)

    def wait_for_dashboard(self) -> None:
        """Until it is on the screen of its terminal."""
        wait_for((self.folder / _SHOWN).exists, "the dashboard")

    def close_terminal(self) -> None:
        """As the window's button does."""
        os.kill(self.start.pid, signal.SIGKILL)

    def wait_for_supervisor(self, record: ServerRecord) -> None:
        wait_for(lambda: not record.is_supervised(), "the supervisor's end", _PATIENCE_S)

    def guard(self) -> psutil.Process:
        """What ends the server when its supervisor cannot."""
        wait_for(self.has_guard, "a guard")
        return next(self._guards())

    def has_guard(self) -> bool:
        return any(True for _ in self._guards())

    def _guards(self) -> Iterator[psutil.Process]:
        for child in psutil.Process(self.record().supervisor_pid).children():
            with contextlib.suppress(psutil.Error):
                if "session_guard.py" in " ".join(child.cmdline()):
                    yield child

    def core(self) -> psutil.Process:
        """The server's own child, which stands for EngineCore."""
        return psutil.Process(self.record().pid).children()[0]


SpecMaker = Callable[[str], LaunchSpec]  # mode -> what to start


def fake_spec(mode: str) -> LaunchSpec:
    """The fake engine on a free port."""
    script, port = Path(__file__).with_name("engine.py"), free_port()
    return LaunchSpec(
        engine="selftest",
        argv=(sys.executable, "-I", "-S", str(script), str(port), mode),
        model="selftest",
        host="127.0.0.1",
        port=port,
        shutdown_timeout_s=0.5,
    )


def shared_memory(port: int) -> Path:
    """What the fake engine on this port leaves to whoever stops it."""
    return Path(f"/dev/shm/stoker-selftest-{port}")


def own_engine_spec(model: Path) -> SpecMaker:
    """Our engine on a folder; the mode is not used."""
    from app.launch.launch_specs import parse_serve_request, stoker_spec

    def make(mode: str) -> LaunchSpec:
        words = [str(model), f"--port={free_port()}", "--shutdown-timeout=1", "--enforce-eager"]
        return stoker_spec(parse_serve_request(words), str(model.absolute()), None)

    return make


def run_trial(trial: Trial, make_spec: SpecMaker, remains_s: float = _PATIENCE_S) -> TrialResult:
    """Start, act, wait for the end, look for remains."""
    began, mark = time.monotonic(), secrets.token_hex(8)
    spec = make_spec(trial.mode)
    spec = replace(spec, variables={**spec.variables, _MARK: mark})
    with tempfile.TemporaryDirectory(prefix="stoker.selftest.") as name:
        folder = Path(name)
        registry = ServerRegistry(folder / "servers")

        def make_server() -> ManagedServer:
            return _server(spec, registry, folder, trial.care)

        start = _start(make_server, spec.variables, trial.terminal, folder)
        running = RunningTrial(start, registry, folder)
        problem = None
        try:
            trial.act(running)
            code = _wait_for_end(start.pid)
            if code != trial.exit_code and not (trial.may_be_done and code == 0):
                problem = f"the supervisor ended with {code} instead of {trial.exit_code}"
        except TrialFailed as failed:
            problem = str(failed)
            _kill(start.pid)
        problem = problem or _remains(mark, spec, registry, remains_s)
        for process in marked_processes(mark):
            process.kill()
        shared_memory(spec.port).unlink(missing_ok=True)
        if problem is not None:
            problem += "".join(f"\n    {line}" for line in _last_lines(folder))
    return TrialResult(trial.title, time.monotonic() - began, problem)


def _start(
    make_server: Callable[[], ManagedServer],
    variables: dict[str, str],
    terminal: TrialTerminal | None,
    folder: Path,
) -> BackgroundStart:
    """The server is made in the process that looks after it."""
    output = folder / "out"
    if terminal is None:
        return start_in_background(lambda: _supervise(make_server(), _wait_while_running), output)

    def supervise(link: FrontLink) -> int:
        return _supervise(make_server(), lambda server, go_on: _watch(server, link, go_on))

    def run() -> int:
        if terminal.has_neighbour:
            _start_neighbour(folder / NEIGHBOUR, variables)
        if terminal.ignores_hangups:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        return serve_with_front(supervise, show)

    def show(log_path: Path, should_go_on: Callable[[], bool]) -> str:
        def note_and_ask() -> bool:
            (folder / _SHOWN).touch()
            return should_go_on()

        return terminal.show(log_path, note_and_ask)

    return start_in_terminal(run, output)


def _start_neighbour(folder: Path, variables: dict[str, str]) -> None:
    """In the same session as this process, and deaf to the end of its terminal."""
    folder.mkdir()
    spec = replace(fake_spec("good"), variables=variables)
    if os.fork() == 0:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        care = ServerCare(stall_s=STALL_S)
        server = _server(spec, ServerRegistry(folder / "servers"), folder, care)
        leave_terminal(open_output(folder / "out"))
        os._exit(_supervise(server, _wait_while_running))


def _watch(server: ManagedServer, link: FrontLink, should_go_on: Callable[[], bool]) -> None:
    link.show(server.log.path, should_go_on)


def run_cycles(count: int) -> TrialResult:
    """Start and stop the fake engine in this process, again and again: nothing may add up."""
    began, me = time.monotonic(), psutil.Process()
    with tempfile.TemporaryDirectory(prefix="stoker.selftest.") as name:
        folder = Path(name)
        _cycle(folder)  # what is loaded once is no leak
        before = _held(me, folder)
        for _ in range(count):
            _cycle(folder)
        after = _held(me, folder)
    more = [f"{key} {before[key]} -> {after[key]}" for key in before if after[key] > before[key]]
    problem = f"there are more of them now: {', '.join(more)}" if more else None
    return TrialResult(f"{count} starts and stops add nothing", time.monotonic() - began, problem)


def wait_for(is_met: Callable[[], bool], what: str, timeout_s: float = _START_S) -> None:
    """TrialFailed when it does not come true in time."""
    if not wait_until(is_met, timeout_s):
        raise TrialFailed(f"waited in vain for {what}")


def marked_processes(mark: str) -> Iterator[psutil.Process]:
    """Processes of a trial that still run."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            is_gone = process.status() == psutil.STATUS_ZOMBIE
            if not is_gone and process.environ().get(_MARK) == mark:
                yield process


def _supervise(
    server: ManagedServer, running: Callable[[ManagedServer, Callable[[], bool]], None]
) -> int:
    screens = ServingScreens(
        starting=lambda events: None,
        ready=lambda server: None,
        running=running,
        stopping=lambda: None,
        stopped=lambda report: None,
        backing_off=lambda back_off: None,
        starting_again=lambda: None,
    )
    try:
        return serve_until_stopped(server, screens, _START_S)
    except StokerError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def _server(
    spec: LaunchSpec, registry: ServerRegistry, folder: Path, care: ServerCare
) -> ManagedServer:
    log = folder / LOG_NAME
    return ManagedServer(spec, name=_NAME, log_path=log, registry=registry, times=_TIMES, care=care)


def _wait_while_running(server: ManagedServer, should_go_on: Callable[[], bool]) -> None:
    while should_go_on():
        time.sleep(POLL_S)


def _cycle(folder: Path) -> None:
    registry = ServerRegistry(folder / "servers")
    server = _server(fake_spec("good"), registry, folder, ServerCare(stall_s=STALL_S))
    server.start()
    server.wait_until_ready(_START_S, lambda: False, lambda: None)
    server.begin_service()
    server.stop()


def _held(me: psutil.Process, folder: Path) -> dict[str, int]:
    return {
        "descriptors": me.num_fds(),
        "threads": threading.active_count(),
        "children": len(me.children(recursive=True)),
        "files": sum(1 for path in folder.rglob("*") if path.is_file()),
    }


def _wait_for_end(pid: int) -> int:
    ended, status = 0, 0

    def has_ended() -> bool:
        nonlocal ended, status
        ended, status = os.waitpid(pid, os.WNOHANG)
        return ended != 0

    if not wait_until(has_ended, _PATIENCE_S):
        raise TrialFailed(f"the supervisor did not end within {_PATIENCE_S:g} s")
    return os.waitstatus_to_exitcode(status)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _remains(
    mark: str, spec: LaunchSpec, registry: ServerRegistry, patience_s: float
) -> str | None:
    """What is still there after a moment; the kernel needs one to end a killed tree."""
    found: list[str] = []

    def is_clean() -> bool:
        found[:] = [f"process {one.pid}" for one in marked_processes(mark)]
        if not is_port_free(spec.host, spec.port):
            found.append(f"port {spec.port}")
        if shared_memory(spec.port).exists():
            found.append("shared memory")
        found.extend(f"the record of {record.name}" for record in registry.all())
        if registry.socket_path(_NAME).exists():
            found.append("the status socket")
        remove_ownerless_files()
        return not found

    return None if wait_until(is_clean, patience_s) else f"left behind: {', '.join(found)}"


def _last_lines(folder: Path) -> list[str]:
    texts = [path.read_text(errors="replace") for path in folder.glob("*.log")]
    out = (folder / "out").read_text(errors="replace")
    return [line for text in (*texts, out) for line in text.splitlines()[-10:]]
