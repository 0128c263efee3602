"""UniProcExecutor: the worker runs inside EngineCore, which waits for a step when it wants its
tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future

from engine.config import EngineConfig
from engine.errors import EngineError
from engine.kv_sizing import KVCacheSpec
from engine.sched.scheduler_output import GrammarBitmask, ModelRunnerOutput, SchedulerOutput
from engine.sched.snapshot import RankSnapshot
from engine.worker.model_runner import Finish
from engine.worker.ram import ram_for_cache, ram_reserved
from engine.worker.worker import Worker

_ERRORS = (EngineError, RuntimeError, MemoryError)  # torch raises RuntimeError


class LaunchedStep(Future[ModelRunnerOutput]):
    """A step that is launched here and now, and waited for when its result is asked for."""

    def __init__(self, launch: Callable[[], Finish]) -> None:
        super().__init__()
        try:
            self._finish = launch()
        except _ERRORS as error:
            self.set_exception(error)

    def result(self, timeout: float | None = None) -> ModelRunnerOutput:
        """Waits in the first call; the device sets no time limit."""
        if not self.done():
            try:
                self.set_result(self._finish())
            except _ERRORS as error:
                self.set_exception(error)
        return super().result(timeout)


class UniProcExecutor:
    """The Executor of one device and one process (vLLM's `uni`)."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._is_on_cpu = config.device.device == "cpu"
        self._weight_bytes = 0
        self._worker: Worker | None = Worker(config)

    def load_model(self) -> None:
        """Prepare the device and load the weights."""
        worker = self._require_worker()
        worker.init_device()
        worker.load_model()

    def determine_available_memory(self) -> int:
        """Bytes left for the KV cache."""
        worker = self._require_worker()
        self._weight_bytes = worker.warm_up()
        room = ram_for_cache(self._config, self._weight_bytes) if self._is_on_cpu else 0
        return worker.determine_available_memory(room)

    def get_kv_cache_spec(self) -> KVCacheSpec:
        """Shape of one layer's page and the number of layers."""
        return self._require_worker().get_kv_cache_spec()

    def initialize_kv_cache(self, num_blocks: int) -> int:
        """Allocate `num_blocks` blocks, the null block included; the RAM that it all may take."""
        cache_bytes = self._require_worker().initialize_kv_cache(num_blocks)
        return ram_reserved(self._weight_bytes, cache_bytes) if self._is_on_cpu else 0

    def execute_model(self, scheduler_output: SchedulerOutput) -> Future[ModelRunnerOutput]:
        """Launch the step now. Errors of the device and of the engine arrive through the future."""
        return LaunchedStep(lambda: self._require_worker().launch_model(scheduler_output))

    def choose_tokens(self, bitmask: GrammarBitmask | None) -> None:
        self._require_worker().choose_tokens(bitmask)

    @property
    def max_concurrent_batches(self) -> int:
        """Two where a step can be launched before the tokens of the last one are known."""
        return self._require_worker().max_concurrent_batches

    def call_workers(self, method: str, *arguments: object) -> list[object]:
        """What the worker's method returns."""
        return [getattr(self._require_worker(), method)(*arguments)]

    def check_health(self) -> None:
        """There is no other process that could be gone."""

    @property
    def wake_descriptors(self) -> Sequence[int]:
        return ()

    def rank_snapshots(self) -> Sequence[RankSnapshot]:
        """The worker is a part of EngineCore."""
        return ()

    def shutdown(self) -> None:
        """Let weights and cache go."""
        self._worker = None

    def _require_worker(self) -> Worker:
        assert self._worker is not None, "the executor was shut down"
        return self._worker
