"""The binding limit as metrics tell it, per engine, with its evidence and its flag."""

from __future__ import annotations

from typing import Any

import pytest

from app.client.debug.documents import EngineStep, SchedulerState
from app.client.metrics.sample import EngineLoad, MetricsSample
from tui.state.engine_state import limit_text
from tui.state.history import MetricHistory
from tui.state.limits import limit_from_metrics


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
        ([{"running": 0, "waiting": 0}], "vllm", "none: nothing runs and nothing waits", "-"),
        ([{"running": 3, "waiting": 0}], "stoker", "compute: 3 run, none waits", "--num-threads"),
        (
            [{**FULL, "has_blocks_override": True}],
            "vllm",
            "KV memory, it seems",
            "--num-gpu-blocks-override",
        ),
        ([FULL], "vllm", "KV memory, it seems: KV cache 97.0 % used", "--gpu-memory-utilization"),
        ([FULL], "sglang", "KV memory, it seems", "--mem-fraction-static"),
        ([ROOM, {**ROOM, "preemptions": 4}], "vllm", "KV memory: 3 preempted in 1 min", "--kv-"),
        ([ROOM], "vllm", "max_num_seqs or the token budget: 4 run, 6 wait", "--max-num-seqs"),
        ([ROOM], "stoker", "prompts that take turns, max_num_seqs or", "--max-num-seqs"),
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


def test_busy_cores_are_told_where_a_step_is_the_limit() -> None:
    history = MetricHistory()
    history.append(MetricsSample(0.0, "stoker", running=2, waiting=0))
    snapshot = history.snapshot()
    assert snapshot is not None
    assert "cores 97.0 % busy" in limit_from_metrics(snapshot, 0.97)[0]
    assert "cores" not in limit_from_metrics(snapshot)[0]


def test_one_full_engine_is_the_limit_whatever_the_mean_says() -> None:
    engines = (
        EngineLoad("engine 0", kv_usage=0.1, waiting=0),
        EngineLoad("engine 1", kv_usage=0.97, waiting=3),
    )
    text, flag = limit({"running": 4, "waiting": 3, "kv_usage": 0.5, "engines": engines})
    assert "KV memory of engine 1" in text
    assert "--gpu-memory-utilization" in flag


def test_prompts_that_take_turns_are_moved_by_no_flag() -> None:
    step = EngineStep(
        num_requests=3, num_decode_tokens=2, num_prefill_tokens=60, num_preempted=0,
        num_running=3, num_waiting=5, num_free_blocks=90, limit="prompt_turns",
        next_waiting_blocks=4,
    )  # fmt: skip
    scheduler = SchedulerState(
        num_running=3, num_waiting=5, num_waiting_for_grammar=0, max_num_seqs=64,
        max_num_batched_tokens=2048, num_blocks=99, num_steps=1, last_step_age_s=0.0, step=step,
    )  # fmt: skip
    text = "prompts take turns: 5 wait for those before them"
    assert limit_text(scheduler) == (text, "-")


def test_a_fixed_number_of_blocks_moves_our_own_limit_too() -> None:
    step = EngineStep(
        num_requests=1, num_decode_tokens=1, num_prefill_tokens=0, num_preempted=0,
        num_running=1, num_waiting=2, num_free_blocks=0, limit="kv_memory",
        next_waiting_blocks=4,
    )  # fmt: skip
    scheduler = SchedulerState(
        num_running=1, num_waiting=2, num_waiting_for_grammar=0, max_num_seqs=4,
        max_num_batched_tokens=64, num_blocks=8, num_steps=1, last_step_age_s=0.0, step=step,
    )  # fmt: skip
    fixed = MetricsSample(0.0, "stoker", has_blocks_override=True)
    assert limit_text(scheduler, fixed)[1] == "--num-gpu-blocks-override"
    assert "--gpu-memory-utilization" in limit_text(scheduler)[1]
