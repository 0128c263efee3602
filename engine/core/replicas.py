"""ReplicatedClient: several EngineCores behind the interface of one, for data parallelism.

Each replica is a whole engine. A request goes where the Router says and stays there; a replica
that dies fails its own requests alone and is started again. Owns the replicas' lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import zmq

from engine.config import EngineConfig
from engine.core.client import NO_LINKS, AsyncMPClient
from engine.core.core_process import CoreProcess, spawn_core
from engine.core.routing import PrefixAffinity, Router
from engine.core.together import all_together
from engine.errors import EngineDeadError, EngineError, ReplicaDownError
from engine.logger import get_logger
from engine.machine.cores import usable_cores
from engine.messages import (
    SLEEP,
    CoreLinks,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    FinishReason,
    HandshakeReady,
    SchedulerStats,
    SleepCall,
)

logger = get_logger(__name__)

_MAX_RESTARTS = 3
"""Starts in a row of a replica that never answered in between."""


def create_client(
    config: EngineConfig,
    processes: Sequence[CoreProcess] = (),
    *,
    log_fd: int | None = None,
    links: Sequence[CoreLinks] = (),
    on_change: Callable[[int, bool], None] | None = None,
) -> AsyncMPClient | ReplicatedClient:
    """What talks to the engine or engines of `config`; `processes` are those that run already.

    `links` are each engine's other clients. `on_change` is told the rank of a replica that is gone
    (False) or serves again (True).
    """
    size = config.parallel.data_parallel_size

    def create(config: EngineConfig, rank: int, process: CoreProcess | None) -> AsyncMPClient:
        own = replica_config(config, rank) if size > 1 else config
        spawn = functools.partial(spawn_core, parallel=own.parallel, log_fd=log_fd)
        return AsyncMPClient(
            own, process=process, spawn=spawn, links=links[rank] if links else NO_LINKS
        )

    clients = [create(config, rank, processes[rank] if processes else None) for rank in range(size)]
    if size == 1:
        return clients[0]
    return ReplicatedClient(
        config, clients, lambda config, rank: create(config, rank, None), on_change=on_change
    )


def create_router(config: EngineConfig, first: int = 0) -> tuple[Router, PrefixAffinity | None]:
    """The router of one API server, with what it learns of prefixes, if that is asked for.

    `first` is the engine that it begins with.
    """
    parallel = config.parallel
    has_affinity = parallel.data_parallel_routing == "prefix"
    affinity = PrefixAffinity(config.cache.block_size) if has_affinity else None
    return Router(parallel.data_parallel_size, affinity, first), affinity


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


class ReplicatedClient:
    """The replicas of one server. All methods run in the event loop that called `start`."""

    def __init__(
        self,
        config: EngineConfig,
        clients: Sequence[AsyncMPClient],
        make_client: Callable[[EngineConfig, int], AsyncMPClient],
        *,
        on_change: Callable[[int, bool], None] | None = None,
    ) -> None:
        """`make_client` makes that of a rank that is started again."""
        self._config = config
        self._make_client = make_client
        self._on_change = on_change
        self._replicas = [
            _Replica(rank, replica_config(config, rank).parallel.engine_name, client)
            for rank, client in enumerate(clients)
        ]
        self._router, _ = create_router(config)
        self._outputs: asyncio.Queue[EngineCoreOutputs] = asyncio.Queue()
        self._watches: list[asyncio.Task[None]] = []
        self._joining: set[asyncio.Task[None]] = set()  # the sleep of the others
        self._all_dead: EngineDeadError | None = None

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
            asyncio.create_task(self._watch(replica), name=replica.name)
            for replica in self._replicas
        ]
        for watch in self._watches:
            watch.add_done_callback(self._on_watch_done)
        return tuple(readies)

    async def add_request(self, request: EngineCoreRequest) -> None:
        """Queue one request where the router says; EngineDeadError when no replica is left."""
        rank = None if self._all_dead is not None else self._router.place(request)
        if rank is None:
            raise self._all_dead or EngineDeadError("No EngineCore is left.")
        # One whose end has not been noticed yet: the request fails with its others.
        with contextlib.suppress(EngineDeadError):
            await self._replicas[rank].client.add_request(request)

    async def abort_requests(self, request_ids: Sequence[str]) -> None:
        """End requests nobody waits for, each where it runs."""
        for replica in self._replicas:
            ids = [name for name in request_ids if self._router.rank_of(name) == replica.rank]
            for name in ids:
                self._router.forget(name)
            if ids:
                await replica.client.abort_requests(ids)

    def engine_of(self, request_id: str) -> int:
        """Rank of the replica that has the request; 0 for one that is not known."""
        return self._router.rank_of(request_id) or 0

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
        down = ReplicaDownError(f"{replica.name} is down; others serve.")
        # One that is being started would answer once it has loaded.
        if not self._router.is_up(engine):
            raise self._all_dead or down
        try:
            return await replica.client.call_utility(method)
        except EngineDeadError as error:
            if self._all_dead is not None or self._watches[engine].done():
                raise  # no other serves either, or all of them are being ended
            raise down from error

    async def shutdown(self, timeout_s: float) -> None:
        """Stop every replica at once; returns when all of their processes are gone. Idempotent."""
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        await asyncio.gather(*(replica.client.shutdown(timeout_s) for replica in self._replicas))
        if self._all_dead is None:
            self._give_up(EngineDeadError("The engines were shut down."))

    # ---- inside --------------------------------------------------------------------------------

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
            while not self._router.is_up(replica.rank):
                if self._all_dead is not None:
                    return
                if num_restarts == _MAX_RESTARTS:
                    logger.warning(
                        "Replica %s is not started again: it failed too often.", replica.name
                    )
                    return
                num_restarts += 1
                await self._restart(replica, num_restarts)

    def _on_watch_done(self, watch: asyncio.Task[None]) -> None:
        """A replica that nobody watches any more would keep its requests waiting for ever."""
        if watch.cancelled() or (cause := watch.exception()) is None:
            return
        logger.error("The watch over %s failed.", watch.get_name(), exc_info=cause)
        self._give_up(EngineDeadError(f"The watch over {watch.get_name()} failed."))

    def _give_up(self, error: EngineDeadError) -> None:
        """Whoever waits for outputs is told, now and later."""
        self._all_dead = error
        self._outputs.put_nowait(EngineCoreOutputs(engine_dead=True))

    def _deliver(self, replica: _Replica, outputs: EngineCoreOutputs) -> None:
        outputs.engine_index = replica.rank
        if outputs.scheduler_stats is not None:
            self._router.note_running(replica.rank, outputs.scheduler_stats.num_running_reqs)
        for output in outputs.outputs:
            if output.finish_reason is not None:
                self._router.forget(output.request_id)
        self._outputs.put_nowait(outputs)

    def _on_death(self, replica: _Replica, error: EngineDeadError) -> None:
        lost = self._router.note_down(replica.rank)
        living = self._router.num_up
        logger.warning(
            "Replica %s (pid %s) died: %s %s failed; %d of %d replicas are left.",
            replica.name,
            replica.client.pid,
            error,
            f"{len(lost)} of its requests" if self._on_change is None else "Its requests",
            living,
            len(self._replicas),
        )
        if not living:
            self._give_up(error)
            return
        failed = lost_outputs(replica.name, lost)
        self._deliver(replica, EngineCoreOutputs(outputs=failed, scheduler_stats=SchedulerStats()))
        self._tell(replica.rank)

    def _tell(self, rank: int) -> None:
        if self._on_change is not None:
            self._on_change(rank, self._router.is_up(rank))

    async def _restart(self, replica: _Replica, attempt: int) -> None:
        await replica.client.shutdown(0.0)
        logger.info("Replica %s is started again (%d of %d).", replica.name, attempt, _MAX_RESTARTS)
        try:
            replica.client = self._make_client(self._config, replica.rank)
            await replica.client.start()
        except (EngineError, OSError, zmq.ZMQError) as error:  # the latter: no room for a process
            logger.warning("Replica %s did not start: %s", replica.name, error)
            return
        level = await self._asked_sleep_level()
        self._router.note_up(replica.rank)
        logger.info("Replica %s (pid %s) serves again.", replica.name, replica.client.pid)
        self._tell(replica.rank)
        if level:  # its answer is read by who watches the replica
            task = asyncio.create_task(self._join_sleep(replica, level))
            self._joining.add(task)
            task.add_done_callback(self._joining.discard)

    async def _asked_sleep_level(self) -> int:
        """How deep those that are up sleep, or will once their requests have ended."""
        deepest = 0
        for replica in self._replicas:
            with contextlib.suppress(EngineError):
                found = await self.call_utility("asked_sleep_level", replica.rank)
                deepest = max(deepest, found) if isinstance(found, int) else deepest
        return deepest

    async def _join_sleep(self, replica: _Replica, level: int) -> None:
        with contextlib.suppress(EngineError):  # it has died again
            call = msgspec.json.encode(SleepCall(level)).decode()
            await replica.client.call_utility(SLEEP + call)


def lost_outputs(engine: str, request_ids: Sequence[str]) -> list[EngineCoreOutput]:
    """The ends of requests that were lost with the replica of this name."""
    failure = f"{engine}, the replica that had this request, died; send the request again."
    return [EngineCoreOutput(name, [], FinishReason.ERROR, error=failure) for name in request_ids]
