"""Where the time of a start goes: when the lines of its log came, and what its imports take.

Reads the log as the server writes it, with the DEBUG lines that mark what no other line does. Both
processes are on one clock, so that what one waits for the other shows.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from engine.machine.processes import role_of
from tests.places import ROOT

_LOOK_S = 0.002
READY = "ready"
_CORE = "EngineCore"
_API = "APIServer"


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a start: between two of its marks, in which `who` does `what`."""

    who: str
    what: str
    begins: str
    ends: str


# Marks are words of log lines, but for "", the start of an EngineCore or API server, and READY.
PATH = (
    Part("stoker", "interpreter, command, options, model's record", "", _API),
    Part(_API, "guard and interpreter, flags, EngineCore's start", _API, _CORE),
    Part(_CORE, "interpreter and imports, torch above all", _CORE, "modules of the executor"),
    Part(_CORE, "waits for its configuration", "modules of the executor", "Initializing a V1"),
    Part(_CORE, "kernels chosen and loaded", "Initializing a V1", "attention backend"),
    Part(_CORE, "weights mapped", "attention backend", "Reading packed weights"),
    Part(_CORE, "model and runner made", "Reading packed weights", "Model loading took"),
    Part(_CORE, "warm-up: a small step", "Model loading took", "A first small step"),
    Part(_CORE, "memory measured", "A first small step", "Available KV cache memory"),
    Part(_CORE, "cache made", "Available KV cache memory", "init engine"),
    Part(_API, "scheduler, ready message, services", "init engine", "Supported tasks"),
    Part(_API, "/health answers 200", "Supported tasks", READY),
)
"""One after the other: together they are the whole start."""

BESIDE = (
    Part(_API, "imports of the server, port bound", _CORE, "Stoker server version"),
    Part(_API, "model found, configuration", "Stoker server version", "Using max model len"),
    Part(_API, "tokenizer and chat template", "Using max model len", "Tokenizer and chat"),
    Part(_API, "waits for EngineCore", "Tokenizer and chat", "init engine"),
)
"""What the API server does while EngineCore is on its way."""


@dataclass(slots=True)
class StartWatch:
    """Follows one start: `marks` are seconds since `begun_s` of the monotonic clock."""

    state: Path
    begun_s: float
    marks: dict[str, float] = field(default_factory=lambda: {"": 0.0})
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def finish(self, ready_s: float, stoker: psutil.Process) -> dict[str, float]:
        """The marks, once the server has become ready after `ready_s`."""
        self._over.set()
        self._thread.join()
        for process in stoker.children(recursive=True):
            role = role_of(process.cmdline())
            if role in (_API, _CORE):
                # Both by the kernel's clock, which is not the one that the day is told by.
                self.marks[role] = process.create_time() - stoker.create_time()
        self.marks[READY] = ready_s
        return self.marks

    def _follow(self) -> None:
        wanted = {part.ends for part in (*PATH, *BESIDE)} - {READY, _API, _CORE}
        seen = 0
        while not self._over.is_set():
            now = time.monotonic() - self.begun_s
            text = "".join(log.read_text() for log in self.state.glob("logs/*.log"))
            end = text.rfind("\n") + 1
            for line in text[seen:end].splitlines():
                for mark in [mark for mark in wanted if mark in line]:
                    self.marks.setdefault(mark, now)
            seen = max(seen, end)
            self._over.wait(_LOOK_S)


def table(starts: Sequence[Mapping[str, float]]) -> str:
    """Medians over the starts: when each part began, how long it took, its share of the whole."""
    whole_s = statistics.median(marks[READY] for marks in starts)
    lines = ["| process | part | from, s | takes, ms | of the start |", "|---|---|---|---|---|"]
    lines += [_row(part, starts, whole_s) for part in PATH]
    lines.append(f"| | **the whole** | | {whole_s * 1e3:.0f} | 100 % |")
    lines += [_row(part, starts, whole_s) for part in BESIDE]
    return "\n".join(lines)


def _row(part: Part, starts: Sequence[Mapping[str, float]], whole_s: float) -> str:
    known = [marks for marks in starts if part.begins in marks and part.ends in marks]
    if not known:
        return f"| {part.who} | {part.what} | - | - | - |"
    begins_s = statistics.median(marks[part.begins] for marks in known)
    takes_s = statistics.median(marks[part.ends] - marks[part.begins] for marks in known)
    share = f"{takes_s / whole_s:.0%}".replace("%", " %")
    if part in BESIDE:
        share = f"beside, {share}"
    return f"| {part.who} | {part.what} | {begins_s:.2f} | {takes_s * 1e3:.0f} | {share} |"


def import_table(num_shown: int = 8) -> str:
    """What imports take by package, of the modules that each process has at its start."""
    lines = []
    for process, code in _IMPORTS.items():
        found = _import_times(code)
        first = ", ".join(f"{name} {ms:.0f}" for name, ms in found.most_common(num_shown))
        lines.append(f"{process}: {found.total():.0f} ms, {first}")
    return "\n".join(lines)


_IMPORTS = {
    "stoker": "import app.cli, app.commands.serve, app.commands.prepared_start, "
    "app.supervise.serving, app.launch.engine_launch",
    _API: "import engine.args, engine.core.core_process, engine.server.launch",
    _CORE: "import engine.core.engine_core_proc as core; core.preload_executor('uni')",
}


def _import_times(code: str) -> Counter[str]:
    """Milliseconds by package; those of the standard library are one."""
    command = [sys.executable, "-X", "importtime", "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found: Counter[str] = Counter()
    for line in done.stderr.splitlines():
        head, _, module = line.rpartition("|")
        if not head.startswith("import time:") or "[us]" in head:
            continue
        package = module.strip().partition(".")[0]
        name = "standard library" if package in sys.stdlib_module_names else package
        found[name] += int(head.split(":")[1].partition("|")[0]) / 1e3  # type: ignore[assignment]
    return found
