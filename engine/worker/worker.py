"""Worker: one device. Loads the model, measures memory, owns the KV cache and the runner."""

from __future__ import annotations

import dataclasses
import gc
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from engine.config import DeviceConfig, EngineConfig
from engine.env import cpu_has_bf16
from engine.errors import ConfigError, EngineError, MemoryBudgetError
from engine.kernels.kernel_set import Draw, KernelSet, KVCache, ModelStep
from engine.kernels.native.model_step import NativeKernels
from engine.kernels.native.packed_cache import PackedCache
from engine.kernels.quantized_reference import quantized
from engine.kernels.selection import select_kernels
from engine.kv_sizing import KVCacheSpec, format_gib
from engine.layers.parallel import RankGroup
from engine.logger import ProgressBar, get_logger
from engine.lora_adapters import LoraRequest
from engine.machine.cores import usable_cores
from engine.machine.heap import trim_heap
from engine.machine.processes import rss_bytes
from engine.messages import SLEEP_TAGS
from engine.models.encoder import load_encoder
from engine.models.packed_decoder import load_native_decoder
from engine.models.registry import kernel_sets_of, load_weights, model_class
from engine.models.sentence_head import load_sentence_head
from engine.models.transformers_config import with_transformers_facts
from engine.models.transformers_fallback import load_transformers_model
from engine.models.transformers_own_cache import (
    OwnCacheModel,
    counted_spec,
    load_own_cache_model,
)
from engine.models.vision_tower import VisionTower, load_vision_tower
from engine.models.weights import DecoderWeights
from engine.quick_imports import complete_torch
from engine.rank_layout import require_devices
from engine.sched.scheduler_output import GrammarBitmask, ModelRunnerOutput, SchedulerOutput
from engine.worker.graph_device import CudaGraphDevice, GraphDevice
from engine.worker.graph_settings import configured_graphs
from engine.worker.kv_cache import cache_spec, torch_dtype
from engine.worker.lora_slots import LoraSlots, reserved_bytes
from engine.worker.memory import (
    GpuMemoryProfile,
    cpu_available_bytes,
    gpu_available_bytes,
    require_requested_memory,
)
from engine.worker.model_runner import Finish, ModelRunner
from engine.worker.offload import OffloadedWeights
from engine.worker.rank_channels import LEAST_TOKENS
from engine.worker.rank_links import RankLinks

if TYPE_CHECKING:
    from engine.worker.cuda_graphs import GraphedDecoder

logger = get_logger(__name__)

_WARM_UP_TOKENS = LEAST_TOKENS
_ALONE = RankLinks()


