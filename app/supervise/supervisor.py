"""Runs one server as a child: starts it, keeps its log, and stops it so that nothing is left.

Knows nothing of phases, screens or models. Signals reach it as calls to `stop` and `hurry`.
"""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from app.errors import StokerError
from app.launch.engines import STOKER
from app.launch.launch_specs import LaunchSpec
from app.server_logs.log_sink import LogSink
from app.supervise.child_process import spawn_server, start_guard, tell_guard
from app.supervise.ending import StopReport, StopTimes, end_tree, seen_after
from app.supervise.gpu_release import GpuWitness
from app.supervise.process_tree import ProcessTree, new_mark
from app.supervise.shared_files import SharedFiles
from app.supervise.waiting import wait_until
from engine.env import device_starts
from engine.machine.ports import remove_stale_uds
from engine.machine.processes import is_stopped, process_identity

_LOG_GRACE_S = 4.0
_WATCH_INTERVAL_S = 1.0
_NOTE_FILES_S = 2.0
_GUARD_S = 12.0  # it has nothing to end any more
_PRIVATE = 0o077  # of what a server on a socket file makes, that file above all


class Supervisor:
    """One server process tree. Start it from the main thread: the child dies with that thread."""

    def __init__(
        self, spec: LaunchSpec, sink: LogSink, times: StopTimes | None = None, nvml: Any = None
    ) -> None:
        self._spec = spec
        self._sink = sink
        self._times = times or StopTimes()
        self._is_hurried = False  # a plain bool: signal handlers write it
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._mark = ""
        self._drain: threading.Thread | None = None
        self._tree: ProcessTree | None = None
        self._create_time = 0.0
        self._identity = ""
        self._gpus = GpuWitness(nvml)
        self._files = SharedFiles()
        self._watched_at = self._files_noted_at = 0.0

    def start(self) -> None:
        """Start the server and the thread that drains its output."""
        self._gpus.begin()
        if self._spec.engine == STOKER:
            device_starts("cpu").announce()
        uds = self._spec.uds
        if uds is not None:
            remove_stale_uds(uds)
        mark = new_mark()
        name, _, value = mark.partition("=")
        environment = {**self._spec.environment(), name: value}
        self._mark = mark
        self._guard = start_guard(mark)
        try:
            process = spawn_server(
                self._spec.argv,
                stdout=subprocess.PIPE,
                env=environment,
                death_signal=self._spec.death_signal,
                guard=self._guard.pid,
                umask=-1 if uds is None else _PRIVATE,
            )
        except StokerError:
            self._dismiss_guard()
            self._sink.close()
            raise
        tell_guard(self._guard, [str(process.pid)])
        assert process.stdout is not None
        self._process = process
        self._create_time = _create_time(process.pid)
        self._identity = process_identity(process.pid)
        self._tree = ProcessTree(process.pid, mark)
        self._drain = threading.Thread(
            target=self._sink.drain, args=(process.stdout,), name="log-sink", daemon=True
        )
        self._drain.start()

    @property
    def has_begun(self) -> bool:
        """True once there is a process."""
        return self._process is not None

    @property
    def pid(self) -> int:
        """Pid of the server's first process."""
        return self._running().pid

    @property
    def create_time(self) -> float:
        """When that process started, seconds since the epoch."""
        return self._create_time

    @property
    def identity(self) -> str:
        """What tells that process from a later one with its pid."""
        return self._identity

    def is_alive(self) -> bool:
        """True while the server's first process runs."""
        return self._running().poll() is None

    @property
    def exit_code(self) -> int | None:
        """Exit status of the first process; negative for a signal, None while it runs."""
        return self._running().poll()

    def watch(self) -> bool:
        """Note new processes, and their files, at most once a second; whether it was time."""
        now = time.monotonic()
        if now - self._watched_at < _WATCH_INTERVAL_S:
            return False
        self._watched_at = now
        self._keep_guard()
        if now - self._files_noted_at >= _NOTE_FILES_S:
            self.note_files()
        elif self._tree is not None:
            self._tree.refresh()
        return True

    def note_files(self) -> None:
        """Learn which processes there are and, here and in the guard, which files they use."""
        self._files_noted_at = time.monotonic()
        if self._tree is not None:
            self._tree.refresh()
        names = self._files.note(process.pid for process in self.processes())
        if names and self._guard is not None:
            tell_guard(self._guard, names)

    def processes(self) -> tuple[psutil.Process, ...]:
        """Processes of the server that are known to run."""
        return () if self._tree is None else self._tree.alive()

    def hurry(self) -> None:
        """Skip the waiting in `stop`, also in one that runs now (a second Ctrl-C)."""
        self._is_hurried = True

    def stop(self) -> StopReport:
        """SIGTERM to the server, then to all its processes, then SIGKILL; then see what is left."""
        process, tree = self._running(), self._tree
        assert tree is not None
        self.note_files()
        self._gpus.note(tree.pids())
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            patience = self._spec.shutdown_timeout_s + self._times.grace_s
            wait_until(lambda: process.poll() is not None or self._is_hurried, patience)
        was_killed = end_tree(tree, self._times, lambda: self._is_hurried)
        process.poll()  # reaps the child, so that it is no zombie
        self._is_hurried = self._is_hurried and not was_killed  # what was killed needs a moment
        self._dismiss_guard()
        self.finish_log()
        return self._report(tree, was_killed)

    def _keep_guard(self) -> None:
        """Somebody has killed it, or stopped it, so that it would not hear of our end."""
        guard = self._guard
        if guard is None or (guard.poll() is None and not is_stopped(guard.pid)):
            return
        guard.kill()
        guard.communicate()
        self._guard = start_guard(self._mark)
        tell_guard(self._guard, [str(self._running().pid), *self._files.paths])

    def _dismiss_guard(self) -> None:
        if self._guard is None:
            return
        try:
            self._guard.communicate(timeout=_GUARD_S)
        except subprocess.TimeoutExpired:  # somebody has stopped it
            self._guard.kill()
            self._guard.communicate()

    def finish_log(self) -> None:
        """Wait until the last lines are in the log; a grandchild may still hold the pipe open."""
        if self._drain is not None:
            self._drain.join(_LOG_GRACE_S)

    def _report(self, tree: ProcessTree, was_killed: bool) -> StopReport:
        spec = self._spec
        known = seen_after(
            tree,
            spec.port if spec.uds is None else None,
            spec.is_place_free,
            self._times,
            lambda: self._is_hurried,
        )
        if known.is_port_free and spec.uds is not None:  # of a server that was killed
            Path(spec.uds).unlink(missing_ok=True)
        return dataclasses.replace(
            known,
            was_killed=was_killed,
            files_left=self._files.remove(),
            gpu_left=self._gpus.wait_for_release(tree.pids(), self._times.gpu_s),
            gpu_freed_bytes=self._gpus.noted_bytes,
        )

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "start() comes first"
        return self._process


def _create_time(pid: int) -> float:
    try:
        return psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:  # it has ended and is reaped already
        return 0.0
