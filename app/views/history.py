"""How `stoker plan --history` prints earlier starts: planned, measured, and the error."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from app.output import printable
from app.planning.memory_ledger import LedgerEntry
from engine.machine.sizes import GIB

_FIGURES = (
    ("weights", "weights_bytes", GIB),
    ("KV memory", "kv_bytes", GIB),
    ("other", "other_bytes", GIB),
    ("KV tokens", "kv_tokens", 1),
    ("concurrency", "max_concurrency", 1),
)


def history_text(entries: Sequence[LedgerEntry]) -> str:
    """A paragraph for each start, the oldest first."""
    return printable("\n\n".join("\n".join(_lines(entry)) for entry in entries))


def history_rows(entries: Sequence[LedgerEntry]) -> Iterator[tuple[object, ...]]:
    """Time, server, engine, model, device, then figure, planned, measured, error of each."""
    for entry in entries:
        for title, name, _ in _FIGURES:
            planned, measured = getattr(entry.predicted, name), getattr(entry.actual, name)
            error = _error(planned, measured)
            head = (round(entry.at), entry.server, entry.engine, entry.model, entry.device)
            shown = None if error is None else round(error, 5)
            yield (*head, title, planned, measured, shown)


def history_document(entries: Sequence[LedgerEntry]) -> list[dict[str, Any]]:
    """The entries, each with the relative errors of the plan."""
    return [
        {
            **asdict(entry),
            "error": {
                name: _error(getattr(entry.predicted, name), getattr(entry.actual, name))
                for _, name, _ in _FIGURES
            },
        }
        for entry in entries
    ]


def _lines(entry: LedgerEntry) -> Iterator[str]:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.at))
    version = f" {entry.engine_version}" if entry.engine_version else ""
    length = f", max_model_len {entry.max_model_len:,}" if entry.max_model_len else ""
    yield f"{when}  {entry.server}: {entry.model}, {entry.engine}{version}, {entry.device}{length}"
    for title, name, unit in _FIGURES:
        planned, measured = getattr(entry.predicted, name), getattr(entry.actual, name)
        if planned is None and measured is None:
            continue
        error = _error(planned, measured)
        shown = "-" if error is None else f"{error:+.1%}"
        yield (
            f"  {title:<11} planned {_number(planned, unit):>12}"
            f"  measured {_number(measured, unit):>12}  error {shown:>7}"
        )
    if entry.calibrated_by:
        yield f"  the plan was calibrated by {entry.calibrated_by} earlier start(s)"


def _error(planned: float | None, measured: float | None) -> float | None:
    """How far the plan was above what was measured, as a share of that."""
    return None if planned is None or not measured else planned / measured - 1


def _number(value: float | None, unit: int) -> str:
    if value is None:
        return "-"
    if unit == GIB:
        return f"{value / GIB:.2f} GiB"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}x"
