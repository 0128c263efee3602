"""ReplicatedClient: several EngineCores behind the interface of one, for data parallelism.

Each replica is a whole engine. A request goes to the least loaded one and stays there; a replica
that dies fails its own requests alone and is started again. Owns which request is where.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.config import EngineConfig
from engine.core.client import AsyncMPClient
from engine.core.core_process import CoreProcess, spawn_core
from engine.core.together import all_together
from engine.errors import EngineDeadError, EngineError, ReplicaDownError
from engine.logger import get_logger
from engine.machine.cores import usable_cores
from engine.messages import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    FinishReason,
    HandshakeReady,
    SchedulerStats,
)

logger = get_logger(__name__)

_WAITING_WEIGHT = 4
"""A waiting request counts as this many running ones (vLLM's DPLBAsyncMPClient)."""

_MAX_RESTARTS = 3
"""Starts in a row of a replica that never answered in between."""


def create_client(
    config: EngineConfig,
    processes: Sequence[CoreProcess] = (),
    *,
    log_fd: int | None = None,
) -> AsyncMPClient | ReplicatedClient:
    """What talks to the engine or engines of `config`; `processes` are those that run already."""
    size = config.parallel.data_parallel_size
    clients = [
        _create_replica_client(config, rank, processes[rank] if processes else None, log_fd)
        for rank in range(size)
    ]
    return clients[0] if size == 1 else ReplicatedClient(config, clients, log_fd=log_fd)


def replica_config(config: EngineConfig, rank: int) -> EngineConfig:
    """The configuration of one of several engines.

    On a CPU they share its memory and its cores; a GPU is each one's own.
    """
    parallel = dataclasses.replace(config.parallel, data_parallel_rank=rank)
    if config.device.device != "cpu":
        return dataclasses.replace(config, parallel=parallel)
    size = parallel.data_parallel_size
    cache = dataclasses.replace(
        config.cache, gpu_memory_utilization=config.cache.gpu_memory_utilization / size
    )
    device = config.device
    if device.num_threads is None:
        num_ranks = size * parallel.world_size
        device = dataclasses.replace(device, num_threads=max(1, usable_cores() // num_ranks))
    return dataclasses.replace(config, parallel=parallel, cache=cache, device=device)


@dataclass(slots=True)
class _Replica:
    rank: int
    name: str
    client: AsyncMPClient
    is_up: bool = True
    request_ids: set[str] = field(default_factory=set)
    num_running: int = 0  # as of its last step

    @property
    def load(self) -> int:
        waiting = max(0, len(self.request_ids) - self.num_running)
        return _WAITING_WEIGHT * waiting + self.num_running


class ReplicatedClient:
    """The replicas of one server. All methods run in the event loop that called `start`."""

    def __init__(
        self,
        config: EngineConfig,
        clients: Sequence[AsyncMPClient],
        *,
        log_fd: int | None = None,
    ) -> None:
        self._config = config
        self._log_fd = log_fd
        self._replicas = [
            _Replica(rank, replica_config(config, rank).parallel.engine_name, client)
            for rank, client in enumerate(clients)
        ]
        self._places: dict[str, _Replica] = {}
        self._outputs: asyncio.Queue[EngineCoreOutputs] = asyncio.Queue()
        self._watches: list[asyncio.Task[None]] = []
        self._all_dead: EngineDeadError | None = None
        self._next = 0

    @property
    def num_engines(self) -> int:
        return len(self._replicas)

    @property
    def pids(self) -> list[int | None]:
        """Process ids of the EngineCores, by rank."""
        return [replica.client.pid for replica in self._replicas]

    async def start(self) -> tuple[HandshakeReady, ...]:
        """Start all replicas at once; raises the EngineError that ended the first start to fail."""
        try:
            starts = await all_together(replica.client.start() for replica in self._replicas)
        except BaseException:
            await self.shutdown(0.0)
            raise
        readies = [ready for (ready,) in starts]
        self._fix_length(min(ready.max_model_len for ready in readies))
        self._watches = [
            asyncio.create_task(self._watch(replica), name=f"replica-{replica.rank}")
            for replica in self._replicas
        ]
        return tuple(readies)

    async def add_request(self, request: EngineCoreRequest) -> None:
        """Queue one request on the least loaded replica; EngineDeadError when none is left."""
        replica = self._least_loaded()
        replica.request_ids.add(request.request_id)
        self._places[request.request_id] = replica
        # One whose end has not been noticed yet: the request fails with its others.
        with contextlib.suppress(EngineDeadError):
            await replica.client.add_request(request)

    async def abort_requests(self, request_ids: Sequence[str]) -> None:
        """End requests nobody waits for, each where it runs."""
        for replica in self._replicas:
            ids = [name for name in request_ids if self._places.get(name) is replica]
            for name in ids:
                self._forget(name)
            if ids:
                await replica.client.abort_requests(ids)

    def engine_of(self, request_id: str) -> int:
        """Rank of the replica that has the request; 0 for one that is not known."""
        replica = self._places.get(request_id)
        return 0 if replica is None else replica.rank

    async def get_output(self) -> EngineCoreOutputs:
        """The next step's outputs of any replica; EngineDeadError once none is left."""
        if self._all_dead is not None and self._outputs.empty():
            raise self._all_dead
        outputs = await self._outputs.get()
        if outputs.engine_dead:
            assert self._all_dead is not None
            raise self._all_dead
        return outputs

    async def call_utility(self, method: str, engine: int = 0) -> bool | int | float | str | None:
        """Call a named method of one replica; ReplicaDownError while that is not there."""
        replica = self._replicas[engine]
        if not replica.is_up:  # one that is being started would answer once it has loaded
            raise self._all_dead or ReplicaDownError(f"{replica.name} is down; others serve.")
        return await replica.client.call_utility(method)

    async def shutdown(self, timeout_s: float) -> None:
        """Stop every replica at once; returns when all of their processes are gone. Idempotent."""
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        await asyncio.gather(*(replica.client.shutdown(timeout_s) for replica in self._replicas))
        self._all_dead = self._all_dead or EngineDeadError("The engines were shut down.")

    # ---- inside --------------------------------------------------------------------------------

    def _least_loaded(self) -> _Replica:
        """Of equally loaded ones the next in turn."""
        size = len(self._replicas)
        order = [self._replicas[(self._next + step) % size] for step in range(size)]
        living = [replica for replica in order if replica.is_up]
        if not living:
            raise self._all_dead or EngineDeadError("No EngineCore is left.")
        chosen = min(living, key=lambda replica: replica.load)
        self._next = chosen.rank + 1
        return chosen

    def _forget(self, request_id: str) -> None:
        replica = self._places.pop(request_id, None)
        if replica is not None:
            replica.request_ids.discard(request_id)

    def _fix_length(self, max_model_len: int) -> None:
        """What the server has promised holds for a replica that is started again."""
        scheduler = dataclasses.replace(
            self._config.scheduler, max_model_len=max_model_len, auto_fit_max_model_len=False
        )
        self._config = dataclasses.replace(self._config, scheduler=scheduler)

    async def _watch(self, replica: _Replica) -> None:
        """Pass on what a replica says, and start it again when it dies, for as long as it helps."""
        num_restarts = 0
        while True:
            try:
                while True:
                    self._deliver(replica, await replica.client.get_output())
                    num_restarts = 0
            except EngineDeadError as error:
                self._on_death(replica, error)
            if self._all_dead is not None:
                return
            while not replica.is_up:
                if num_restarts == _MAX_RESTARTS:
                    logger.warning(
                        "Replica %s is not started again: it failed too often.", replica.name
                    )
                    return
                num_restarts += 1
                await self._restart(replica, num_restarts)

    def _deliver(self, replica: _Replica, outputs: EngineCoreOutputs) -> None:
        outputs.engine_index = replica.rank
        if outputs.scheduler_stats is not None:
            replica.num_running = outputs.scheduler_stats.num_running_reqs
        for output in outputs.outputs:
            if output.finish_reason is not None:
                self._forget(output.request_id)
        self._outputs.put_nowait(outputs)

    def _on_death(self, replica: _Replica, error: EngineDeadError) -> None:
        replica.is_up = False
        lost = sorted(replica.request_ids)
        living = sum(other.is_up for other in self._replicas)
        logger.warning(
            "Replica %s (pid %s) died: %s %d of its requests failed; %d of %d replicas are left.",
            replica.name,
            replica.client.pid,
            error,
            len(lost),
            living,
            len(self._replicas),
        )
        if not living:
            self._all_dead = error
            self._outputs.put_nowait(EngineCoreOutputs(engine_dead=True))
            return
        failure = (
            f"{replica.name}, the replica that had this request, died; send the request again."
        )
        failed = [EngineCoreOutput(name, [], FinishReason.ERROR, error=failure) for name in lost]
        replica.num_running = 0
        self._deliver(replica, EngineCoreOutputs(outputs=failed, scheduler_stats=SchedulerStats()))

    async def _restart(self, replica: _Replica, attempt: int) -> None:
        await replica.client.shutdown(0.0)
        logger.info("Replica %s is started again (%d of %d).", replica.name, attempt, _MAX_RESTARTS)
        try:
            replica.client = _create_replica_client(self._config, replica.rank, None, self._log_fd)
            await replica.client.start()
        except (EngineError, OSError) as error:  # the latter: no room for a folder or a process
            logger.warning("Replica %s did not start: %s", replica.name, error)
            return
        replica.is_up = True
        logger.info("Replica %s (pid %s) serves again.", replica.name, replica.client.pid)


def _create_replica_client(
    config: EngineConfig, rank: int, process: CoreProcess | None, log_fd: int | None
) -> AsyncMPClient:
    if config.parallel.data_parallel_size > 1:
        config = replica_config(config, rank)
    spawn = functools.partial(spawn_core, parallel=config.parallel, log_fd=log_fd)
    return AsyncMPClient(config, process=process, spawn=spawn)
