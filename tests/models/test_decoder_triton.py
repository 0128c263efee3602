"""Whole model steps on Triton's kernels, under the interpreter, against the reference set's."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tests.interpreted_triton  # noqa: F401  (before any kernel)
from engine.config import ParallelConfig
from engine.kernels.kernel_set import StageStep, create_kernel_set
from engine.kernels.scaled_weights import plain_weight, scaled_weight
from engine.kernels.step_batch import StepBatch
from engine.kernels.triton.kernels import TritonKernels
from engine.kernels.triton.runtime import launch
from engine.kernels.triton.targets import INTERPRETED
from engine.kernels.weight_formats import weight_formats
from engine.layers.parallel import RankGroup
from engine.models.decoder import DecoderModel
from engine.models.decoder_triton import TritonDecoder
from engine.models.registry import load_weights
from engine.rank_layout import RankPlace, rank_places
from engine.worker.kv_cache import cache_spec, torch_dtype
from tests.kernels.native_models import group_windows, reference_model
from tests.kernels.paged_sequences import PagedSequences
from tests.kernels.seeing_sequences import SeeingSequences
from tests.models.rank_threads import ThreadRank, ThreadRanks, run_stages, two_prompts
from tests.models.tiny_models import save_tiny_model
from tests.worker.driver import engine_config

FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Qwen3": {"head_dim": 16},
    "Gemma3": {"head_dim": 24, "sliding_window": 12, "query_pre_attn_scalar": 24},
}
LENGTHS = (1, 30, 19, 7)


def triton_model(
    folder: Path, *, dtype: str = "float32", quantization: str = "none", **changes: Any
) -> TritonDecoder:
    config = engine_config(folder, dtype=dtype, **changes)
    weights = load_weights(
        config.model, torch_dtype(dtype), torch.device("cpu"), lambda *state: None
    )
    kernels = TritonKernels(INTERPRETED, formats=weight_formats(quantization))
    return TritonDecoder(config.model, weights, kernels, 256, cache_spec(config))


def save(folder: Path, family: str) -> None:
    save_tiny_model(folder, family, num_hidden_layers=2, **FAMILIES[family])


@pytest.mark.parametrize("family", FAMILIES)
def test_steps_of_decodes_and_chunks_give_the_tokens_of_the_reference(
    family: str, tmp_path: Path
) -> None:
    """Chunks alone, chunks beside decodes, then decodes alone, which is the fused kernel."""
    save(tmp_path, family)
    model, reference = triton_model(tmp_path, block_size=4), reference_model(tmp_path, block_size=4)
    prompts = np.random.default_rng(1).integers(0, 199, (4, max(LENGTHS))).tolist()
    prompts = [prompt[:length] for prompt, length in zip(prompts, LENGTHS, strict=True)]
    windows = group_windows(tmp_path)
    found = PagedSequences(model, prompts, 4, windows=windows)
    wanted = PagedSequences(reference, prompts, 4, windows=windows)
    steps = [[0, 25, 9, 0], [1, 1, 8, 5], [0, 1, 1, 1], [0, 1, 1, 1], [0, 2, 0, 0]]
    for logits, expected in zip(found.run(steps), wanted.run(steps), strict=True):
        torch.testing.assert_close(logits, expected, rtol=2e-4, atol=2e-4)
        assert logits.argmax(-1).tolist() == expected.argmax(-1).tolist()


def test_a_step_in_bf16_over_an_fp8_cache(tmp_path: Path) -> None:
    """As near to float32 as the reference's own bf16."""
    save(tmp_path, "Qwen3")
    flags: dict[str, Any] = {"dtype": "bfloat16", "cache_dtype": "fp8"}
    model, exact = triton_model(tmp_path, **flags), reference_model(tmp_path, cache_dtype="fp8")
    prompts = np.random.default_rng(2).integers(0, 199, (2, 20)).tolist()
    steps = [[17, 19], [1, 1], [1, 0], [1, 0]]
    for logits, expected in zip(
        PagedSequences(model, prompts, 16).run(steps),
        PagedSequences(exact, prompts, 16).run(steps),
        strict=True,
    ):
        assert (logits - expected).norm() / expected.norm() < 0.06


@pytest.mark.parametrize("quantization", ["int8", "fp8", "fp8_per_block"])
def test_a_step_with_weights_of_eight_bits(quantization: str, tmp_path: Path) -> None:
    """What a decoder of plain torch gives whose weights were rounded before."""
    save(tmp_path, "Qwen3")
    config = engine_config(tmp_path)
    weights = load_weights(config.model, torch.float32, torch.device("cpu"), lambda *state: None)
    formats = weight_formats(quantization)
    for layer in weights.layers:
        for linear in (layer.qkv, layer.output, layer.gate_up, layer.down):
            linear.weight.copy_(plain_weight(scaled_weight(linear.weight, formats.layers)))
    plain = DecoderModel(
        config.model, weights, create_kernel_set("reference"), 256, cache_spec(config)
    )
    model = triton_model(tmp_path, quantization=quantization)
    prompts = np.random.default_rng(4).integers(0, 199, (2, 20)).tolist()
    steps = [[18, 19], [1, 1], [1, 0]]
    bound = 0.05 if quantization == "int8" else 1e-4  # int8 rounds the inputs, too, and the head
    for logits, expected in zip(
        PagedSequences(model, prompts, 16).run(steps),
        PagedSequences(plain, prompts, 16).run(steps),
        strict=True,
    ):
        assert (logits - expected).norm() / expected.norm() < bound
    assert model.weight_bytes < triton_model(tmp_path).weight_bytes * 0.6


