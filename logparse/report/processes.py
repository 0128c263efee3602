"""Whose processes wrote a log: what their names, and what failed in them, say of the engine."""

from __future__ import annotations

import re
from collections.abc import Iterable

from logparse.problems.candidate import Cause
from logparse.records import Process
from logparse.redact import safe_text

_VLLM_PROCESS = re.compile(
    r"A[Pp][Ii]Server|(?:DP)?EngineCore|Worker(?:_|$)|VllmWorker|RayWorker(?:Wrapper|Vllm)|DPCoord"
)
_SGLANG_PROCESS = re.compile(r"(?:DP|PP|TP|EP|ATTN_\w{2,4}|MOE_\w{2,4})\d+(?: [A-Z_]{2,12}\d+)*")
_DIGITS = re.compile(r"[0-9]{1,18}")


def is_of_a_server(cause: Cause | None) -> bool:
    """Whether an exception is one that only servers of models meet."""
    rule = cause.rule if cause is not None else None
    return rule is not None and rule.id[0] in "ABC" and not rule.is_general


def engine_of(cause: Cause | None) -> str | None:
    """Whose command line refused its arguments, when the log holds nothing else."""
    if cause is not None and cause.rule is not None and cause.rule.engine:
        return cause.rule.engine
    if cause is None or cause.candidate.kind not in ("usage", "plain", "announcement"):
        return None
    text = cause.candidate.text[:200]
    if "llama-server" in text:
        return "llama.cpp"
    if "sglang" in text or text.startswith("launch_server.py"):
        return "sglang"
    if "vllm" in text or text.startswith("api_server.py"):
        return "vllm"
    is_own = cause.candidate.kind == "usage" and ("stoker" in text or "engine" in text)
    return "stoker" if is_own else None


def engine_of_processes(counts: Iterable[tuple[str, str | None]]) -> str | None:
    """Only the names that no other program gives to its processes."""
    for name, pid in counts:
        if pid is not None and _VLLM_PROCESS.match(name):
            return "vllm"
        if pid is None and _SGLANG_PROCESS.fullmatch(name):
            return "sglang"
    return None


def processes_of(
    counts: dict[tuple[str, str | None], int], before: dict[tuple[str, str | None], int]
) -> tuple[Process, ...]:
    """Those of this start in order of appearance, the ranks of one kind together and in order."""
    pids: dict[str, list[int]] = {}
    totals: dict[str, int] = {}
    for (name, pid), count in counts.items():
        if count > before.get((name, pid), 0):
            pids.setdefault(name, []).extend([int(pid)] if pid else [])
            totals[name] = totals.get(name, 0) + count - before.get((name, pid), 0)
    kinds = {name: _DIGITS.sub("#", name) for name in pids}
    places = {kind: place for place, kind in enumerate(dict.fromkeys(kinds.values()))}

    def order(name: str) -> tuple[int, list[int]]:
        return places[kinds[name]], [int(digits) for digits in _DIGITS.findall(name)]

    return tuple(
        Process(safe_text(name), tuple(pids[name]), totals[name])
        for name in sorted(pids, key=order)
    )
