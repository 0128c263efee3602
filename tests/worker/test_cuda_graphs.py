"""Steps from recorded graphs, on a device that records and repeats on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tests.interpreted_triton  # noqa: F401  (before any kernel)
from engine.config import CompilationConfig, EngineConfig, SchedulerConfig
from engine.cuda_graph_sizes import CUDAGraphMode, GraphChoice, GraphPlan
from engine.kernels.step_batch import StepBatch
from engine.kernels.triton.kernels import TritonKernels
from engine.kernels.triton.targets import INTERPRETED
from engine.machine.sizes import GIB
from engine.models.decoder_triton import TritonDecoder
from engine.models.registry import load_weights
from engine.worker.cuda_graphs import GraphedDecoder, graphed_decoder
from engine.worker.graph_settings import configured_graphs
from engine.worker.kv_cache import cache_spec
from logparse import LogParser
from tests.fakes.graph_device import RecordingDevice
from tests.kernels.paged_sequences import PagedSequences
from tests.kernels.seeing_sequences import SeeingSequences
from tests.models.tiny_models import save_tiny_model
from tests.worker.driver import engine_config

FULL, PIECEWISE, NONE = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE, CUDAGraphMode.NONE


class Graphed:
    """A tiny model, with and without graphs, on one recording device."""

    def __init__(self, folder: Path, plan: GraphPlan, **changes: Any) -> None:
        save_tiny_model(folder, "Llama", **{"num_hidden_layers": 2, **changes})
        self.config = engine_config(folder, block_size=16, max_model_len=512)
        self.spec = cache_spec(self.config)
        self.device = RecordingDevice(scale=50_000)
        weights = load_weights(
            self.config.model, torch.float32, torch.device("cpu"), lambda *state: None
        )
        self.embedding_bytes = weights.embedding.nbytes
        kernels = TritonKernels(INTERPRETED, self.device.launch)
        self.plain = TritonDecoder(self.config.model, weights, kernels, 512, self.spec)
        self.model: GraphedDecoder = graphed_decoder(
            self.plain, self.device, plan, self.config, self.spec
        )


def uniform(num_sequences: int, *, computed: int = 20) -> StepBatch:
    """One token each, behind `computed` others."""
    return chunks([1] * num_sequences, computed)


def chunks(lengths: list[int], computed: int = 20) -> StepBatch:
    positions = np.concatenate([np.arange(computed, computed + length) for length in lengths])
    total = len(positions)
    table = np.arange(1, 1 + len(lengths) * 130).reshape(1, len(lengths), 130)
    owners = np.repeat(np.arange(len(lengths)), lengths)
    slots = table[0, owners, positions // 16] * 16 + positions % 16
    ends = np.cumsum(lengths)
    return StepBatch(
        token_ids=np.arange(total) % 199,
        positions=positions,
        slot_mapping=slots[None],
        query_start_loc=np.concatenate(([0], ends)),
        num_computed=np.full(len(lengths), computed),
        block_table=table,
        logits_rows=ends - 1,
    )


def example_7(**asked: Any) -> EngineConfig:
    """The server of the example: 256 sequences, 2,048 tokens."""
    return EngineConfig(
        model=None,  # type: ignore[arg-type]
        cache=None,  # type: ignore[arg-type]
        scheduler=SchedulerConfig(max_num_seqs=256, max_num_batched_tokens=2048),
        compilation=CompilationConfig(**asked),
    )


@pytest.fixture(scope="module")
def server_of_example_7(tmp_path_factory: pytest.TempPathFactory) -> GraphedDecoder:
    plan = configured_graphs(example_7())
    return Graphed(tmp_path_factory.mktemp("model"), plan).model


@pytest.mark.parametrize(
    ("num_tokens", "padding"), [(1, 0), (3, 1), (37, 3), (255, 1), (300, 4), (512, 0)]
)
def test_example_7_through_the_dispatcher(
    num_tokens: int, padding: int, server_of_example_7: GraphedDecoder
) -> None:
    choose, size = server_of_example_7.choose, num_tokens + padding
    decode_mode = FULL if size <= 256 else PIECEWISE
    assert choose(uniform(num_tokens)) == GraphChoice(decode_mode, size)
    if num_tokens > 1:
        assert choose(chunks([num_tokens])) == GraphChoice(PIECEWISE, size)
        assert choose(chunks([num_tokens - 1, 1])).size == (size if num_tokens > 2 else 2)


@pytest.mark.parametrize("num_tokens", [513, 2048])
def test_example_7_has_no_graph_for_more(
    num_tokens: int, server_of_example_7: GraphedDecoder
) -> None:
    assert server_of_example_7.choose(chunks([num_tokens])) == GraphChoice(NONE, None)
    assert server_of_example_7.choose(uniform(num_tokens)) == GraphChoice(NONE, None)


def test_flags_decide_which_graphs_there_are() -> None:
    def numbers(**asked: Any) -> tuple[int, int]:
        plan = configured_graphs(example_7(**asked))
        return len(plan.piecewise_sizes), len(plan.full_sizes)

    assert [numbers(optimization_level=level) for level in range(4)] == [
        (0, 0),
        (51, 0),
        (51, 35),
        (51, 35),
    ]
    assert numbers(enforce_eager=True) == numbers(cudagraph_mode="NONE") == (0, 0)
    assert numbers(cudagraph_mode="FULL_DECODE_ONLY") == (0, 35)
    assert numbers(cudagraph_capture_sizes=(1, 2, 300)) == (3, 2)
    assert configured_graphs(example_7(), (10, 0)).piecewise_sizes[-1] == 512
    assert configured_graphs(example_7(max_cudagraph_capture_size=8)).full_sizes == (1, 2, 4, 8)


def test_graphs_are_recorded_large_to_small_and_the_log_is_read(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    logged: pytest.LogCaptureFixture,
) -> None:
    graphed = Graphed(tmp_path, GraphPlan((1, 2, 4), (1, 2)))
    order: list[tuple[CUDAGraphMode, int]] = []
    record = graphed.model._capture_one

    def noted(mode: CUDAGraphMode, size: int, kv_cache: list[Tensor]) -> None:
        order.append((mode, size))
        record(mode, size, kv_cache)

    graphed.model._capture_one = noted  # type: ignore[method-assign]
    estimate = graphed.model.estimate_bytes()
    assert estimate > 0
    assert order == [(PIECEWISE, 4), (PIECEWISE, 2), (PIECEWISE, 1), (FULL, 2), (FULL, 1)]
    order.clear()
    taken = graphed.model.capture(graphed.plain.create_kv_cache(8))
    assert order == [(PIECEWISE, 4), (PIECEWISE, 2), (PIECEWISE, 1), (FULL, 2), (FULL, 1)]
    # Three pieces of two layers for each size; whole steps beside them.
    assert len(graphed.device.graph_sizes) == 2 * (3 * 3 + 2)

    bars = capsys.readouterr().out.splitlines()
    assert bars[3].endswith("it/s]")
    assert (
        "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE): 100%|##########| 3/3 [" in bars[3]
    )
    assert "Capturing CUDA graphs (decode, FULL): 100%|##########| 2/2 [" in bars[-1]
    parser = LogParser()
    lines = [
        f"(EngineCore pid=7) INFO 10-03 12:01:08 [cuda_graphs.py:1] {entry.getMessage()}"
        for entry in logged.records
    ]
    for line in [*bars, *lines]:
        parser.feed(line)
    assert "Profiling CUDA graph memory: PIECEWISE=3 (largest=4), FULL=2 (largest=2)" in logged.text
    facts = parser.report().facts
    assert facts.graph_gib is not None
    assert taken > GIB / 10
    assert facts.graph_gib == pytest.approx(taken / GIB, abs=0.005)


def logits_of(model: Any, steps: list[list[int]], prompts: list[list[int]]) -> list[Tensor]:
    sequences = PagedSequences(model, prompts, 16)
    if isinstance(model, GraphedDecoder):
        model.capture(sequences.cache)
    return sequences.run(steps)


def test_replays_compute_what_steps_without_graphs_do(tmp_path: Path) -> None:
    """Full graphs with and without padding, piecewise ones, and a batch that is too large."""
    graphed = Graphed(tmp_path, GraphPlan((4, 16), (2, 4)))
    prompts = np.random.default_rng(4).integers(0, 199, (3, 16)).tolist()
    prompts = [prompt[:length] for prompt, length in zip(prompts, (16, 6, 9), strict=True)]
    steps = [[12, 0, 5], [1, 5, 1], [1, 1, 1], [1, 0, 1], [1, 0, 1]]
    found = logits_of(graphed.model, steps, prompts)
    for logits, expected in zip(found, logits_of(graphed.plain, steps, prompts), strict=True):
        torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    assert dict(graphed.model.counts) == {NONE: 1, PIECEWISE: 1, FULL: 3}
    assert graphed.model.num_padding_tokens == (16 - 7) + 1
    # A full step is one replay, a piecewise one a replay for each piece of two layers.
    assert graphed.device.replays == 3 + 3


def test_another_cache_is_computed_without_graphs(tmp_path: Path) -> None:
    graphed = Graphed(tmp_path, GraphPlan((2,), (2,)))
    graphed.model.capture(graphed.plain.create_kv_cache(300))
    graphed.model.forward(uniform(2), graphed.plain.create_kv_cache(300))
    assert graphed.device.replays == 0


def test_a_step_with_images_is_computed_without_graphs(tmp_path: Path) -> None:
    graphed = Graphed(tmp_path, GraphPlan((16,), (2,)))
    prompts = np.random.default_rng(4).integers(0, 199, (2, 14)).tolist()
    images, steps = [[range(2, 9)], []], [[10, 5], [3, 8], [1, 1]]
    found = SeeingSequences(graphed.model, prompts, images, 64)
    graphed.model.capture(found.cache)
    wanted = SeeingSequences(graphed.plain, prompts, images, 64)
    for logits, expected in zip(found.run(steps), wanted.run(steps), strict=True):
        torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    assert dict(graphed.model.counts) == {NONE: 1, PIECEWISE: 1, FULL: 1}


def test_a_decode_layer_is_eight_launches_and_a_step_one_replay(tmp_path: Path) -> None:
    launches = []
    for layers in (2, 3):
        graphed = Graphed(tmp_path / str(layers), GraphPlan((4,), (4,)), num_hidden_layers=layers)
        cache = graphed.plain.create_kv_cache(600)
        graphed.plain.greedy_tokens(uniform(4), cache)  # allocates what is then kept
        graphed.device.kernels.clear()
        with graphed.device.watched():
            graphed.plain.greedy_tokens(uniform(4), cache)
        launches.append(len(graphed.device.kernels))
    assert launches[1] - launches[0] == 8, graphed.device.kernels
    assert launches[0] == 2 * 8 + 4  # the embedding, its norm, the head, the choice of the token
    graphed.model.capture(cache)
    graphed.device.kernels.clear()
    with graphed.device.watched():
        graphed.model.greedy_tokens(uniform(4), cache)
    assert graphed.device.replays == 1
    # Beside it the head and the choice of the token.
    assert len(graphed.device.kernels) <= 3, graphed.device.kernels


@pytest.mark.parametrize("num_sequences", [1, 3])
def test_a_decode_step_moves_weights_and_cache_and_little_else(
    num_sequences: int, tmp_path: Path
) -> None:
    graphed = Graphed(
        tmp_path,
        GraphPlan((1,), (1,)),
        hidden_size=512,
        intermediate_size=1024,
        num_attention_heads=8,
        vocab_size=1024,
        num_hidden_layers=1,
    )
    computed = 150
    cache = graphed.plain.create_kv_cache(600)
    graphed.device.num_bytes = 0
    with graphed.device.watched():
        graphed.plain.greedy_tokens(uniform(num_sequences, computed=computed), cache)
    weights = graphed.plain.weight_bytes - graphed.embedding_bytes  # of which it reads rows only
    spec = graphed.spec
    kv = spec.page_bytes // spec.block_size * spec.num_layers * (computed + 1) * num_sequences
    assert graphed.device.num_bytes == pytest.approx(weights + kv, rel=0.05)
    assert graphed.device.num_bytes > weights + kv
