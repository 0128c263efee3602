"""Which processes of this machine belong to an inference engine, and who listens where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening TCP socket. `words` is its program's command line: look at it, never show it."""

    pid: int
    address: str
    port: int
    words: tuple[str, ...]


def read_listeners() -> tuple[Listener, ...]:
    """Listening sockets whose process this user may see."""
    import psutil

    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.AccessDenied, PermissionError):
        return ()
    found = {
        (one.pid, one.laddr.ip, one.laddr.port)
        for one in connections
        if one.status == psutil.CONN_LISTEN and one.pid and one.laddr
    }
    return tuple(Listener(pid, address, port, _words(pid)) for pid, address, port in sorted(found))


def engine_kind(words: Sequence[str]) -> str | None:
    """`vllm`, `stoker`, `llama-server` or `sglang` for an engine's server, by its command line."""
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
    """True for a process that only works for a server: EngineCore or a worker."""
    if not words:
        return False
    if words[0].startswith(("VLLM::EngineCore", "VLLM::Worker", "VLLM::DPCoordinator")):
        return True
    return engine_kind(words) == "stoker" and "core" in words[1:6]


def _words(pid: int) -> tuple[str, ...]:
    import psutil

    try:
        return tuple(psutil.Process(pid).cmdline())
    except psutil.Error:
        return ()
