"""AsyncMPClient: the API server's end. Starts EngineCore as a child process and talks to it over
ZMQ.

Owns the child: whatever way the server ends, `shutdown` returns only when the process is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from engine.config import EngineConfig
from engine.core.core_process import CoreProcess
from engine.core.handshake import CoreAddresses, error_from_name
from engine.core.sockets import MessageReader, bound, is_sent
from engine.errors import EngineDeadError, EngineError
from engine.logger import get_logger
from engine.messages import (
    CoreLinks,
    EngineCoreOutputs,
    EngineCoreRequest,
    Handshake,
    HandshakeDead,
    HandshakeHello,
    HandshakeInit,
    HandshakeReady,
    RequestType,
    UtilityOutput,
    UtilityRequest,
)

logger = get_logger(__name__)

NO_LINKS = CoreLinks()

_TERM_GRACE_S = 3.0


class AsyncMPClient:
    """One EngineCore process. All methods run in the event loop that called `start`.

    `process` is one that runs already; else `start` calls `spawn`, which makes it. `links` are
    those of its other clients.
    """

    num_engines = 1

    def __init__(
        self,
        config: EngineConfig,
        *,
        process: CoreProcess | None = None,
        spawn: Callable[[CoreAddresses], CoreProcess] = CoreProcess,
        links: CoreLinks = NO_LINKS,
    ) -> None:
        self._config = config
        self._links = links
        self._spawn = spawn
        self._context = zmq.asyncio.Context(io_threads=1)
        self._addresses = process.addresses if process else CoreAddresses.create()
        self._process = process
        self._exit_watch: asyncio.Task[int] | None = None
        self._is_dead = False
        self._is_stopping = False
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(EngineCoreOutputs).decode
        self._call_ids = itertools.count(1)
        self._calls: dict[int, asyncio.Future[UtilityOutput]] = {}
        self._input = bound(self._context, zmq.PUSH, self._addresses.input)
        self._output = bound(self._context, zmq.PULL, self._addresses.output)
        self._reader: MessageReader | None = None

    @property
    def pid(self) -> int | None:
        """Process id of EngineCore, None before `start`."""
        return self._process.pid if self._process else None

    async def start(self) -> tuple[HandshakeReady, ...]:
        """Spawn EngineCore and wait until its model is loaded.

        Raises the EngineError that ended the start, or EngineDeadError when the process just died.
        """
        handshake = bound(self._context, zmq.PAIR, self._addresses.handshake)
        if self._process is None:
            self._process = self._spawn(self._addresses)
        self._exit_watch = asyncio.create_task(self._process.wait())
        try:
            ready = await self._handshake(handshake)
            self._reader = MessageReader(self._output)
            self._exit_watch.add_done_callback(self._on_exit)
            return (ready,)
        except BaseException:
            await self.shutdown(0.0)
            raise
        finally:
            handshake.close(linger=0)

    async def add_request(self, request: EngineCoreRequest) -> None:
        """Queue one request; EngineDeadError when there is no engine any more."""
        self._require_alive()
        await self._send(RequestType.ADD, request)

    async def abort_requests(self, request_ids: Sequence[str]) -> None:
        """End requests nobody waits for; silently nothing when the engine is dead."""
        if request_ids and not self._is_dead:
            with contextlib.suppress(EngineDeadError):
                await self._send(RequestType.ABORT, list(request_ids))

    async def get_output(self) -> EngineCoreOutputs:
        """The next step's outputs; EngineDeadError once EngineCore is gone."""
        assert self._reader is not None, "start() comes first"
        while True:
            message = await self._reader.next()
            if message is None:
                self._mark_dead()
                raise EngineDeadError(f"EngineCore is gone (exit code {self._exit_code()}).")
            outputs = self._decode(message)
            if outputs.engine_dead:
                self._mark_dead()
                raise EngineDeadError("EngineCore failed; see its traceback in the log.")
            if outputs.utility_output is None:
                return outputs
            call = self._calls.get(outputs.utility_output.call_id)
            if call is not None and not call.done():
                call.set_result(outputs.utility_output)

    def engine_of(self, _request_id: str) -> int:
        """There is one engine only."""
        return 0

    async def call_utility(self, method: str, _engine: int = 0) -> bool | int | float | str | None:
        """Call a named EngineCore method. Needs someone to be reading `get_output`."""
        self._require_alive()
        call_id = next(self._call_ids)
        self._calls[call_id] = asyncio.get_running_loop().create_future()
        try:
            await self._send(RequestType.UTILITY, UtilityRequest(call_id, method))
            answer = await self._calls[call_id]
        finally:
            self._calls.pop(call_id, None)
        if answer.error is not None:
            raise EngineError(answer.error)
        return answer.result

    async def shutdown(self, timeout_s: float) -> None:
        """Stop EngineCore: SIGTERM, up to `timeout_s` plus a grace, then SIGKILL. Idempotent."""
        self._is_stopping = True
        if self._process is not None and self._exit_watch is not None:
            if not self._exit_watch.done():
                self._process.send_signal(signal.SIGTERM)
                await asyncio.wait({self._exit_watch}, timeout=timeout_s + _TERM_GRACE_S)
            if not self._exit_watch.done():
                logger.warning("[shutdown] MPClient: EngineCore still running; sending SIGKILL")
                self._process.send_signal(signal.SIGKILL)
            # Not awaited itself: a cancellation would end the watch, and the process with nobody.
            await asyncio.wait({self._exit_watch})
        self._mark_dead()
        if self._reader is not None:
            self._reader.end()
        self._context.destroy(linger=0)
        self._addresses.remove()

    # ---- inside --------------------------------------------------------------------------------

    async def _handshake(self, socket: zmq.asyncio.Socket) -> HandshakeReady:
        hello = await self._next_handshake(socket)
        assert isinstance(hello, HandshakeHello), hello
        own = (self._addresses.input, self._addresses.output)
        links = CoreLinks((own, *self._links.clients), self._links.stats)
        await socket.send(self._encode(HandshakeInit(self._config, links)))
        answer = await self._next_handshake(socket)
        if isinstance(answer, HandshakeDead):
            raise error_from_name(answer.kind, answer.message)
        assert isinstance(answer, HandshakeReady), answer
        return answer

    async def _next_handshake(self, socket: zmq.asyncio.Socket) -> Handshake:
        assert self._exit_watch is not None
        message: asyncio.Future[bytes] = asyncio.ensure_future(socket.recv())
        waited: set[asyncio.Future[Any]] = {message, self._exit_watch}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not message.done():
            # A last word may still lie in the socket of a process that is already gone.
            await asyncio.wait({message}, timeout=0.2)
        if not message.done():
            message.cancel()
            raise EngineDeadError(
                f"EngineCore ended during start-up with exit code {self._exit_watch.result()}."
            )
        return msgspec.msgpack.decode(message.result(), type=Handshake)

    def _on_exit(self, _watch: asyncio.Task[int]) -> None:
        assert self._reader is not None, "set before"
        self._reader.end()

    def _exit_code(self) -> int | None:
        return self._process.returncode if self._process else None

    async def _send(self, kind: RequestType, payload: object) -> None:
        """EngineDeadError when the engine ends before it takes the message."""
        parts = (kind.value, self._encode(payload))
        assert self._exit_watch is not None, "start() comes first"
        if not await is_sent(self._input, parts, self._exit_watch):
            raise EngineDeadError(f"EngineCore is gone (exit code {self._exit_code()}).")

    def _require_alive(self) -> None:
        if self._is_dead or (self._exit_watch is not None and self._exit_watch.done()):
            raise EngineDeadError(f"EngineCore is gone (exit code {self._exit_code()}).")

    def _mark_dead(self) -> None:
        is_alone = self._config.parallel.data_parallel_size == 1  # else its replicas tell
        if is_alone and not self._is_dead and not self._is_stopping:
            code = self._exit_code()
            how = "it reported a failure" if code is None else f"exit code {code}"
            logger.error("[shutdown] MPClient: engine core exited unexpectedly (%s)", how)
        self._is_dead = True
        for call in self._calls.values():
            if not call.done():
                call.set_exception(EngineDeadError("EngineCore is gone."))
        self._calls.clear()
