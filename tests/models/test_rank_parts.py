"""Parts of a decoder on several ranks, here threads, give what the whole decoder gives."""

from __future__ import annotations

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.config import ParallelConfig
from engine.kernels.reference import ReferenceKernels
from engine.kernels.step_batch import StepBatch
from engine.layers.parallel import RankGroup
from engine.model_config import ModelConfig
from engine.models.decoder import DecoderModel
from engine.models.registry import load_weights
from engine.rank_layout import WHOLE, RankPlace, rank_places
from engine.worker.kv_cache import cache_spec
from engine.worker.model_runner import dummy_batch
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
]
_LAYOUTS = [(2, 1), (4, 1), (1, 2), (2, 2)]


class ThreadRanks:
    """Ranks that are threads of this process."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=60)
        self.slots: list[Tensor] = [torch.empty(0)] * size

    def exchange(self, rank: int, x: Tensor) -> list[Tensor]:
        self.slots[rank] = x
        self.barrier.wait()
        found = list(self.slots)
        self.barrier.wait()
        return found


@dataclass(frozen=True)
class ThreadRank:
    ranks: ThreadRanks
    rank: int

    def sum(self, x: Tensor) -> Tensor:
        return torch.stack([part.float() for part in self.ranks.exchange(self.rank, x)]).sum(0)

    def gather_columns(self, x: Tensor, widths: list[int]) -> Tensor:
        parts = self.ranks.exchange(self.rank, x)
        assert [part.shape[1] for part in parts] == widths
        return torch.cat(parts, -1)


def build(folder: Path, place: RankPlace, ranks: RankGroup | None) -> DecoderModel:
    config = engine_config(folder, max_model_len=128)
    weights = load_weights(
        config.model, torch.float32, torch.device("cpu"), lambda *state: None, place
    )
    spec = cache_spec(config, place)
    return DecoderModel(config.model, weights, ReferenceKernels(), 128, spec, place, ranks)


def prompts(config: ModelConfig, num_groups: int) -> StepBatch:
    batch = dummy_batch(60, 2, 16, num_groups)
    batch.token_ids[:] = torch.arange(60).numpy() * 7 % config.vocab_size
    batch.block_table[:] = [[[1, 2], [3, 4]]]
    owner = batch.block_table[:, :, :].repeat(30, axis=1)
    batch.slot_mapping[:] = owner[:, range(60), batch.positions // 16] * 16 + batch.positions % 16
    return batch


def run_stages(folder: Path, places: list[RankPlace], batch: StepBatch) -> Tensor:
    """Logits of the output rank; stages run one after the other, their ranks side by side."""
    for stage in range(places[-1].num_stages):
        stage_places = [place for place in places if place.stage == stage]
        ranks = ThreadRanks(len(stage_places))

        def run(place: RankPlace, ranks: ThreadRanks = ranks, batch: StepBatch = batch) -> Tensor:
            model = build(folder, place, ThreadRank(ranks, place.tensor_rank))
            cache = model.create_kv_cache(5)
            if batch.residual is not None:  # each rank adds to one of its own
                batch = dataclasses.replace(batch, residual=batch.residual.copy())
            if place.is_last_stage:
                return model.forward(batch, cache)
            return model.residual(batch, cache)

        with ThreadPoolExecutor(len(stage_places)) as pool:
            results = list(pool.map(run, stage_places))
        batch = dataclasses.replace(batch, residual=results[0].numpy())
    return results[0]


@pytest.mark.parametrize(("family", "changes"), _FAMILIES, ids=lambda value: str(value)[:30])
def test_parts_give_what_the_whole_gives(
    tmp_path: Path, family: str, changes: dict[str, Any]
) -> None:
    """Sums over ranks come in another order, so float32 differs in its last bits."""
    save_tiny_model(tmp_path, family, num_hidden_layers=4, head_dim=16, **changes)
    config = engine_config(tmp_path, max_model_len=128)
    batch = prompts(config.model, len(cache_spec(config).groups))
    whole = build(tmp_path, WHOLE, None)
    wanted = whole.forward(batch, whole.create_kv_cache(5))
    for tensor, stages in _LAYOUTS:
        layout = ParallelConfig(tensor_parallel_size=tensor, pipeline_parallel_size=stages)
        found = run_stages(tmp_path, rank_places(layout), batch)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
        assert found.argmax(-1).equal(wanted.argmax(-1))