class OneAtATime:
    """The interpreter knows one program at a time, and ranks are threads here."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __call__(self, kernel: Any, grid: Sequence[int], *args: Any, **constants: Any) -> None:
        with self._lock:
            launch(kernel, grid, *args, **constants)


@pytest.mark.parametrize(("family", "tensor", "stages"), [("Llama", 2, 1), ("Gemma3", 2, 2)])
def test_parts_on_ranks_give_what_the_whole_gives(
    family: str, tensor: int, stages: int, tmp_path: Path
) -> None:
    save(tmp_path, family)
    config = engine_config(tmp_path, max_model_len=128)
    batch = two_prompts(config.model.vocab_size, len(cache_spec(config).groups))
    whole = reference_model(tmp_path)
    wanted = whole.forward(batch, whole.create_kv_cache(5))
    one_at_a_time = OneAtATime()

    def part(place: RankPlace, ranks: RankGroup) -> TritonDecoder:
        weights = load_weights(
            config.model, torch.float32, torch.device("cpu"), lambda *state: None, place
        )
        kernels, spec = TritonKernels(INTERPRETED, one_at_a_time), cache_spec(config, place)
        return TritonDecoder(config.model, weights, kernels, 128, spec, place, ranks)

    def stage(places: list[RankPlace]) -> list[StageStep]:
        ranks = ThreadRanks(len(places))
        return [part(place, ThreadRank(ranks, place.tensor_rank)) for place in places]

    layout = ParallelConfig(tensor_parallel_size=tensor, pipeline_parallel_size=stages)
    found, tokens = run_stages(rank_places(layout), stage, batch)
    torch.testing.assert_close(found, wanted, rtol=2e-4, atol=2e-4)
    assert tokens.tolist() == wanted.argmax(-1).tolist()


def test_the_sets_single_operations_make_the_same_decoder(tmp_path: Path) -> None:
    """As the models of transformers use them: each operation by itself, sliding windows too."""
    save(tmp_path, "Gemma3")
    config = engine_config(tmp_path, block_size=4)
    weights = load_weights(config.model, torch.float32, torch.device("cpu"), lambda *state: None)
    kernels = TritonKernels(INTERPRETED)
    model = DecoderModel(config.model, weights, kernels, 256, cache_spec(config))
    windows = group_windows(tmp_path)
    prompts = np.random.default_rng(3).integers(0, 199, (2, 17)).tolist()
    steps = [[15, 0], [1, 16], [1, 1]]
    for logits, expected in zip(
        PagedSequences(model, prompts, 4, windows=windows).run(steps),
        PagedSequences(reference_model(tmp_path, block_size=4), prompts, 4, windows=windows).run(
            steps
        ),
        strict=True,
    ):
        torch.testing.assert_close(logits, expected, rtol=2e-4, atol=2e-4)


def test_a_step_with_images_gives_the_logits_of_the_reference(tmp_path: Path) -> None:
    """An image beside chunks and decodes, then steps of text behind it."""
    save(tmp_path, "Gemma3")
    model, reference = triton_model(tmp_path, block_size=4), reference_model(tmp_path, block_size=4)
    prompts = np.random.default_rng(5).integers(0, 199, (3, 30)).tolist()
    images, windows = [[range(2, 22)], [], [range(5, 9), range(10, 17)]], group_windows(tmp_path)
    steps = [[0, 29, 5], [25, 1, 12], [1, 0, 1], [4, 0, 12]]
    found, wanted = (
        SeeingSequences(each, prompts, images, 64, 4, windows=windows).run(steps)
        for each in (model, reference)
    )
    for logits, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(logits, expected, rtol=2e-4, atol=2e-4)


def test_greedy_tokens_are_those_of_the_largest_logits(tmp_path: Path) -> None:
    save(tmp_path, "Llama")
    model = triton_model(tmp_path, block_size=4)
    sequences = PagedSequences(model, [[5, 6, 7, 8], [9, 10, 11, 12]], 4)
    batch = sequences.batch([(0, 4), (0, 3)])
    logits = model.forward(batch, sequences.cache)
    tokens = model.greedy_tokens(batch, sequences.cache)
    assert tokens.tolist() == logits.argmax(-1).tolist()


def test_a_sequence_behind_a_block_that_is_just_filled_is_no_uniform_decode(
    tmp_path: Path,
) -> None:
    """It would read a key that another program of the same launch writes."""
    save(tmp_path, "Llama")
    model = triton_model(tmp_path, block_size=4)

    def batch(positions: list[int], tables: list[list[int]]) -> StepBatch:
        places = np.array(positions)
        table = np.array([tables])
        blocks = table[0, np.arange(len(places)), places // 4]
        return StepBatch(
            token_ids=np.zeros(len(places), dtype=np.int64),
            positions=places,
            slot_mapping=(blocks * 4 + places % 4)[None],
            query_start_loc=np.arange(len(places) + 1),
            num_computed=places,
            block_table=table,
            logits_rows=np.arange(len(places)),
        )

    assert not model.is_uniform_decode(batch([7, 8], [[1, 2, 0], [1, 2, 3]]))
    assert model.is_uniform_decode(batch([6, 8], [[1, 2, 0], [1, 4, 3]]))
    assert model.is_uniform_decode(batch([7, 8], [[1, 2, 0], [1, 4, 3]]))
