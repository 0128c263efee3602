"""EngineCore: model, KV cache and scheduler of one engine, and one step of it.

Owns the order schedule -> execute -> update. Knows nothing of sockets or processes.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import cast

import msgspec

from engine.config import EngineConfig
from engine.core.executor import Executor, create_executor
from engine.core.image_checks import image_error
from engine.core.lora import LoraAdapters
from engine.core.memory_turn import hold_memory, leave_memory, memory_turn
from engine.core.request_traces import CallTimer, RequestTraces, StepClock
from engine.core.structured_output import StructuredOutputManager
from engine.errors import MemoryBudgetError, ModelError
from engine.kv_sizing import (
    KVCacheSpec,
    KVCapacity,
    capacity_line,
    capacity_of_blocks,
    format_gib,
    kv_capacity,
    longest_model_len,
    require_one_request_fits,
)
from engine.logger import get_logger
from engine.lora_adapters import LoraRequest
from engine.messages import (
    ASLEEP,
    SLEEP_TAGS,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    FinishReason,
    HandshakeReady,
)
from engine.sched.request import Request, RequestStatus
from engine.sched.scheduler import Scheduler
from engine.sched.scheduler_output import GrammarBitmask, ModelRunnerOutput, SchedulerOutput
from engine.sched.snapshot import (
    StepHistory,
    blocks_document,
    requests_document,
    scheduler_document,
)
from engine.speculative_config import NO_DRAFTS
from engine.version import __version__

logger = get_logger(__name__)

_GRAMMAR_WAIT_S = 0.01
"""How long new requests and aborts may wait while there is nothing but grammars to compile."""

_CUT_OFF = (
    "The server was put to sleep, which cut this request off: wake it with `stoker wake` or POST "
    "/wake_up, then send the request again."
)


@dataclasses.dataclass(frozen=True, slots=True)
class _StepInFlight:
    """A step that the executor runs; when its planning began and ended, on the monotonic clock."""

    scheduled: SchedulerOutput
    future: Future[ModelRunnerOutput]
    start_s: float
    planned_s: float


class EngineCore:
    """Loads the model, sizes the cache, then runs steps.

    Raises ModelError or MemoryBudgetError from the constructor when the start fails.
    """

    def __init__(
        self,
        config: EngineConfig,
        executor_factory: Callable[[EngineConfig], Executor] = create_executor,
    ) -> None:
        _log_config(config)
        self.structured_outputs = StructuredOutputManager(config.model)
        self.executor = executor_factory(config)
        self.loras = LoraAdapters(self.executor.call_workers)
        with memory_turn(config.device.device) as reserve:
            self.executor.load_model()
            config = _with_joint_prefill(self._with_drafts_settled(config), self.executor)
            self._load_adapters(config)
            start = time.monotonic()
            available = self.executor.determine_available_memory()
            self.spec = self.executor.get_kv_cache_spec()
            self.config, self.capacity = _size_cache(config, self.spec, available)
            device = "CPU" if config.device.device == "cpu" else "GPU"
            max_model_len = self.config.scheduler.max_model_len
            logger.info("%s", capacity_line(self.capacity, max_model_len, device))
            self._held_bytes = self.executor.initialize_kv_cache(self.capacity.num_blocks)
            reserve(self._held_bytes)
        logger.info(
            "init engine (profile, create kv cache, warmup model) took %.2f s",
            time.monotonic() - start,
        )
        self._most_in_flight = self.executor.max_concurrent_batches
        # Steps are planned before the tokens of the last one are known.
        self._is_async = self._most_in_flight > config.parallel.pipeline_parallel_size
        is_watched = config.observability.debug_endpoints
        self.scheduler = Scheduler(
            self.config.scheduler,
            self.config.cache,
            self.capacity.num_blocks,
            self.spec.groups,
            num_micro_batches=config.parallel.pipeline_parallel_size,
            is_async=self._is_async,
            max_loras=None if config.lora is None else config.lora.max_loras,
            most_rows=_most_rows(self.config),
        )
        self._in_flight: deque[_StepInFlight] = deque()
        self._sleep_level = 0
        self._sleeping_tags: frozenset[str] = frozenset()
        self._takes_requests = True
        self._steps = StepHistory() if is_watched else None
        self._blocks_timer = (
            CallTimer(self.scheduler.kv_cache_manager, "get_computed_blocks", "allocate_slots")
            if is_watched
            else None
        )
        self._traces = RequestTraces() if is_watched else None

    @property
    def ready_message(self) -> HandshakeReady:
        """What the API server learns once the engine is up."""
        return HandshakeReady(
            max_model_len=self.config.scheduler.max_model_len,
            num_gpu_blocks=self.capacity.num_blocks,
            block_size=self.config.cache.block_size,
            kv_cache_size_tokens=self.capacity.num_tokens,
            kv_cache_max_concurrency=self.capacity.max_concurrency,
            dtype=self.config.device.dtype,
            max_joint_prefill_tokens=self.config.scheduler.max_joint_prefill_tokens,
        )

    @property
    def is_idle(self) -> bool:
        """True while there is nothing to run, or nothing can run."""
        if self._sleep_level:
            return not self.scheduler.has_rejected()
        return not self.scheduler.has_unfinished_requests() and not self._in_flight

    # ---- sleep ---------------------------------------------------------------------------------

    @property
    def sleep_level(self) -> int:
        """0 while it is awake."""
        return self._sleep_level

    def prepare_sleep(self, mode: str) -> None:
        """Refuse new requests; `abort` ends those that are there, `keep` stops them where they are.

        With `wait` the engine is to go on until it is idle.
        """
        self._takes_requests = False
        if mode == "abort":
            if self._traces is not None:
                self._traces.note_aborts(list(self.scheduler.requests))
            self.scheduler.end_all(_CUT_OFF)

    def give_up_sleep(self) -> None:
        """It will not sleep after all."""
        self._takes_requests = not self._sleep_level

    def fall_asleep(self, level: int) -> list[EngineCoreOutput]:
        """Free memory on every rank; returns what steps that were under way have brought.

        A sleeping engine can go deeper, never back. Requests that are still there wait until it is
        awake, and are computed anew.
        """
        self._takes_requests = False
        if self._sleep_level >= level:
            logger.warning("Executor is already sleeping.")
            return []
        outputs = self.scheduler.take_rejected()
        while self._in_flight:
            outputs += self._take_back(self._in_flight.popleft())
        start = time.monotonic()
        self.scheduler.preempt_all()
        is_empty = self.scheduler.reset_prefix_cache()
        assert is_empty, "no request runs"
        self._sleep_level, self._sleeping_tags = level, frozenset(SLEEP_TAGS)
        self.executor.call_workers("sleep", level)
        hold_memory(self.config.device.device, 0)
        logger.info("It took %.6f seconds to fall asleep.", time.monotonic() - start)
        return outputs

    def wake_up(self, tags: Sequence[str] = SLEEP_TAGS) -> None:
        """Bring back what `tags` name; requests are taken once nothing is missing.

        Raises the error of a rank that cannot: the engine is of no use then.
        """
        woken = self._sleeping_tags & frozenset(tags)
        if not woken:
            logger.warning("Executor is not sleeping.")
            return
        start = time.monotonic()
        hold_memory(self.config.device.device, self._held_bytes)
        self.executor.call_workers("wake_up", sorted(woken))
        if self._sleep_level > 1 and "weights" in woken:
            self.loras.load_again()
        self._sleeping_tags -= woken
        if not self._sleeping_tags:
            self._sleep_level, self._takes_requests = 0, True
            self._free_adapters()
        taken = time.monotonic() - start
        logger.info("It took %.6f seconds to wake up tags %s.", taken, sorted(woken))

    def _with_drafts_settled(self, config: EngineConfig) -> EngineConfig:
        """Drafts that nobody asked for are left out where tokens could differ with them."""
        speculative = config.scheduler.speculative
        if speculative is None:
            return config
        if speculative.is_default and not all(self.executor.call_workers("computes_rows_alike")):
            scheduler = dataclasses.replace(config.scheduler, speculative=None)
            return dataclasses.replace(config, scheduler=scheduler)
        logger.info(
            "Drafts (n-gram lookup) are on: a step may give a request up to %d tokens. Start with "
            "--speculative-config %s to turn them off.",
            min(1 + speculative.num_speculative_tokens, _most_rows(config)),
            NO_DRAFTS,
        )
        return config

    def _load_adapters(self, config: EngineConfig) -> None:
        for request in config.lora.modules if config.lora else ():
            error = self.loras.load(request)
            if error is not None:
                raise ModelError(f"LoRA adapter {request.name}: {error}")

    def load_adapter(self, request: LoraRequest) -> str | None:
        """Load an adapter on every rank; what is in the way, or None."""
        return self.loras.load(request) if self._takes_requests else ASLEEP

    def unload_adapter(self, lora_id: int) -> None:
        """Free an adapter as soon as no request has it; no new one gets it."""
        self.loras.retire(lora_id)
        self._free_adapters()

    def _free_adapters(self) -> None:
        if self._sleep_level:  # the ranks may not even hold them
            return
        self.loras.remove_unused(self.scheduler.used_adapters)

    def add_request(self, message: EngineCoreRequest) -> None:
        if self._traces is not None:
            self._traces.begin(message.request_id)
        if not self._takes_requests:
            self.scheduler.reject(message.request_id, ASLEEP, FinishReason.ABORT)
            return
        if (error := image_error(message, self.config)) is not None:
            self.scheduler.reject(message.request_id, error)
            return
        if message.lora is not None and (error := self.loras.load(message.lora)) is not None:
            self.scheduler.reject(message.request_id, error)
            return
        cache, spec = self.config.cache, message.sampling_params.structured_outputs
        grammar = None if spec is None else self.structured_outputs.start(message.request_id, spec)
        self.scheduler.add_request(
            Request(
                message,
                cache.block_size,
                hash_blocks=cache.enable_prefix_caching,
                grammar=grammar,
            )
        )

    def abort_requests(self, request_ids: Sequence[str]) -> int:
        """End requests whose client is gone; returns how many were alive."""
        if self._traces is not None:
            self._traces.note_aborts(request_ids)
        ended = self.scheduler.finish_requests(request_ids, RequestStatus.FINISHED_ABORTED)
        self._free_adapters()
        return len(ended)

    def abort_all(self) -> int:
        return self.abort_requests(list(self.scheduler.requests))

    def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes; False while blocks are in use."""
        return self.scheduler.reset_prefix_cache()

    def debug_document(self, name: str) -> str | None:
        """JSON of `scheduler`, `requests` or `blocks`; None while debugging is off."""
        if self._steps is None:
            return None
        if name == "scheduler":
            parallel = self.config.parallel
            document = {
                **scheduler_document(self.scheduler, self._steps, self.executor.rank_snapshots()),
                "engine": parallel.data_parallel_rank,
                "num_engines": parallel.data_parallel_size,
            }
        elif name == "requests":
            document = requests_document(self.scheduler, time.time())
        else:
            assert name == "blocks", name
            document = blocks_document(self.scheduler)
        return msgspec.json.encode(document).decode()

    def trace_document(self, request_id: str) -> str | None:
        """JSON of when what was done for a request; None if it is not known."""
        document = self._traces.document(request_id) if self._traces is not None else None
        return None if document is None else msgspec.json.encode(document).decode()

    def step(self) -> EngineCoreOutputs:
        """Schedule, run the model, take the tokens back. The caller has checked `is_idle`.

        With pipeline stages, and where the device is not waited for, another step is planned while
        the first ones are under way, as in vLLM's step_with_batch_queue: then the outputs may be
        those of no step.
        """
        is_planned = not self._sleep_level and self._plan_step()
        outputs = self.scheduler.take_rejected()
        num_tokens = 0
        if self._in_flight and not (is_planned and len(self._in_flight) < self._most_in_flight):
            done = self._in_flight.popleft()
            num_tokens = done.scheduled.total_num_scheduled_tokens
            outputs += self._take_back(done)
        elif not is_planned and self.scheduler.is_waiting_for_grammars():
            self.structured_outputs.wait(_GRAMMAR_WAIT_S)
        return EngineCoreOutputs(
            outputs=outputs,
            scheduler_stats=self.scheduler.make_stats(num_tokens, self._sleep_level),
            timestamp=time.monotonic(),
        )

    def _plan_step(self) -> bool:
        """Schedule and start a step; False if there was nothing to run."""
        start_s = time.monotonic()
        scheduled = self.scheduler.schedule()
        if not scheduled.total_num_scheduled_tokens:
            return False
        planned_s = time.monotonic()
        if self._steps is not None:
            self._steps.record(self.scheduler, scheduled)
        if not self._is_async:
            scheduled.grammar_bitmask = self._grammar_bitmask(scheduled)
        future = self.executor.execute_model(scheduled)
        self._in_flight.append(_StepInFlight(scheduled, future, start_s, planned_s))
        if len(self._in_flight) == 1:
            self._choose_tokens()
        return True

    def _choose_tokens(self) -> None:
        """The tokens before those of the newest step are known: its grammars can say what may
        follow, and its other requests what they want.
        """
        if self._is_async:
            newest = self._in_flight[-1].scheduled
            newest.grammar_bitmask = self._grammar_bitmask(newest)
            self.executor.choose_tokens(newest.grammar_bitmask)

    def _take_back(self, step: _StepInFlight) -> list[EngineCoreOutput]:
        result = step.future.result()
        executed_s = time.monotonic()
        self.scheduler.note_step(step.scheduled, executed_s - step.planned_s)
        outputs = self.scheduler.update_from_output(step.scheduled, result)
        if self._in_flight:
            self._choose_tokens()
        self._free_adapters()
        if self._traces is not None and self._blocks_timer is not None:
            blocks_s = self._blocks_timer.take_s()
            clock = StepClock(step.start_s, step.planned_s, executed_s, time.monotonic(), blocks_s)
            self._traces.record(clock, step.scheduled, result, self.scheduler.requests)
            self._traces.note_ends(outputs)
        return outputs

    def _grammar_bitmask(self, scheduled: SchedulerOutput) -> GrammarBitmask | None:
        grammars = self.scheduler.sampling_grammars(scheduled)
        if not grammars:
            return None
        drafts = [scheduled.draft_token_ids.get(request_id, ()) for request_id in grammars]
        rows = self.structured_outputs.bitmask(grammars.values(), drafts)
        owners = [
            request_id
            for request_id, draft in zip(grammars, drafts, strict=True)
            for _ in range(1 + len(draft))
        ]
        return GrammarBitmask(owners, rows)

    def stats_message(self, outputs: Sequence[EngineCoreOutput] = ()) -> EngineCoreOutputs:
        """State without a step, for when an abort or a sleep changed it."""
        return EngineCoreOutputs(
            outputs=list(outputs),
            scheduler_stats=self.scheduler.make_stats(sleep_level=self._sleep_level),
            timestamp=time.monotonic(),
        )

    def shutdown(self) -> None:
        """Free the device; grammars that are not compiled yet are dropped."""
        self.structured_outputs.shutdown()
        self.executor.shutdown()
        leave_memory(self.config.device.device)


