"""The binding limit as metrics tell it, per engine, with its evidence and its flag."""

from __future__ import annotations

from typing import Any

import pytest

from app.client.metrics import MetricsSample
from tui.history import MetricHistory
from tui.limits import limit_from_metrics


def limit(*values: dict[str, Any], engine: str = "vllm") -> tuple[str, str]:
    history = MetricHistory()
    for second, fields in enumerate(values):
        history.append(MetricsSample(float(second), engine, **fields))
    snapshot = history.snapshot()
    assert snapshot is not None
    return limit_from_metrics(snapshot)


FULL = {"running": 4, "waiting": 6, "kv_usage": 0.97, "preemptions": 1}
ROOM = {"running": 4, "waiting": 6, "kv_usage": 0.2, "preemptions": 1}


@pytest.mark.parametrize(
    ("values", "engine", "words", "flag"),
    [
        ([{}], "tgi", "n/a: the server does not tell", "-"),
        ([{"running": 3, "waiting": 0}], "vllm", "none: nothing waits", "-"),
        ([FULL], "vllm", "KV memory, it seems: KV cache 97.0 % used", "--gpu-memory-utilization"),
        ([FULL], "sglang", "KV memory, it seems", "--mem-fraction-static"),
        ([ROOM, {**ROOM, "preemptions": 4}], "vllm", "KV memory: 3 preempted in 1 min", "--kv-"),
        ([ROOM], "vllm", "max_num_seqs or the token budget: 4 run, 6 wait", "--max-num-seqs"),
        ([ROOM] * 3, "vllm", "max_num_seqs, it seems", "--max-num-seqs"),
        ([ROOM, {**ROOM, "running": 3}, ROOM], "vllm", "or the token budget", "--max-num-seqs"),
        ([ROOM], "llama.cpp", "slots: 4 run, 6 wait", "--parallel"),
        ([{"running": 1, "waiting": 2}], "tgi", "not known: 1 run, 2 wait", "-"),
        ([{**ROOM, "waiting_deferred": 6}], "vllm", "for LoRA, a KV transfer or a grammar", "-"),
    ],
)
def test_limit(values: list[dict[str, Any]], engine: str, words: str, flag: str) -> None:
    text, found = limit(*values, engine=engine)
    assert words in text
    assert found.startswith(flag) or flag in found
    assert (found == "-") == (flag == "-")
