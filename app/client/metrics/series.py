"""Which series of one name repeat each other, and which tell of different engines.

A server of several engines exposes a name once per engine; the ranks of one engine repeat what they
share, and a total may stand beside its parts. Owns no metric name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from app.client.metrics.exposition import SeriesValue

_ENGINE_LABELS = (
    *("engine", "engine_id", "engine_index", "dp_rank", "data_parallel_rank"),
    *("server", "instance", "pod", "replica", "ReplicaId", "WorkerId", "worker_id"),
    *("engine_type", "model", "model_name"),
)
"""Whoever differs in one of these is another engine, with a queue and a KV pool of its own."""

_REPEATING_LABELS = frozenset(
    (
        *("tp_rank", "pp_rank", "cp_rank", "ep_rank", "attn_tp_rank", "attn_cp_rank"),
        *("moe_tp_rank", "moe_ep_rank", "moe_dp_rank", "pid"),
    )
)
"""Processes that work at the same requests: what they report is one queue and one pool."""

_PART_LABEL = "priority"
"""SGLang counts per priority too; the total is under the empty label."""

_DIGITS = re.compile(r"(\d+)")

EngineKey = tuple[tuple[str, str], ...]
"""Label and value of what tells one engine from the others."""


def counted_once(samples: Iterable[SeriesValue]) -> list[SeriesValue]:
    """One sample for each thing that is counted, so that they may be added up.

    Of ranks that repeat one series the largest counts: a rank that is late reports less. A total
    counts instead of its parts.
    """
    return _without_parts(_largest_of_ranks(samples), (_PART_LABEL,))


def totals(samples: Iterable[SeriesValue]) -> list[SeriesValue]:
    """As `counted_once`, and a series of no engine counts instead of those of the engines."""
    return _without_parts(counted_once(samples), _ENGINE_LABELS[:5])


def engine_labels(families: Iterable[Sequence[SeriesValue]]) -> tuple[str, ...]:
    """The labels that tell engines apart: those with several values inside one name."""
    found: set[str] = set()
    for samples in families:
        for label in _ENGINE_LABELS:
            values = {sample.labels.get(label) for sample in samples} - {None, ""}
            if len(values) > 1:
                found.add(label)
    return tuple(label for label in _ENGINE_LABELS if label in found)


def engine_key(labels: Mapping[str, str], telling: Sequence[str]) -> EngineKey:
    """Which engine a series belongs to; empty for one that names none."""
    return tuple((label, labels[label]) for label in telling if labels.get(label))


def engine_name(key: EngineKey) -> str:
    """`engine 1`, `dp_rank 3`, or the value alone where it is a name already."""
    return ", ".join(f"{label} {value}" if value.isdigit() else value for label, value in key)


def natural_order(key: EngineKey) -> tuple[tuple[str, int], ...]:
    """Sorts engine 10 after engine 9."""
    parts = _DIGITS.split(engine_name(key))
    return tuple(("", int(part)) if part.isdigit() else (part, 0) for part in parts)


def _largest_of_ranks(samples: Iterable[SeriesValue]) -> list[SeriesValue]:
    samples = list(samples)
    if all(_REPEATING_LABELS.isdisjoint(sample.labels) for sample in samples):
        return samples
    largest: dict[frozenset[tuple[str, str]], SeriesValue] = {}
    for sample in samples:
        own = {k: v for k, v in sample.labels.items() if k not in _REPEATING_LABELS}
        key = frozenset(own.items())
        known = largest.get(key)
        if known is None or sample.value > known.value:
            largest[key] = SeriesValue(own, sample.value)
    return list(largest.values())


def _without_parts(samples: list[SeriesValue], labels: Sequence[str]) -> list[SeriesValue]:
    """Without the series that have one of the labels, where one without it has all the others."""
    for label in labels:
        if any(sample.labels.get(label) for sample in samples):
            whole = {_others(s, label) for s in samples if not s.labels.get(label)}
            samples = [
                s for s in samples if not s.labels.get(label) or _others(s, label) not in whole
            ]
    return samples


def _others(sample: SeriesValue, label: str) -> frozenset[tuple[str, str]]:
    return frozenset((k, v) for k, v in sample.labels.items() if k != label)