def _most_rows(config: EngineConfig) -> int:
    """How many positions of one step may ask for a token: a GPU keeps room for those of
    --max-num-seqs, a CPU makes it in each step, so that a server of one request may draft, too.
    """
    limits = config.scheduler
    if limits.speculative is None or config.device.device != "cpu":
        return limits.max_num_seqs
    return max(limits.max_num_seqs, 1 + limits.speculative.num_speculative_tokens)


def _size_cache(
    config: EngineConfig, spec: KVCacheSpec, available: int
) -> tuple[EngineConfig, KVCapacity]:
    """Check that one full-length request fits; returns the config with a fitted length, and the
    sizes that follow from the memory.
    """
    override = config.cache.num_gpu_blocks_override
    if override is not None:
        logger.info(
            "Overriding num_gpu_blocks=%d with num_gpu_blocks_override=%d",
            available // spec.bytes_per_block,
            override,
        )
        if override * spec.bytes_per_block > available:
            raise MemoryBudgetError(
                f"--num-gpu-blocks-override {override} needs "
                f"{format_gib(override * spec.bytes_per_block)} GiB, but only "
                f"{format_gib(available)} GiB are there; use at most "
                f"{available // spec.bytes_per_block}."
            )
        available = override * spec.bytes_per_block
    if config.scheduler.auto_fit_max_model_len:
        config = _fit_max_model_len(config, spec, available)
    max_model_len = config.scheduler.max_model_len
    require_one_request_fits(available, spec, max_model_len, config.cache)
    if override is not None:
        return config, capacity_of_blocks(override, spec, max_model_len)
    return config, kv_capacity(available, spec, max_model_len)


