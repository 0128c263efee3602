"""The native set on every model family: windows, KV groups, norms, scales, activations.

Against the plain-torch twin in float32, which is tested against transformers; and bit for bit
against itself in every other arrangement. Unused slots and the null block hold NaN.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kernels.native.model_step import NativeModelStep
from tests.kernels.native_models import (
    GEMMA2,
    GEMMA3,
    GPT_OSS,
    MIXTRAL,
    QWEN3_MOE,
    assert_same,
    group_windows,
    native_model,
    random_prompts,
    reference_model,
    relative_error,
    save_rounded,
)
from tests.kernels.paged_sequences import PagedSequences, in_chunks

NAN = float("nan")
VARIANTS: dict[str, dict[str, Any]] = {
    "mistral": {"family": "Mistral", "sliding_window": None},
    "window of one": {"family": "Mistral", "sliding_window": 1},
    "window below a block": {"family": "Mistral", "sliding_window": 11},
    "window of a block": {"family": "Mistral", "sliding_window": 16},
    "window above a block": {"family": "Mistral", "sliding_window": 45},
    "window above a tile": {"family": "Mistral", "sliding_window": 139},
    "window above all": {"family": "Mistral", "sliding_window": 1000},
    "qwen2": {"family": "Qwen2"},
    "qwen2 with windows": {
        "family": "Qwen2",
        "use_sliding_window": True,
        "sliding_window": 24,
        "max_window_layers": 1,
    },
    "qwen3": {"family": "Qwen3"},
    "qwen3 with biases": {"family": "Qwen3", "attention_bias": True, "head_dim": 96},
    "gemma2": GEMMA2,
    "mixtral": MIXTRAL,
    "qwen3 moe": QWEN3_MOE,
    "gpt-oss": GPT_OSS,
    "gemma3": GEMMA3,
    "gemma3 scaled": {
        **GEMMA3,
        "query_pre_attn_scalar": 40,
        "sliding_window": 70,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 50_000.0, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 7_000.0},
        },
    },
    "gemma3 heads": {
        **GEMMA3,
        "head_dim": 256,
        "hidden_size": 80,
        "intermediate_size": 256,
        "num_key_value_heads": 1,
    },
}

pytestmark = pytest.mark.usefixtures("native_set")


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_close_to_the_reference(variant: str, tmp_path: Path) -> None:
    save_rounded(tmp_path, **VARIANTS[variant])
    windows = group_windows(tmp_path)
    prompts = random_prompts(1, 37, 200, 64, 130)
    twin = reference_model(tmp_path)
    wanted = PagedSequences(twin, prompts, 16, windows=windows).run(in_chunks(prompts, 50))
    model = native_model(tmp_path)
    whole = PagedSequences(model, prompts, 16, NAN, windows).run(in_chunks(prompts, 256))
    for result, reference in zip(whole, wanted, strict=True):
        assert relative_error(result, reference) < 0.02
    chunked = PagedSequences(model, prompts, 16, NAN, windows).run(in_chunks(prompts, 13))
    assert_same(chunked, whole)
    (alone,) = PagedSequences(model, prompts[2:3], 16, NAN, windows).run([[150], *[[1]] * 50])
    assert torch.equal(alone, whole[2])
    larger = native_model(tmp_path, block_size=48, num_threads=1)
    assert_same(
        PagedSequences(larger, prompts, 48, NAN, windows).run([[*map(len, prompts)]]), whole
    )


@pytest.mark.parametrize("variant", ["gemma3 scaled", "window below a block"])
def test_hidden_states_are_close_to_the_reference(variant: str, tmp_path: Path) -> None:
    save_rounded(tmp_path, **VARIANTS[variant])
    twin, model = reference_model(tmp_path), native_model(tmp_path)
    sequences = PagedSequences(model, random_prompts(5, 90), 16, NAN, group_windows(tmp_path))
    batch = sequences.batch([(0, 5), (0, 90)])
    hidden = model.hidden_states(batch, sequences.cache)
    wanted = twin.hidden_states(batch, twin.create_kv_cache(100))
    assert hidden.shape == wanted.shape
    assert relative_error(hidden, wanted) < 0.02


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("windows")
    changes = {**GEMMA3, "num_hidden_layers": 3, "layer_types": GEMMA3["layer_types"][:3]}
    save_rounded(target, **{**changes, "sliding_window": 70, "max_position_embeddings": 2048})
    return target


@pytest.fixture(scope="module")
def model(folder: Path) -> NativeModelStep:
    return native_model(folder, num_positions=2048)


@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_any_schedule_gives_the_same_logits(
    folder: Path, model: NativeModelStep, data: st.DataObject
) -> None:
    lengths = data.draw(st.lists(st.integers(1, 200), min_size=1, max_size=4))
    prompts, windows = random_prompts(*lengths), group_windows(folder)
    left, steps = list(lengths), []
    while any(left):
        counts = [data.draw(st.integers(0, min(rest, 80))) for rest in left]
        if not any(counts):
            counts = [min(rest, 1) for rest in left]
        steps.append(counts)
        left = [rest - count for rest, count in zip(left, counts, strict=True)]
    scheduled = PagedSequences(model, prompts, 16, NAN, windows).run(steps)
    for prompt, result in zip(prompts, scheduled, strict=True):
        (alone,) = PagedSequences(model, [prompt], 16, windows=windows).run([[len(prompt)]])
        assert torch.equal(result, alone)


def test_windows_that_threads_share(tmp_path: Path) -> None:
    """Several threads split one sequence's window at tile borders, one thread does not."""
    save_rounded(tmp_path, **{**GEMMA3, "sliding_window": 700, "max_position_embeddings": 2048})
    windows, prompts = group_windows(tmp_path), random_prompts(1403)
    steps = [[1000], [400], [1], [1], [1]]
    single = native_model(tmp_path, num_threads=1, num_positions=2048)
    wanted = PagedSequences(single, prompts, 16, NAN, windows).run([[1403]])
    for num_threads in (2, 5):
        other = native_model(tmp_path, num_threads=num_threads, num_positions=2048)
        assert_same(PagedSequences(other, prompts, 16, NAN, windows).run(steps), wanted)
        other.close()


def test_blocks_outside_a_window_may_have_any_number(folder: Path, model: NativeModelStep) -> None:
    """They are neither read nor checked; those inside are checked in every group."""
    sequences = PagedSequences(model, random_prompts(150), 16, windows=group_windows(folder))
    sequences.step([(0, 149)])
    batch = sequences.batch([(149, 150)])
    wanted = model.forward(batch, sequences.cache)
    first = (150 - 70) // 16
    batch.block_table[1, 0, :first] = 1 << 40
    assert torch.equal(model.forward(batch, sequences.cache), wanted)
    batch.block_table[1, 0, first] = 1 << 40
    with pytest.raises(IndexError, match="outside the cache"):
        model.forward(batch, sequences.cache)
