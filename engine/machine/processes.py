"""Processes of this machine: which belong to an inference engine, and which is which.

A process is known by its pid and by when it began, counted in the kernel's ticks since the boot:
a clock that is set does not change that, and a pid that is used again is another process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

SERVER_MARK = "STOKER_SERVER_MARK"
"""Variable in the environment of all that Stoker starts as a server: `TOKEN@PID@IDENTITY`, the
last two being the supervisor's."""

_ROLES = {"serve": "APIServer", "core": "EngineCore"}
_CHILDREN = ("core", "worker", "grammars", "api-server", "coordinator")
_VLLM_CHILDREN = tuple(
    f"VLLM::{name}" for name in ("EngineCore", "Worker", "DPCoordinator", "ApiServer_")
)
_ADOPTERS = ("systemd", "init", "launchd", "tini", "dumb-init", "docker-init", "catatonit")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_START_FIELD = 19  # of /proc/PID/stat, counted behind the name
_CPU_FIELDS = 11  # time in the program, then in the kernel


def engine_kind(words: Sequence[str]) -> str | None:
    """`vllm`, `stoker`, `llama-server` or `sglang` for an engine's process, by its command line."""
    if not words:
        return None
    text = " ".join(words[:6])
    if words[0].startswith("VLLM::") or "vllm.entrypoints" in text:
        return "vllm"
    names = [word.rsplit("/", 1)[-1] for word in words[:3]]
    if "vllm" in names and "serve" in words:
        return "vllm"
    if any(word.endswith("engine/__main__.py") for word in words[:4]):
        return "stoker"
    if "llama-server" in names:
        return "llama-server"
    return "sglang" if "sglang.launch_server" in text else None


def is_engine_child(words: Sequence[str]) -> bool:
    """True for a process that only works for a server, as EngineCore, a worker, or one of several
    API servers do.
    """
    if not words:
        return False
    if words[0].startswith(_VLLM_CHILDREN):
        return True
    return any(
        word.endswith("engine/__main__.py") and following in _CHILDREN
        for word, following in pairwise(words[:6])
    )


def role_of(words: Sequence[str]) -> str:
    """What a process of a server does, by its command line; "" where that does not tell.

    vLLM and SGLang write it into the title, our engine is started with it as its first argument.
    """
    title = words[0] if words else ""
    if title.startswith(("VLLM::", "sglang::")):
        return title.partition("::")[2].split()[0]
    for word, following in pairwise(words):
        if word.endswith("engine/__main__.py"):
            named = next((name for flag, name in pairwise(words) if flag == "--name"), None)
            return named or _node_role(words) or _ROLES.get(following, "")
        if word == "-m" and following.startswith(("vllm.", "sglang.")):
            return "APIServer"
    if "vllm" in [word.rsplit("/", 1)[-1] for word in words[:2]] and "serve" in words[:3]:
        return "APIServer"
    return "resource tracker" if "resource_tracker" in " ".join(words[:6]) else ""


def _node_role(words: Sequence[str]) -> str:
    """Of our engine's process on another node than 0; "" where it is none."""
    pairs = (*(word.partition("=")[::2] for word in words), *pairwise(words))
    number = next((value for flag, value in pairs if flag == "--node-rank" and value), "0")
    return "" if number == "0" else f"Node_{number}"


def process_identity(pid: int) -> str:
    """What no other process with this pid has; empty when there is none, or only a zombie."""
    if _BOOT_ID.exists():  # Linux
        try:
            boot = _BOOT_ID.read_text(encoding="ascii").strip()
            stat = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            return ""
        return "" if stat[0] in (b"Z", b"X") else f"{boot[:8]}.{int(stat[_START_FIELD])}"
    import psutil

    try:
        process = psutil.Process(pid)
        is_gone = process.status() == psutil.STATUS_ZOMBIE
        return "" if is_gone else f"{process.create_time():.2f}"
    except psutil.NoSuchProcess:
        return ""


@dataclass(frozen=True, slots=True)
class ProcessClock:
    """What a process does (a letter, as in `ps`) and the CPU time that it has used, in ticks."""

    state: str
    ticks: int


def process_clock(pid: int) -> ProcessClock | None:
    """Of all its threads; None when there is no such process. Linux."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return ProcessClock(stat[0].decode(), int(stat[_CPU_FIELDS]) + int(stat[_CPU_FIELDS + 1]))


def rss_bytes(pid: int) -> int | None:
    """RAM that the process holds, shared memory included; None when there is no such process."""
    import psutil

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.NoSuchProcess:
        return None


def is_same_process(pid: int, identity: str) -> bool:
    """True while the process of this pid and identity lives."""
    return bool(identity) and process_identity(pid) == identity


def supervisor_in(mark: str) -> tuple[int, str] | None:
    """Pid and identity that the value of SERVER_MARK names; None where it names nobody."""
    _, _, supervisor = mark.partition("@")
    pid, _, identity = supervisor.partition("@")
    return (int(pid), identity) if pid.isdecimal() and identity else None


def is_running(pid: int) -> bool:
    """True while there is a process of this pid that has not ended."""
    return bool(process_identity(pid))


def is_alive(process: psutil.Process) -> bool:
    """True while it runs or stands still; a zombie is gone."""
    import psutil

    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def is_stopped(pid: int) -> bool:
    """True for a process that a signal has stopped (SIGSTOP, Ctrl-Z), or a debugger."""
    import psutil

    try:
        status: str = psutil.Process(pid).status()
    except psutil.Error:
        return False
    return status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


def is_adopted(process: psutil.Process) -> bool:
    """True when the parent is gone. In a container process 1 may itself be a server's parent."""
    parent = process.parent()
    if parent is None:
        return process.pid != 1
    if engine_kind(parent.cmdline()) is not None:
        return False
    is_first = parent.pid == 1 and not parent.name().startswith(("python", "stoker"))
    return is_first or parent.name() in _ADOPTERS


def is_in_our_namespace(pid: int) -> bool:
    """False for a container's process: the pids that it knows are not those that we see."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") == os.readlink("/proc/self/ns/pid")
    except OSError:
        return sys.platform != "linux"