def _with_joint_prefill(config: EngineConfig, executor: Executor) -> EngineConfig:
    """With the limit of the ranks' kernels, where all have the same."""
    limits = set(executor.call_workers("max_joint_prefill_tokens"))
    most = cast("int | None", limits.pop()) if len(limits) == 1 else None
    scheduler = dataclasses.replace(config.scheduler, max_joint_prefill_tokens=most)
    return dataclasses.replace(config, scheduler=scheduler)


def _fit_max_model_len(config: EngineConfig, spec: KVCacheSpec, available: int) -> EngineConfig:
    asked = config.scheduler.max_model_len
    longest = longest_model_len(available, spec, asked)
    if longest >= asked:
        logger.info(
            "Auto-fit max_model_len: full model context length %d fits in available memory", asked
        )
        return config
    if longest < 2:
        raise MemoryBudgetError(
            "Cannot auto-fit max_model_len: not enough memory available to serve even a single "
            f"token ({format_gib(available)} GiB are left for the KV cache)."
        )
    logger.info(
        "Auto-fit max_model_len: reduced from %d to %d to fit in available memory "
        "(%s GiB available for KV cache)",
        asked,
        longest,
        format_gib(available),
    )
    scheduler = dataclasses.replace(config.scheduler, max_model_len=longest)
    return dataclasses.replace(config, scheduler=scheduler)


def _log_config(config: EngineConfig) -> None:
    logger.info(
        "Initializing a V1 LLM engine (v%s) with config: model='%s', tokenizer='%s', "
        "dtype=torch.%s, max_seq_len=%d, tensor_parallel_size=%d, pipeline_parallel_size=%d, "
        "data_parallel_size=%d, quantization=%s, enforce_eager=True, kv_cache_dtype=%s, "
        "device_config=%s, seed=%d, served_model_name=%s, enable_prefix_caching=%s, "
        "enable_chunked_prefill=%s",
        __version__,
        config.model.path,
        config.model.path,
        config.device.dtype,
        config.scheduler.max_model_len,
        config.parallel.tensor_parallel_size,
        config.parallel.pipeline_parallel_size,
        config.parallel.data_parallel_size,
        None if config.device.quantization == "none" else config.device.quantization,
        config.cache.cache_dtype,
        config.device.device,
        config.seed,
        config.model.served_name,
        config.cache.enable_prefix_caching,
        config.scheduler.enable_chunked_prefill,
    )
