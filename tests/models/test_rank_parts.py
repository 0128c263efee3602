"""Parts of a decoder on several ranks, here threads, give what the whole decoder gives."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.config import ParallelConfig
from engine.kernels.kernel_set import StageStep
from engine.kernels.reference import ReferenceKernels
from engine.layers.parallel import RankGroup
from engine.lora_adapters import read_adapter
from engine.models.decoder import DecoderModel
from engine.models.lora import decoder_adapter, read_low_ranks
from engine.models.registry import load_weights
from engine.rank_layout import WHOLE, RankPlace, rank_places
from engine.worker.kv_cache import cache_spec
from tests.models.peft_adapters import save_adapter
from tests.models.rank_threads import (
    ThreadRank,
    ThreadRanks,
    run_stages,
    two_prompts,
    with_image,
)
from tests.models.tiny_models import LLAMA3_ROPE, save_tiny_model
from tests.worker.driver import engine_config

_WINDOWS = {
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    "sliding_window": 16,
}
_FAMILIES: list[tuple[str, dict[str, Any]]] = [
    ("Llama", {"rope_parameters": LLAMA3_ROPE}),
    ("Llama", {"attention_bias": True, "mlp_bias": True}),
    ("Mistral", {"sliding_window": 11}),
    ("Qwen2", {}),
    ("Qwen3", {"tie_word_embeddings": True}),
    ("Gemma3", _WINDOWS),
    ("Gemma2", {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    ("Mixtral", {"num_local_experts": 3}),
    ("GptOss", {"num_local_experts": 3, "num_experts_per_tok": 2, **_WINDOWS}),
]
_LAYOUTS = [(2, 1), (4, 1), (1, 2), (2, 2)]


def build(folder: Path, place: RankPlace, ranks: RankGroup | None) -> DecoderModel:
    config = engine_config(folder, max_model_len=128)
    weights = load_weights(
        config.model, torch.float32, torch.device("cpu"), lambda *state: None, place
    )
    spec = cache_spec(config, place)
    return DecoderModel(config.model, weights, ReferenceKernels(), 128, spec, place, ranks)


@pytest.mark.parametrize(("family", "changes"), _FAMILIES, ids=lambda value: str(value)[:30])
def test_parts_give_what_the_whole_gives(
    tmp_path: Path, family: str, changes: dict[str, Any]
) -> None:
    """Sums over ranks come in another order, so float32 differs in its last bits."""
    save_tiny_model(tmp_path, family, num_hidden_layers=4, head_dim=16, **changes)
    config = engine_config(tmp_path, max_model_len=128)
    batch = two_prompts(config.model.vocab_size, len(cache_spec(config).groups))
    whole = build(tmp_path, WHOLE, None)
    wanted = whole.forward(batch, whole.create_kv_cache(5))

    def build_stage(places: list[RankPlace]) -> list[StageStep]:
        ranks = ThreadRanks(len(places))
        return [build(tmp_path, place, ThreadRank(ranks, place.tensor_rank)) for place in places]

    for tensor, stages in _LAYOUTS:
        layout = ParallelConfig(tensor_parallel_size=tensor, pipeline_parallel_size=stages)
        found, tokens = run_stages(rank_places(layout), build_stage, batch)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
        assert tokens.tolist() == wanted.argmax(-1).tolist()


def test_parts_of_a_step_with_an_image(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "Gemma3", num_hidden_layers=4, head_dim=16, **_WINDOWS)
    config = engine_config(tmp_path, max_model_len=128)
    text = two_prompts(config.model.vocab_size, len(cache_spec(config).groups))
    batch = with_image(text, config.model.hidden_size)
    whole = build(tmp_path, WHOLE, None)
    wanted = whole.forward(batch, whole.create_kv_cache(5))
    plain = whole.forward(text, whole.create_kv_cache(5))
    assert torch.equal(wanted[0], plain[0])  # of the prompt without one
    assert (wanted[1] - plain[1]).abs().max() > 0.1

    def build_stage(places: list[RankPlace]) -> list[StageStep]:
        ranks = ThreadRanks(len(places))
        return [build(tmp_path, place, ThreadRank(ranks, place.tensor_rank)) for place in places]

    for tensor, stages in _LAYOUTS:
        layout = ParallelConfig(tensor_parallel_size=tensor, pipeline_parallel_size=stages)
        found, _ = run_stages(rank_places(layout), build_stage, batch)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_each_rank_has_its_part_of_an_adapter(tmp_path: Path) -> None:
    base = save_tiny_model(tmp_path, "Llama", num_hidden_layers=4, head_dim=16)
    save_adapter(base, tmp_path / "adapter", seed=5)
    config = engine_config(tmp_path, max_model_len=128).model
    batch = dataclasses.replace(
        two_prompts(config.vocab_size, 1), adapters=np.array([0] * 30 + [-1] * 30)
    )

    def adapted(model: DecoderModel, place: RankPlace) -> DecoderModel:
        where = tmp_path / "adapter"
        cpu = torch.device("cpu")
        found = read_low_ranks(where, read_adapter(where, 8), torch.float32, cpu)
        model.load_adapter(0, decoder_adapter(found, config, place))
        return model

    def build_stage(places: list[RankPlace]) -> list[StageStep]:
        ranks = ThreadRanks(len(places))
        return [
            adapted(build(tmp_path, place, ThreadRank(ranks, place.tensor_rank)), place)
            for place in places
        ]

    whole = adapted(build(tmp_path, WHOLE, None), WHOLE)
    wanted = whole.forward(batch, whole.create_kv_cache(5))
    plain = whole.forward(dataclasses.replace(batch, adapters=None), whole.create_kv_cache(5))
    assert (wanted[0] - plain[0]).abs().max() > 0.1
    for tensor, stages in _LAYOUTS:
        layout = ParallelConfig(tensor_parallel_size=tensor, pipeline_parallel_size=stages)
        found, _ = run_stages(rank_places(layout), build_stage, batch)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
