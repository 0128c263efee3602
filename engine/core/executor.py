"""The Executor protocol: EngineCore's view of whatever runs the model, found by name at run time.

Owns the names; does not import torch. `uni` runs the worker inside the EngineCore process
(vLLM's UniProcExecutor), `mp` each rank's in a process of its own, here and on other nodes
(MultiprocExecutor), `ray` each rank's in an actor of a Ray cluster (RayExecutor).
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Protocol, cast

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.kv_sizing import KVCacheSpec
from engine.quick_imports import import_torch, no_collections
from engine.sched.scheduler_output import GrammarBitmask, ModelRunnerOutput, SchedulerOutput
from engine.sched.snapshot import RankSnapshot

_EXECUTORS = {
    "uni": "engine.worker.uniproc_executor:UniProcExecutor",
    "mp": "engine.worker.multiproc_executor:MultiprocExecutor",
    "ray": "engine.worker.ray_executor:RayExecutor",
}
_WITH_TORCH = "uni"


class Executor(Protocol):
    """Starts the worker(s), sizes and owns the KV cache tensors, runs steps."""

    def __init__(self, config: EngineConfig) -> None: ...

    def load_model(self) -> None:
        """Load the weights and log the vLLM lines of phase 2; raises ModelError or
        MemoryBudgetError.
        """

    def determine_available_memory(self) -> int:
        """Run the profile step and return the bytes left for the KV cache on this device; of
        several ranks, on the one that has room for the fewest blocks.
        """

    def get_kv_cache_spec(self) -> KVCacheSpec:
        """Shape of one layer's page and the number of layers, of the rank that was measured."""

    def initialize_kv_cache(self, num_blocks: int) -> int:
        """Allocate `num_blocks` blocks (null block included) and warm up.

        Returns the bytes of RAM that the engine may come to hold, 0 where a device shows them.
        """

    def execute_model(self, scheduler_output: SchedulerOutput) -> Future[ModelRunnerOutput]:
        """Start one step. The future may already be done; errors arrive through it."""

    def choose_tokens(self, bitmask: GrammarBitmask | None, /) -> None:
        """Choose the tokens of the step that was started last, where it was started before those
        of the last one were known; now they are. `bitmask` is that of its grammars.
        """

    @property
    def max_concurrent_batches(self) -> int:
        """Steps that may be started before the first one's result is asked for."""

    def call_workers(self, method: str, *arguments: object) -> list[object]:
        """Run a method of the worker on every rank once the steps under way are done; the answers
        by rank. The method raises nothing.
        """

    def check_health(self) -> None:
        """Raise the error of a rank that has ended or failed."""

    @property
    def wake_descriptors(self) -> Sequence[int]:
        """Descriptors that become readable when there is something for `check_health`."""

    def rank_snapshots(self) -> Sequence[RankSnapshot]:
        """Each rank's memory and times; nothing of a worker inside EngineCore."""

    def shutdown(self) -> None:
        """Free the device; may be called more than once."""


def create_executor(config: EngineConfig) -> Executor:
    """Import and construct the executor that `config.parallel.executor_backend` names."""
    name = config.parallel.executor_backend
    if name not in _EXECUTORS:
        raise ConfigError(f"Unknown executor backend {name!r}; known: {', '.join(_EXECUTORS)}.")
    return cast(Executor, _executor_class(name)(config))


def preload_executor(name: str) -> None:
    """Import that executor, for `uni` torch included, before there is a configuration.

    A name that is none is refused once the configuration is read.
    """
    if name in _EXECUTORS:
        with no_collections():
            if name == _WITH_TORCH:
                import_torch()
            _executor_class(name)


def _executor_class(name: str) -> Any:
    module_name, _, class_name = _EXECUTORS[name].partition(":")
    return getattr(importlib.import_module(module_name), class_name)
