"""Native kernels on several ranks, here threads with a C++ model each, that share memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.config import ParallelConfig
from engine.kernels.kernel_set import StageStep
from engine.kernels.native.library import RankMemory, RankSizes
from engine.kernels.native.model_step import NativeKernels, NativeModelStep
from engine.kernels.quantized_reference import quantized
from engine.models.decoder_native import build_native_decoder
from engine.models.registry import load_weights
from engine.rank_layout import WHOLE, RankPlace, rank_places
from engine.worker.kv_cache import cache_spec
from tests.kernels.native_models import GEMMA2, GPT_OSS, native_library, save_rounded
from tests.models.rank_threads import run_stages, two_prompts, with_image
from tests.worker.driver import engine_config

_WINDOWS = {
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": 16,
}
_FAMILIES: list[tuple[str, dict[str, Any]]] = [
    ("Llama", {}),
    ("Llama", {"attention_bias": True, "mlp_bias": True}),
    ("Qwen3", {"tie_word_embeddings": True}),
    ("Gemma3", _WINDOWS),
    ("Gemma2", {**GEMMA2, "num_hidden_layers": 3}),
    ("GptOss", GPT_OSS),
]


def build(
    folder: Path, place: RankPlace, ranks: RankMemory | None, quantization: str = "none"
) -> NativeModelStep:
    config = engine_config(folder, dtype="bfloat16", max_model_len=128)
    weights = load_weights(
        config.model, torch.bfloat16, torch.device("cpu"), lambda *state: None, place
    )
    kernels = quantized(NativeKernels(native_library(), 1), quantization)
    assert isinstance(kernels, NativeKernels)
    spec = cache_spec(config, place)
    return build_native_decoder(config.model, weights, kernels, 128, spec, place, ranks)


def compare(
    folder: Path,
    layouts: list[tuple[int, int]],
    quantization: str = "none",
    *,
    has_image: bool = False,
) -> float:
    """The largest difference of logits from those of one rank, in their standard deviation."""
    config = engine_config(folder, max_model_len=128)
    batch = two_prompts(config.model.vocab_size, len(cache_spec(config).groups))
    if has_image:
        batch = with_image(batch, config.model.hidden_size)
    whole = build(folder, WHOLE, None, quantization)
    wanted = whole.forward(batch, whole.create_kv_cache(5))
    furthest = 0.0
    for tensor, stages in layouts:
        sizes = RankSizes(tensor, 64, config.model.hidden_size, config.model.vocab_size)
        kept: list[Any] = []

        def build_stage(
            places: list[RankPlace], sizes: RankSizes = sizes, kept: list[Any] = kept
        ) -> list[StageStep]:
            memory = np.zeros(sizes.num_bytes + 4096, dtype=np.uint8)
            kept.append(memory)
            address = -(-memory.ctypes.data // 4096) * 4096
            ranks = RankMemory.at(address, sizes) if len(places) > 1 else None
            return [build(folder, place, ranks, quantization) for place in places]

        layout = ParallelConfig(tensor_parallel_size=tensor, pipeline_parallel_size=stages)
        found, tokens = run_stages(rank_places(layout), build_stage, batch)
        assert tokens.tolist() == found.argmax(-1).tolist()
        furthest = max(furthest, float((found - wanted).abs().max() / wanted.std()))
    return furthest


@pytest.mark.parametrize(("family", "changes"), _FAMILIES, ids=lambda value: str(value)[:30])
def test_parts_give_what_the_whole_gives(
    tmp_path: Path, family: str, changes: dict[str, Any]
) -> None:
    """Their products are rounded to bf16 before other sums than those of one rank."""
    save_rounded(tmp_path, **{**changes, "family": family})
    assert compare(tmp_path, [(2, 1), (4, 1), (1, 3), (2, 2)]) < 0.05


def test_stages_change_no_bit(tmp_path: Path) -> None:
    save_rounded(tmp_path)
    assert compare(tmp_path, [(1, 2), (1, 3)]) == 0.0


def test_parts_of_a_step_with_an_image(tmp_path: Path) -> None:
    save_rounded(tmp_path, "Gemma3", **_WINDOWS)
    assert compare(tmp_path, [(2, 1), (2, 2)], has_image=True) < 0.05
    assert compare(tmp_path, [(1, 3)], has_image=True) == 0.0


def test_quantized_parts_are_near(tmp_path: Path) -> None:
    """A row of a part is rounded by its own largest value."""
    save_rounded(tmp_path)
    assert compare(tmp_path, [(2, 1)], "int8") < 0.3
