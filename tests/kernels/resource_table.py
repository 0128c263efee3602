"""What compiled kernels take of each GPU, and the table of it in docs/gpu.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resources:
    """What one kernel takes on one target; `spilled_bytes` is memory that each thread spills to."""

    target: str
    kernel: str
    case: str
    warps: int
    registers: int
    shared_bytes: int
    spilled_registers: int
    spilled_bytes: int
    programs: int  # that run on a multiprocessor at once
    occupancy: float  # of the threads that the multiprocessor could run


def table(entries: Sequence[Resources]) -> str:
    """Markdown: a row per kernel and case, a column per target."""
    names = list(dict.fromkeys(entry.target for entry in entries))
    lines = [f"| kernel | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    rows: dict[tuple[str, str], dict[str, Resources]] = {}
    for entry in entries:
        rows.setdefault((entry.kernel, entry.case), {})[entry.target] = entry
    for (kernel, case), cells in rows.items():
        label = f"`{kernel}`" + (f", {case}" if case else "")
        lines.append(f"| {label} | {' | '.join(_cell(cells[name]) for name in names)} |")
    return "\n".join(lines)


def _cell(entry: Resources) -> str:
    """Registers / shared memory / occupancy."""
    kib = -(-entry.shared_bytes // 1024)
    return f"{entry.registers} / {kib} / {entry.occupancy:.0%}"