class Worker:
    """Everything that touches the device. Methods are called in the order that they stand here, but
    that a worker that serves may sleep and wake.
    """

    def __init__(self, config: EngineConfig, links: RankLinks = _ALONE) -> None:
        if not _is_all_own(config):
            complete_torch()
        self._config = config = _completed(config)
        self._links = links
        self._place = links.place
        self._device = torch.device(config.device.device)
        if self._device.type == "cuda":
            self._device = torch.device("cuda", links.local_rank)
        self._dtype = torch_dtype(config.device.dtype)
        self._spec = cache_spec(config, links.place)
        self._free_at_init = 0
        self.max_concurrent_batches = 1  # steps that may be launched before the first is waited for
        self._loras: LoraSlots | None = None
        self._tower: VisionTower | None = None
        self._ranks: RankGroup | None = None
        self._native: NativeKernels | None = None  # if it is these that compute
        self._kv_cache: KVCache = []
        self._num_blocks = 0
        self._asleep: frozenset[str] = frozenset()  # of SLEEP_TAGS
        self._offloaded: OffloadedWeights | None = None
        self._is_dropped = False  # the model, until it is loaded again
        self._state_bytes = 0  # of all requests that can run at once, beside the KV cache

    def init_device(self) -> None:
        """Set threads on a CPU; on a GPU check that it is there and the requested share free."""
        if self._device.type == "cpu":
            torch.set_num_threads(self._num_threads())
            return
        require_devices(self._config.parallel, self._links.local_rank, torch.cuda.device_count())
        torch.cuda.set_device(self._device)
        self._free_at_init, total = torch.cuda.mem_get_info(self._device)
        if self._config.cache.kv_cache_memory_bytes is None:
            utilization = self._config.cache.gpu_memory_utilization
            require_requested_memory(total, self._free_at_init, utilization)

    def load_model(self) -> None:
        """Load, check and pack the weights; logs what vLLM logs in this phase."""
        logger.info("Starting to load model %s...", self._config.model.served_name)
        start = time.monotonic()
        self._load()
        logger.info(
            "Model loading took %s GiB memory and %.6f seconds",
            format_gib(self._weight_bytes),
            time.monotonic() - start,
        )

    def _load(self) -> None:
        kernels = self._select_kernels()
        self._native = kernels if isinstance(kernels, NativeKernels) else None
        try:
            self._model = self._build_model(kernels)
            self._graphed = self._with_graphs(kernels)
            self._tower = self._load_tower()
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise MemoryBudgetError(
                f"The weights of {self._config.model.served_name} do not fit into the memory of "
                f"the {self._device.type} device: {error}"
            ) from error
        model = self._graphed or self._model
        asked = self._config.scheduler
        # What a draft goes on from are known tokens.
        is_async = asked.async_scheduling and asked.speculative is None
        ahead = self._graphed if is_async else None
        self.max_concurrent_batches = 1 if ahead is None else 2
        lora = self._config.lora
        if lora is not None:
            where = self._place, self._device, self._dtype
            self._loras = LoraSlots(lora, self._config.model, self._model, *where)
        self._runner = ModelRunner(
            self._config,
            model,
            len(self._spec.groups),
            self._links,
            _draw_of(kernels),
            load_sentence_head(self._config.model, self._device),
            ahead,
            slot_of=self._slot_of,
            tower=self._tower,
        )

    @property
    def _weight_bytes(self) -> int:
        """Of the decoder, and of the tower beside it."""
        tower = 0 if self._tower is None else self._tower.weight_bytes
        return self._model.weight_bytes + tower

    def _load_tower(self) -> VisionTower | None:
        """None where prompts have no images, and in stages that get what the first one made of
        them. A CPU computes it in the decoder's format only where it does so fast.
        """
        if not (self._config.multimodal.max_images and self._place.is_first_stage):
            return None
        start = time.monotonic()
        is_slow = self._device.type == "cpu" and not cpu_has_bf16()
        dtype = torch.float32 if is_slow else self._dtype
        tower = load_vision_tower(self._config.model, self._device, dtype, self._num_threads())
        size, seconds = format_gib(tower.weight_bytes), time.monotonic() - start
        logger.info("Loading the image tower (%s GiB) took %.2f seconds", size, seconds)
        return tower

    def computes_rows_alike(self) -> bool:
        """Whether what a token gets is the same, to the bit, whatever else is in its step."""
        return self._native is not None

    def warm_up(self) -> int:
        """On a CPU run a small step, so that all is there that steps need; bytes of the weights, of
        the adapters that there may be, and of the work on images.
        """
        if self._device.type == "cpu":
            self._runner.run_dummy(_WARM_UP_TOKENS, 2)
            trim_heap()
            logger.debug("A first small step has run.")
        reserved = reserved_bytes(self._config.lora, self._config.model, self._place)
        if self._tower is not None:
            reserved += self._tower.working_bytes(self._config.scheduler.max_num_batched_tokens)
        return self._weight_bytes + reserved

    def determine_available_memory(self, ram_bytes: int) -> int:
        """Bytes for the KV cache, on a CPU at most `ram_bytes`. On a GPU a full-size forward is
        measured first.
        """
        available = self._measure_available_memory(ram_bytes)
        if self._config.model.keeps_own_cache:
            available = self._without_states(available)
        logger.info("Available KV cache memory: %s GiB", format_gib(available))
        return available

    def _without_states(self, available: int) -> int:
        """What is left for tokens; no more than all requests could ever use, since blocks that
        stand for little memory would be very many.
        """
        scheduler = self._config.scheduler
        if self._config.cache.kv_cache_memory_bytes is None:
            available = max(0, available - self._state_bytes)
        per_request = self._spec.blocks_per_request(scheduler.max_model_len)
        most = scheduler.max_num_seqs * per_request + 1
        return min(available, most * self._spec.bytes_per_block)

    def _measure_available_memory(self, ram_bytes: int) -> int:
        scheduler, cache = self._config.scheduler, self._config.cache
        if self._device.type == "cpu":
            return cpu_available_bytes(ram_bytes, cache, self._spec, scheduler.max_model_len)
        profile = self._profile_gpu()
        graph_bytes = 0 if self._graphed is None else self._graphed.estimate_bytes()
        return gpu_available_bytes(profile, cache, graph_bytes)

    def get_kv_cache_spec(self) -> KVCacheSpec:
        """Shape of the cache; known without the model."""
        return self._spec

    def max_joint_prefill_tokens(self) -> int | None:
        """Prompt tokens of several requests in a step that the kernels gain from; None: any."""
        return None if self._native is None else self._native.max_joint_prefill_tokens

    def initialize_kv_cache(self, num_blocks: int) -> int:
        """Allocate the cache that all requests share; returns its bytes.

        On a CPU its pages come on first use, on a GPU they are taken now.
        """
        self._num_blocks = num_blocks
        try:
            self._kv_cache = self._model.create_kv_cache(num_blocks)
            self._runner.set_kv_cache(self._kv_cache)
            if self._graphed is not None:
                self._graphed.capture(self._kv_cache)
        except (torch.OutOfMemoryError, MemoryError) as error:
            wanted = format_gib(num_blocks * self._spec.bytes_per_block)
            raise MemoryBudgetError(
                f"The KV cache of {num_blocks} blocks ({wanted} GiB) cannot be allocated: {error}. "
                "Lower --gpu-memory-utilization or --kv-cache-memory-bytes."
            ) from error
        return num_blocks * self._spec.bytes_per_block + self._state_bytes

    @property
    def device_bytes(self) -> int:
        """What this process holds of its GPU's memory; 0 on a CPU, where the system tells."""
        if self._device.type != "cuda":
            return 0
        return int(torch.cuda.memory_reserved(self._device))

    @property
    def held_bytes(self) -> int | None:
        """What this process holds of its machine's RAM, or of its GPU's memory."""
        return rss_bytes(os.getpid()) if self._device.type == "cpu" else self.device_bytes

    def sleep(self, level: int) -> None:
        """Free the KV cache and what requests left, and of a device the weights: at level 1 they go
        to the host, at level 2 they are dropped on a CPU, too. Graphs go first, which hold the
        addresses of both. No step is under way.
        """
        before = self._used_bytes()
        if not self._asleep:
            self._runner.forget_requests()
            self._kv_cache.clear()  # in place: whoever ran a step with it holds this list
            if self._graphed is not None:
                self._graphed.forget_graphs()
        if level > 1:
            self._drop_model()
        elif self._has_own_memory and "weights" not in self._asleep:
            held = (self._graphed or self._model, self._tower)
            self._offloaded = OffloadedWeights(held, self._device)
        self._asleep = frozenset(SLEEP_TAGS)
        self._give_back()
        after = self._used_bytes()
        logger.info(
            "Sleep mode freed %s GiB memory, %s GiB memory is still in use.",
            format_gib(max(0, before - after)),
            format_gib(after),
        )

    def wake_up(self, tags: Sequence[str]) -> None:
        """Bring back what `tags` name. The KV cache is made, and graphs are recorded over it, once
        the weights are there as well. EngineError names the rank that cannot.
        """
        try:
            self._bring_back(tags)
        except (EngineError, RuntimeError, MemoryError, OSError) as error:
            who = "The engine" if self._place.world_size == 1 else self._place.name
            raise EngineError(f"{who} cannot wake up: {error}") from error

    def _bring_back(self, tags: Sequence[str]) -> None:
        if "weights" in tags and "weights" in self._asleep:
            if self._offloaded is not None:
                self._offloaded.bring_back()
                self._offloaded = None
            elif self._is_dropped:
                self._load()
                self._is_dropped = False
        self._asleep -= frozenset(tags)
        if not self._asleep:
            self.initialize_kv_cache(self._num_blocks)

    @property
    def _has_own_memory(self) -> bool:
        """Whether weights take other memory than the host's."""
        return self._device.type != "cpu" or self._graphed is not None

    def _drop_model(self) -> None:
        """Adapters lie in the model; whoever loaded them loads them again."""
        if self._is_dropped:
            return
        self._is_dropped = True
        del self._model, self._runner
        self._graphed = self._loras = self._offloaded = self._tower = None

    def _give_back(self) -> None:
        gc.collect()
        if self._device.type == "cpu":
            trim_heap()
        else:
            torch.cuda.synchronize(self._device)
            torch.cuda.empty_cache()

    def _used_bytes(self) -> int:
        """Of the device by its driver, whoever holds it; on a CPU this process's own."""
        if self._device.type == "cpu":
            return rss_bytes(os.getpid()) or 0
        free, total = torch.cuda.mem_get_info(self._device)
        return total - free

    def load_adapter(self, request: LoraRequest) -> str | None:
        """Load a LoRA adapter; what is in the way, for a person, or None."""
        assert self._loras is not None, "the engine was started without adapters"
        return self._loras.load(request)

    def _slot_of(self, lora_id: int) -> int:
        return -1 if self._loras is None else self._loras.slot(lora_id)

    def remove_adapter(self, lora_id: int) -> None:
        """Free a LoRA adapter that no request has."""
        assert self._loras is not None, "the engine was started without adapters"
        self._loras.remove(lora_id)

    def execute_model(
        self, scheduler_output: SchedulerOutput, sampled: Sequence[tuple[str, int]] = ()
    ) -> ModelRunnerOutput:
        """Run a step; `sampled` are tokens that another rank has sampled since the last one."""
        self._runner.append_sampled(sampled)
        return self._runner.execute(scheduler_output)

    def launch_model(self, scheduler_output: SchedulerOutput) -> Finish:
        """Start a step of a worker that is alone; what it returns waits for it."""
        finish, graphed = self._runner.launch(scheduler_output), self._graphed
        if graphed is None:
            return finish
        return lambda: dataclasses.replace(finish(), graphs=graphed.take_stats())

    def choose_tokens(self, bitmask: GrammarBitmask | None) -> None:
        """Of the step that was launched last, once the one before it is finished."""
        self._runner.choose_tokens(bitmask)

    def _select_kernels(self) -> KernelSet | NativeKernels:
        device, model = self._device_of_kernels(), self._config.model
        sets = kernel_sets_of(model.architecture, model.implementation)
        selected = select_kernels(device, self._spec, sets, self._num_threads())
        logger.info(
            "Using %s attention backend out of potential backends: %s.",
            selected.kernels.name.upper(),
            selected.candidates,
        )
        if isinstance(selected.kernels, NativeKernels):
            # They have threads of their own; torch's would spin beside them after every operation.
            torch.set_num_threads(1)
        return quantized(selected.kernels, device.quantization)

    def _device_of_kernels(self) -> DeviceConfig:
        """Native kernels add up in memory that the ranks of a layer share, which ranks on several
        machines do not.
        """
        device = self._config.device
        is_apart = self._place.tensor_size > 1 and self._links.sums is None
        if device.device != "cpu" or device.kernels not in ("auto", "native") or not is_apart:
            return device
        if device.kernels == "native":
            raise ConfigError(
                "--kernels native cannot be used: the ranks of a layer are on several machines. "
                "Leave it out, or use --pipeline-parallel-size between the machines."
            )
        logger.info("torch's kernels are used: the ranks of a layer are on several machines.")
        return dataclasses.replace(device, kernels="reference")

    def _build_model(self, kernels: KernelSet | NativeKernels) -> ModelStep:
        config = self._config
        if config.model.is_encoder:
            return load_encoder(config.model, self._device, self._dtype, self._shard_progress())
        if config.model.keeps_own_cache:
            return self._load_own_cache_model()
        if config.model.implementation == "transformers":
            assert not isinstance(kernels, NativeKernels), kernels.name
            return load_transformers_model(
                config.model,
                kernels,
                self._spec,
                self._device,
                self._dtype,
                self._shard_progress(),
            )
        num_positions = config.scheduler.max_model_len
        if isinstance(kernels, NativeKernels):
            cache = PackedCache.of_user()
            return load_native_decoder(
                config.model,
                self._load_weights,
                kernels,
                num_positions,
                self._spec,
                cache,
                self._place,
                self._links.sums,
            )
        if self._ranks is None:  # a process can join once
            self._ranks = self._links.join(self._device)
        build = model_class(kernels.name)
        return build(
            config.model,
            self._load_weights(),
            kernels,
            num_positions,
            self._spec,
            self._place,
            self._ranks,
        )

    def _load_own_cache_model(self) -> OwnCacheModel:
        """Its blocks are as large as what transformers keeps; states come on top."""
        config, on_shard = self._config, self._shard_progress()
        model = load_own_cache_model(config.model, self._device, self._dtype, on_shard)
        kept = model.measure()
        self._spec = counted_spec(kept, config.cache.block_size, self._dtype.itemsize)
        self._state_bytes = kept.state * config.scheduler.max_num_seqs
        logger.info(
            "Each request keeps %d bytes for each token and %.1f KiB of state in transformers' own "
            "cache, and runs alone; prefix caching is off.",
            kept.per_token,
            kept.state / 1024,
        )
        return model

    def _with_graphs(self, kernels: KernelSet | NativeKernels) -> GraphedDecoder | None:
        """The model with steps from graphs, where the device, its code and the flags allow them,
        and with inputs and tokens that are copied without a wait.
        """
        config = self._config
        device = _graph_device(self._device)
        if config.lora is not None and device is not None:
            logger.info("CUDA graphs are off: adapters change the steps.")
            return None
        if device is None or kernels.name != "triton":
            return None
        if config.compilation.enforce_eager:
            logger.info("Enforce eager set, disabling CUDAGraphs")
        plan = configured_graphs(config, _compute_capability(self._device))
        if config.model.implementation == "transformers" or config.model.is_encoder:
            return None
        if config.model.experts is not None:
            logger.info("CUDA graphs are off: which experts run changes from step to step.")
            return None
        if self._place.world_size > 1:  # what ranks say to each other is in no graph
            return None
        from engine.worker.cuda_graphs import graphed_decoder  # which imports the kernels

        return graphed_decoder(self._model, device, plan, config, self._spec)

    def _load_weights(self) -> DecoderWeights:
        start = time.monotonic()
        on_shard = self._shard_progress()
        weights = load_weights(self._config.model, self._dtype, self._device, on_shard, self._place)
        logger.info("Loading weights took %.2f seconds", time.monotonic() - start)
        return weights

    def _shard_progress(self) -> Callable[[int, int], None]:
        """Of the first rank: the others read the same files."""
        bars: list[ProgressBar] = []
        is_alone = self._links.num_cores is None
        process = self._config.parallel.engine_name if is_alone else self._place.name

        def on_shard(done: int, total: int) -> None:
            if self._place.rank:
                return
            if not bars:
                bars.append(ProgressBar(process, "Loading safetensors checkpoint shards", total))
            if done:
                bars[0].update(done)

        return on_shard

    def _num_threads(self) -> int:
        return self._config.device.num_threads or self._links.num_cores or usable_cores()

    def _profile_gpu(self) -> GpuMemoryProfile:
        scheduler = self._config.scheduler
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)
        if self._tower is not None:
            self._tower.run_dummy()
        self._runner.run_dummy(scheduler.max_num_batched_tokens, scheduler.max_num_seqs)
        torch.cuda.synchronize(self._device)
        peak = torch.cuda.max_memory_allocated(self._device)
        held = torch.cuda.memory_allocated(self._device)
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self._device)
        return GpuMemoryProfile(total, self._free_at_init, free, peak - held)


