"""GraphedDecoder: a decoder whose steps are replayed from recorded graphs, and need not be waited
for.

A step of decodes replays one FULL graph. Others replay PIECEWISE graphs, one for the work between
two layers' attention, which runs outside of them. Which sizes exist and which graph a batch gets:
`engine.cuda_graph_sizes`.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.cuda_graph_sizes import CUDAGraphMode, GraphChoice, GraphPlan
from engine.kernels.kernel_set import DrawSettings, KVCache, ModelStep, PendingTokens
from engine.kernels.step_batch import IntArray, StepBatch
from engine.kernels.triton.kernels import packed_settings
from engine.kernels.triton.step_inputs import StepInputs, StepSize, packed_capacity
from engine.kv_sizing import KVCacheSpec, format_gib
from engine.logger import CaptureBar, get_logger
from engine.messages import GraphStats
from engine.models.decoder_triton import TritonDecoder
from engine.worker.graph_device import Graph, GraphDevice

logger = get_logger(__name__)

_TITLES = {
    CUDAGraphMode.PIECEWISE: "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE)",
    CUDAGraphMode.FULL: "Capturing CUDA graphs (decode, FULL)",
}
_SMALLEST_GRAPH_BYTES = 1 << 20
_SAMPLED_GRAPHS = 2  # that are recorded to estimate the memory of all


class GraphedDecoder:
    """A ModelStep over `model`; it replays nothing before `capture` was called.

    `process_name` is what the progress bars begin with. `counts` are steps per kind of graph.
    """

    def __init__(
        self,
        model: TritonDecoder,
        device: GraphDevice,
        plan: GraphPlan,
        buffer_numbers: int,
        process_name: str = "EngineCore",
        max_rows: int = 256,
    ) -> None:
        self._model = model
        self._device = device
        self._plan = plan
        self._process_name = process_name
        self._graphs: dict[GraphChoice, list[Graph]] = {}  # one, or one per piece
        self._kv_cache: KVCache | None = None
        largest = max((size for _, size in plan.captures), default=0)
        # What outlives a graph is here: its own memory is the next one's, too.
        self._residual = model.new_residual(largest)
        self._hidden = model.new_residual(largest)
        self._qkv = model.new_qkv(largest)
        self._attended = model.new_attended(largest).zero_()  # padding must hold numbers
        self._inputs = torch.zeros(buffer_numbers, dtype=torch.int32, device=model.device)
        # Where step after step leaves its tokens, and finds those of the one before.
        self._sampled = model.keep_sampled(max_rows)
        self._settings = torch.zeros(5 * max_rows, dtype=torch.int32, device=model.device)
        self.counts: Counter[CUDAGraphMode] = Counter()
        self.num_graph_tokens = 0  # of replayed steps, padding included
        self.num_padding_tokens = 0
        self._told = self._totals()

    @property
    def weight_bytes(self) -> int:
        return self._model.weight_bytes

    def create_kv_cache(self, num_blocks: int) -> KVCache:
        return self._model.create_kv_cache(num_blocks)

    @torch.inference_mode()
    def forward(self, batch: StepBatch, kv_cache: KVCache) -> Tensor:
        """Float32 logits [R, vocabulary]; the head is outside of graphs."""
        return self._model.logits(self._run(batch, kv_cache))

    @torch.inference_mode()
    def hidden_states(self, batch: StepBatch, kv_cache: KVCache) -> Tensor:
        """Float32 [R, hidden] after the final norm; a copy, for the next step overwrites it."""
        return self._run(batch, kv_cache).clone()

    @torch.inference_mode()
    def greedy_tokens(self, batch: StepBatch, kv_cache: KVCache) -> IntArray:
        """The most likely token [R]."""
        return self._model.most_likely(self._run(batch, kv_cache))

    @torch.inference_mode()
    def start(self, batch: StepBatch, kv_cache: KVCache) -> Tensor:
        """An AheadStep: nothing in here or in the next three waits for the device."""
        return self._model.logits(self._run(batch, kv_cache))

    @torch.inference_mode()
    def choose_tokens(self, logits: Tensor, settings: DrawSettings | None) -> Tensor:
        """Tokens [R] on the device, where the next step finds them and then leaves its own."""
        tokens, packed = self._sampled[: len(logits)], None
        if settings is not None:
            numbers = packed_settings(settings)
            self._device.upload(numbers, self._settings)
            packed = self._settings[: len(numbers)]
        self._model.choose(logits, tokens, packed)
        return tokens

    def send(self, tensor: Tensor) -> Tensor:
        return self._device.send(tensor)

    def download(self, tokens: Tensor) -> PendingTokens:
        return self._device.download(tokens)

    def take_stats(self) -> GraphStats:
        """What steps did since the last call."""
        before, now = self._told, self._totals()
        self._told = now
        return GraphStats(
            now.num_steps - before.num_steps,
            {mode: count - before.replayed[mode] for mode, count in now.replayed.items()},
            now.num_graph_tokens - before.num_graph_tokens,
            now.num_padding_tokens - before.num_padding_tokens,
        )

    def _totals(self) -> GraphStats:
        return GraphStats(
            self.counts.total(),
            {mode.value: self.counts[mode] for mode in _TITLES},
            self.num_graph_tokens,
            self.num_padding_tokens,
        )

    def choose(self, batch: StepBatch) -> GraphChoice:
        """The graph that this batch replays."""
        is_uniform = self._model.is_uniform_decode(batch)
        return self._plan.dispatch(len(batch.token_ids), is_uniform_decode=is_uniform)

    def estimate_bytes(self) -> int:
        """Memory that all graphs will take, from the largest of each kind.

        vLLM's rule (profile_cudagraph_memory in v1/worker/gpu): piecewise graphs are recorded all,
        of the full ones two, and each of the others counts as the second.
        """
        captures = self._plan.captures
        if not captures:
            return 0
        kinds = Counter(mode.value for mode, _ in captures)
        largest = {mode.value: size for mode, size in reversed(captures)}
        logger.info(
            "Profiling CUDA graph memory: %s",
            ", ".join(f"{kind}={kinds[kind]} (largest={largest[kind]})" for kind in kinds),
        )
        cache = self._model.create_kv_cache(1)
        piecewise = [size for mode, size in captures if mode is CUDAGraphMode.PIECEWISE]
        full = [size for mode, size in captures if mode is CUDAGraphMode.FULL]
        measured = self._growth(CUDAGraphMode.PIECEWISE, piecewise, cache)
        samples = [
            self._growth(CUDAGraphMode.FULL, [size], cache) for size in full[:_SAMPLED_GRAPHS]
        ]
        if samples:
            each = max(samples[-1], _SMALLEST_GRAPH_BYTES)
            measured += samples[0] + (len(full) - 1) * each
        self.forget_graphs()
        logger.info("Estimated CUDA graph memory: %s GiB total", format_gib(measured))
        return measured

    def capture(self, kv_cache: KVCache) -> int:
        """Record every graph over `kv_cache`, large before small; the bytes that they take."""
        self.forget_graphs()
        self._told = self._totals()  # steps that measured memory were nobody's
        self._kv_cache = kv_cache
        if not self._plan.captures:
            return 0
        start, before = time.monotonic(), self._device.used_bytes()
        for mode, title in _TITLES.items():
            sizes = [size for kind, size in self._plan.captures if kind is mode]
            if not sizes:
                continue
            bar = CaptureBar(self._process_name, title, len(sizes))
            for done, size in enumerate(sizes, 1):
                self._capture_one(mode, size, kv_cache)
                bar.update(done)
        self._device.synchronize()
        taken = max(0, self._device.used_bytes() - before)
        logger.info(
            "Graph capturing finished in %.0f secs, took %s GiB",
            time.monotonic() - start,
            format_gib(taken),
        )
        return taken

    def forget_graphs(self) -> None:
        """Nothing is replayed until the next `capture`; their memory goes back."""
        self._graphs.clear()
        self._kv_cache = None
        self._device.release_unused()

    def _growth(self, mode: CUDAGraphMode, sizes: list[int], kv_cache: KVCache) -> int:
        before = self._device.used_bytes()
        for size in sizes:
            self._capture_one(mode, size, kv_cache)
        self._device.synchronize()
        return max(0, self._device.used_bytes() - before)

    @torch.inference_mode()
    def _capture_one(self, mode: CUDAGraphMode, size: int, kv_cache: KVCache) -> None:
        """Once to compile and to warm up, then recorded. Padding alone touches no cache."""
        step = self._fill(_empty_batch(self._model.num_groups), _padded(mode, size, 0))
        recorded: list[Graph] = []
        for run in self._pieces(mode, step, kv_cache):
            run()
            self._device.synchronize()
            recorded.append(self._device.record(run))
        self._graphs[GraphChoice(mode, size)] = recorded

    def _pieces(
        self, mode: CUDAGraphMode, step: StepInputs, kv_cache: KVCache
    ) -> Iterator[Callable[[], Tensor]]:
        """What is recorded one by one: the whole step, or all that lies between attention."""
        model, size = self._model, step.size.tokens
        residual, attended = self._residual[:size], self._attended[:size]
        qkv, hidden = self._qkv[:size], self._hidden[:size]
        if mode is CUDAGraphMode.FULL:
            yield lambda: hidden.copy_(model.run_layers(step, kv_cache, residual, attended))
            return
        yield lambda: qkv.copy_(model.start(step.token_ids, residual))
        for number in range(model.num_layers - 1):
            yield functools.partial(_proceed, model, number, attended, residual, qkv)
        last = model.num_layers - 1
        yield functools.partial(_proceed, model, last, attended, residual, hidden)

    def _run(self, batch: StepBatch, kv_cache: KVCache) -> Tensor:
        """Float32 [R, hidden] of the rows that need logits, in memory that the next step reuses.

        Images are in no graph: what their tokens see depends on them.
        """
        if batch.images is not None:
            self.counts[CUDAGraphMode.NONE] += 1
            return self._model.hidden_states(batch, kv_cache)
        choice = self.choose(batch)
        recorded = self._graphs.get(choice) if kv_cache is self._kv_cache else None
        if recorded is None or choice.size is None:
            self.counts[CUDAGraphMode.NONE] += 1
            return self._run_without(batch, kv_cache)
        self.counts[choice.mode] += 1
        self.num_graph_tokens += choice.size
        self.num_padding_tokens += choice.size - len(batch.token_ids)
        size = _padded(choice.mode, choice.size, len(batch.num_computed))
        step = self._fill(batch, size)
        recorded[0].replay()
        qkv, attended = self._qkv[: choice.size], self._attended[: choice.size]
        for number, graph in enumerate(recorded[1:]):
            self._model.attend(number, qkv, attended, step, kv_cache)
            graph.replay()
        return self._model.chosen_rows(self._hidden[: step.num_tokens], step)

    def _run_without(self, batch: StepBatch, kv_cache: KVCache) -> Tensor:
        """The same, launch by launch."""
        model = self._model
        is_uniform = model.is_uniform_decode(batch)
        size = StepSize(len(batch.token_ids), len(batch.num_computed), is_uniform)
        step = self._fill(batch, size)
        room = model.new_residual(size.tokens), model.new_attended(size.tokens)
        return model.chosen_rows(model.run_layers(step, kv_cache, *room), step)

    def _fill(self, batch: StepBatch, size: StepSize) -> StepInputs:
        packed = self._model.pack(batch, size)
        self._device.upload(packed, self._inputs)
        return self._model.unpack(packed, self._inputs, size)


def _proceed(
    model: TritonDecoder, number: int, attended: Tensor, residual: Tensor, kept: Tensor
) -> Tensor:
    return kept.copy_(model.proceed(number, attended, residual))


def _padded(mode: CUDAGraphMode, size: int, num_sequences: int) -> StepSize:
    """Full graphs hold attention, so sequences are padded too."""
    is_full = mode is CUDAGraphMode.FULL
    return StepSize(size, size if is_full else num_sequences, is_uniform=is_full)


def _empty_batch(num_groups: int) -> StepBatch:
    nothing = np.zeros(0, dtype=np.int64)
    return StepBatch(
        token_ids=nothing,
        positions=nothing,
        slot_mapping=np.zeros((num_groups, 0), dtype=np.int64),
        query_start_loc=np.zeros(1, dtype=np.int64),
        num_computed=nothing,
        block_table=np.zeros((num_groups, 0, 1), dtype=np.int64),
        logits_rows=nothing,
    )


def graphed_decoder(
    model: ModelStep,
    device: GraphDevice,
    plan: GraphPlan,
    config: EngineConfig,
    spec: KVCacheSpec,
) -> GraphedDecoder:
    """`model`, a TritonDecoder, with graphs and with input buffers for the limits of `config`."""
    assert isinstance(model, TritonDecoder), type(model)
    limits = config.scheduler
    largest = plan.captures[0][1] if plan.captures else 0
    numbers = packed_capacity(
        max(limits.max_num_batched_tokens, largest),
        max(limits.max_num_seqs, largest),
        len(spec.groups),
        spec.blocks_for(limits.max_model_len) + 1,
    )
    rows = limits.max_num_seqs
    return GraphedDecoder(model, device, plan, numbers, config.parallel.engine_name, rows)
