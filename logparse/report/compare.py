"""Two starts side by side: arguments, times, capacity. Owns which rows there are and their order;
the values are those of the reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from logparse.records import LogReport
from logparse.report.phases import PHASE_NAMES
from logparse.rules.arguments import differing_arguments

_Cell = str | int | float | tuple[int | float, ...] | None


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """One thing in both logs; None is not in that log. `change` is (right - left) / left."""

    group: str  # start, arguments, times, capacity
    name: str
    left: _Cell
    right: _Cell
    change: float | None

    @property
    def differs(self) -> bool:
        """Whether the two logs do not say the same."""
        return self.left != self.right


_START = (
    "architecture",
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "attention_backend",
    "platform",
)
_TIMES = (
    "download_s", "load_weights_s", "model_load_s", "dynamo_s", "compile_s", "warmup_run_s",
    "graph_capture_s", "engine_init_s",
)  # fmt: skip
_CAPACITY = (
    "weights_gib", "kv_memory_gib", "graph_gib", "max_model_len", "max_num_batched_tokens",
    "max_concurrency",
)  # fmt: skip


def compare(left: LogReport, right: LogReport) -> tuple[ComparedRow, ...]:
    """All rows that at least one of the logs has a value for."""
    rows = (*_start(left, right), *_arguments(left, right), *_times(left, right),
            *_capacity(left, right))  # fmt: skip
    return tuple(row for row in rows if row.left is not None or row.right is not None)


def _start(left: LogReport, right: LogReport) -> list[ComparedRow]:
    pairs: list[tuple[str, _Cell, _Cell]] = [
        ("outcome", left.outcome.value, right.outcome.value),
        ("cause", _cause(left), _cause(right)),
        ("engine", left.engine, right.engine),
        ("engine_version", left.facts.engine_version, right.facts.engine_version),
        ("model", left.facts.model, right.facts.model),
    ]
    return [_row("start", *pair) for pair in pairs] + _facts("start", _START, left, right)


def _cause(report: LogReport) -> str | None:
    return report.problem.title if report.problem is not None else None


def _arguments(left: LogReport, right: LogReport) -> list[ComparedRow]:
    ours, theirs = _given(left), _given(right)
    return [
        _row("arguments", name, ours.get(name), theirs.get(name))
        for name in dict.fromkeys((*ours, *theirs))
        if name not in ("model", "model_tag")
    ]


def _given(report: LogReport) -> Mapping[str, str]:
    printed = report.facts.non_default_args
    return differing_arguments(printed) if printed else {}


def _times(left: LogReport, right: LogReport) -> list[ComparedRow]:
    return [
        _row("times", "first_to_ready_s", left.first_to_ready_s, right.first_to_ready_s),
        *(
            _row("times", name, one.seconds, other.seconds)
            for name, one, other in zip(PHASE_NAMES, left.phases, right.phases, strict=True)
        ),
        *_facts("times", _TIMES, left, right),
    ]


def _capacity(left: LogReport, right: LogReport) -> list[ComparedRow]:
    tokens = _row("capacity", "kv_tokens", left.kv_tokens_total, right.kv_tokens_total)
    return [*_facts("capacity", _CAPACITY, left, right), tokens]


def _facts(
    group: str, names: tuple[str, ...], left: LogReport, right: LogReport
) -> list[ComparedRow]:
    return [
        _row(group, name, getattr(left.facts, name), getattr(right.facts, name)) for name in names
    ]


def _row(group: str, name: str, left: _Cell, right: _Cell) -> ComparedRow:
    return ComparedRow(group, name, left, right, _change(left, right))


def _change(left: _Cell, right: _Cell) -> float | None:
    before, after = _one_number(left), _one_number(right)
    if before is None or after is None or before <= 0:
        return None
    return round((after - before) / before, 4)


def _one_number(value: _Cell) -> float | None:
    """Of several ranks, the least."""
    if isinstance(value, tuple):
        return float(min(value))
    return float(value) if isinstance(value, int | float) else None