def _is_all_own(config: EngineConfig) -> bool:
    """Whether nothing runs but our own code for CPUs: no device `meta`, no compiler."""
    model = config.model
    is_own = model.implementation == "stoker" and not model.is_encoder
    return is_own and config.device.device == "cpu" and not config.multimodal.max_images


def _graph_device(device: torch.device) -> GraphDevice | None:
    """None where nothing can be recorded."""
    return CudaGraphDevice(device) if device.type == "cuda" else None


def _draw_of(kernels: KernelSet | NativeKernels) -> Draw | None:
    """The kernel that samples, of a set that has one."""
    if kernels.name != "triton":
        return None
    from engine.kernels.triton.kernels import TritonKernels

    assert isinstance(kernels, TritonKernels), kernels.name
    return kernels.draw


def _compute_capability(device: torch.device) -> tuple[int, int] | None:
    if device.type != "cuda" or torch.version.hip is not None:
        return None
    return torch.cuda.get_device_capability(device)


def _completed(config: EngineConfig) -> EngineConfig:
    """With the shape that transformers gives the model, where transformers runs it."""
    model = config.model
    if model.is_encoder:
        logger.info(
            "The encoder %s answers with vectors and keeps no KV cache. Its blocks only "
            "count the tokens of a step.",
            model.architecture,
        )
        return config
    if model.implementation != "transformers":
        return config
    logger.warning(
        "%s runs in the Transformers implementation, which is slower than one of Stoker's own.%s",
        model.architecture,
        f" {model.own_obstacle}" if model.own_obstacle else "",
    )
    if model.keeps_own_cache:
        return config
    complete = with_transformers_facts(model, config.scheduler.max_model_len)
    return dataclasses.replace(config, model=complete)
