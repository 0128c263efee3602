"""SharedClient: one of several API servers' end to engines that another process starts and watches.

Chooses the engine of each request by what this server sent where and by what the DPCoordinator
publishes of the others. Owns no process.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from engine.config import EngineConfig
from engine.core.handshake import SharedAddresses
from engine.core.replicas import create_router, lost_outputs, replica_config
from engine.core.sockets import MessageReader, bound, is_sent, open_socket
from engine.errors import EngineDeadError, EngineError, ReplicaDownError
from engine.logger import get_logger
from engine.messages import (
    MOST_UNREAD,
    ClientReport,
    EngineCoreOutputs,
    EngineCoreRequest,
    HandshakeReady,
    QueueStats,
    RequestType,
    UtilityOutput,
    UtilityRequest,
)

logger = get_logger(__name__)

_REPORT_S = 0.1
"""Least time between two reports (vLLM's coordinator publishes as often)."""


class SharedClient:
    """All methods run in the event loop that called `start`. `server` is this API server's number.

    `wait_for_start` returns once the engines are ready, with what each has said, and which are up.
    `on_queues` gets what is published, less what this server reported itself.
    """

    def __init__(
        self,
        config: EngineConfig,
        addresses: SharedAddresses,
        server: int,
        wait_for_start: Callable[[], Awaitable[tuple[Sequence[HandshakeReady], Sequence[bool]]]],
        on_queues: Callable[[QueueStats], None] | None = None,
    ) -> None:
        self._client_index = server + 1  # who started the engines is the first client
        self._wait_for_start = wait_for_start
        self._on_queues = on_queues
        self._queued_tokens: dict[str, int] = {}  # of prompts without any output
        size = config.parallel.data_parallel_size
        self._names = [replica_config(config, rank).parallel.engine_name for rank in range(size)]
        self._router, self._affinity = create_router(config, first=server)
        self._context = zmq.asyncio.Context(io_threads=1)
        self._inputs = [
            bound(self._context, zmq.PUSH, addresses.requests(server, n)) for n in range(size)
        ]
        self._output = bound(self._context, zmq.PULL, addresses.outputs(server))
        self._reports = self._connected(zmq.PUSH, addresses.reports, most=MOST_UNREAD)
        self._queues = self._connected(zmq.SUB, addresses.queues)
        self._queues.setsockopt(zmq.SUBSCRIBE, b"")
        self._encode = msgspec.msgpack.Encoder().encode
        self._messages: asyncio.Queue[EngineCoreOutputs] = asyncio.Queue()
        self._ends: list[asyncio.Future[None]] = []  # of the engines, as long as they live
        self._call_ids = itertools.count(1)
        self._calls: dict[int, asyncio.Future[UtilityOutput]] = {}
        self._has_changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._all_dead: EngineDeadError | None = None

    @property
    def num_engines(self) -> int:
        return len(self._inputs)

    async def start(self) -> tuple[HandshakeReady, ...]:
        """Wait for the engines and begin to listen to them."""
        readies, are_up = await self._wait_for_start()
        loop = asyncio.get_running_loop()
        self._ends = [loop.create_future() for _ in self._inputs]
        for rank, is_up in enumerate(are_up):
            if not is_up:
                self.note_down(rank)
        work = (self._read_outputs(), self._read_queues(), self._report())
        self._tasks = [asyncio.create_task(one) for one in work]
        for task in self._tasks:
            task.add_done_callback(self._on_task_done)
        self._has_changed.set()
        return tuple(readies)

    async def add_request(self, request: EngineCoreRequest) -> None:
        """Queue one request where the router says; EngineDeadError when no engine is left."""
        rank = None if self._all_dead is not None else self._router.place(request)
        if rank is None:
            raise self._all_dead or EngineDeadError("No EngineCore is left.")
        self._queued_tokens[request.request_id] = len(request.prompt_token_ids)
        self._has_changed.set()
        own = msgspec.structs.replace(request, client_index=self._client_index)
        with contextlib.suppress(ReplicaDownError):  # then it has failed with the engine's others
            await self._send(rank, RequestType.ADD, own)

    async def abort_requests(self, request_ids: Sequence[str]) -> None:
        """End requests nobody waits for, each where it runs."""
        by_rank: dict[int, list[str]] = {}
        for name in request_ids:
            rank = self._router.rank_of(name)
            if rank is not None:
                by_rank.setdefault(rank, []).append(name)
                self._forget(name)
        self._has_changed.set()
        for rank, ids in by_rank.items():
            with contextlib.suppress(ReplicaDownError):
                await self._send(rank, RequestType.ABORT, ids)

    def engine_of(self, request_id: str) -> int:
        """Rank of the engine that has the request; 0 for one that is not known."""
        return self._router.rank_of(request_id) or 0

    async def get_output(self) -> EngineCoreOutputs:
        """The next step's outputs of any engine; EngineDeadError once none is left."""
        if self._all_dead is not None and self._messages.empty():
            raise self._all_dead
        outputs = await self._messages.get()
        if outputs.engine_dead:
            assert self._all_dead is not None
            raise self._all_dead
        return outputs

    async def call_utility(self, method: str, engine: int = 0) -> bool | int | float | str | None:
        """Call a named method of one engine; ReplicaDownError while that is not there."""
        if not self._router.is_up(engine):
            raise self._all_dead or self._down(engine)
        call_id = next(self._call_ids)
        answer: asyncio.Future[UtilityOutput] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = answer
        try:
            call = UtilityRequest(call_id, method, self._client_index)
            await self._send(engine, RequestType.UTILITY, call)
            waited: set[asyncio.Future[Any]] = {answer, self._ends[engine]}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._calls.pop(call_id, None)
        if not answer.done():
            raise self._all_dead or self._down(engine)
        if (error := answer.result().error) is not None:
            raise EngineError(error)
        return answer.result().result

    def note_up(self, rank: int) -> None:
        """An engine that had died serves again, and gets requests from now on."""
        if self._ends[rank].done():
            self._ends[rank] = asyncio.get_running_loop().create_future()
        self._router.note_up(rank)

    def note_down(self, rank: int) -> None:
        """An engine has died: its requests fail."""
        lost = self._router.note_down(rank)
        for name in lost:
            self._forget(name)
        if lost:
            logger.warning("%s is down: %d of its requests failed.", self._names[rank], len(lost))
        if not self._ends[rank].done():
            self._ends[rank].set_result(None)
        if lost:
            failed = lost_outputs(self._names[rank], lost)
            self._messages.put_nowait(EngineCoreOutputs(outputs=failed, engine_index=rank))
        self._has_changed.set()

    def note_no_coordinator(self) -> None:
        """Nobody tells of the other API servers: only what this one sent counts until somebody does
        again.
        """
        zeros = [0] * len(self._router)
        self._learn(QueueStats(zeros, zeros, {}))

    def note_dead(self, error: EngineDeadError) -> None:
        """No engine is left: whoever waits is told, now and later."""
        self._all_dead = self._all_dead or error
        for end in self._ends:
            if not end.done():
                end.set_result(None)
        self._messages.put_nowait(EngineCoreOutputs(engine_dead=True))

    async def shutdown(self, _timeout_s: float) -> None:
        """Close the sockets; the engines are ended by who started them. Idempotent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.note_dead(EngineDeadError("The API server was shut down."))
        self._context.destroy(linger=0)

    # ---- inside --------------------------------------------------------------------------------

    def _connected(self, kind: int, address: str, most: int = 0) -> zmq.asyncio.Socket:
        socket = open_socket(self._context, kind, most)
        socket.connect(address)
        return socket

    def _forget(self, request_id: str) -> None:
        self._router.forget(request_id)
        self._queued_tokens.pop(request_id, None)
        self._has_changed.set()

    def _down(self, rank: int) -> ReplicaDownError:
        return ReplicaDownError(f"{self._names[rank]} is down; others serve.")

    async def _send(self, rank: int, kind: RequestType, payload: object) -> None:
        """ReplicaDownError when the engine ends before it takes the message."""
        parts = (kind.value, self._encode(payload))
        if not await is_sent(self._inputs[rank], parts, self._ends[rank]):
            raise self._down(rank)

    async def _read_outputs(self) -> None:
        decode = msgspec.msgpack.Decoder(EngineCoreOutputs).decode
        reader = MessageReader(self._output)
        try:
            while (message := await reader.next()) is not None:
                self._take_outputs(decode(message))
        finally:
            reader.end()

    def _take_outputs(self, outputs: EngineCoreOutputs) -> None:
        if (answer := outputs.utility_output) is not None:
            call = self._calls.get(answer.call_id)
            if call is not None and not call.done():
                call.set_result(answer)
            return
        for output in outputs.outputs:
            if self._queued_tokens.pop(output.request_id, None) is not None:
                self._has_changed.set()
            if output.finish_reason is not None:
                self._forget(output.request_id)
        self._messages.put_nowait(outputs)

    async def _read_queues(self) -> None:
        decode = msgspec.msgpack.Decoder(QueueStats).decode
        while True:
            stats = decode(await self._queues.recv())
            if stats.num_requests.pop(self._client_index, None) is None:
                self._has_changed.set()  # the coordinator is a new one, and has not heard of it
            stats.num_queued_tokens.pop(self._client_index, None)
            self._learn(stats)

    def _learn(self, others: QueueStats) -> None:
        for rank, num_running in enumerate(others.num_running):
            elsewhere = sum(numbers[rank] for numbers in others.num_requests.values())
            self._router.note_running(rank, num_running)
            self._router.note_elsewhere(rank, elsewhere)
        if self._on_queues is not None:
            self._on_queues(others)
        if self._affinity is not None:
            self._affinity.learn(others.prefixes)

    async def _report(self) -> None:
        while True:
            await self._has_changed.wait()
            self._has_changed.clear()
            numbers = [self._router.num_requests(rank) for rank in range(len(self._router))]
            news = [] if self._affinity is None else self._affinity.take_news()
            queued = sum(self._queued_tokens.values())
            report = ClientReport(self._client_index, numbers, news, queued)
            try:
                await self._reports.send(self._encode(report), zmq.NOBLOCK)
            except zmq.Again:  # there has been no coordinator for long: the next one is told
                self._has_changed.set()
            await asyncio.sleep(_REPORT_S)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        """Without one of these tasks requests would wait for ever."""
        if not task.cancelled() and (cause := task.exception()) is not None:
            self.note_dead(EngineDeadError(f"The connection to the engines failed: {cause!r}"))
