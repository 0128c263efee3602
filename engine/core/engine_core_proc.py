"""The EngineCore process: handshake, then a busy loop of receive, step, send.

One thread does all of it: ZMQ's own I/O thread buffers what arrives while the model runs, so no
Python thread competes for the interpreter. A second thread only watches that the parent lives.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Sequence

import msgspec
import zmq

from engine.core.engine_core import EngineCore
from engine.core.executor import preload_executor
from engine.core.memory_turn import announce_start
from engine.core.output_share import ABORT_CLIENT, OutputShare
from engine.errors import EngineError
from engine.logger import get_logger, setup_logging
from engine.lora_adapters import LoraRequest
from engine.machine.children import end_with_parent
from engine.machine.heap import Heap
from engine.messages import (
    LOAD_ADAPTER,
    MOST_UNREAD,
    SLEEP,
    SLEEP_TAGS,
    TELL_SLEEP,
    UNLOAD_ADAPTER,
    WAKE_UP,
    EngineCoreOutputs,
    EngineCoreRequest,
    Handshake,
    HandshakeDead,
    HandshakeHello,
    HandshakeInit,
    RequestType,
    SleepCall,
    UtilityOutput,
    UtilityRequest,
)

logger = get_logger(__name__)

_RECONNECT_MS = 10
_DEBUG_DOCUMENTS = {f"debug_{name}": name for name in ("scheduler", "requests", "blocks")}
_TRACE = "debug_trace:"


def main(handshake_address: str, parent: int, name: str, executor: str) -> int:
    """Run one EngineCore until it is told to stop; returns the process's exit code."""
    setup_logging(name)
    end_with_parent(parent)
    # Ctrl-C reaches the whole process group; the API server decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    announce_start()
    preload_executor(executor)  # the parent may have no configuration yet
    logger.debug("All modules of the executor are imported.")
    context = zmq.Context(io_threads=1)
    try:
        return _run(context, handshake_address)
    finally:
        context.destroy(linger=1000)


def _run(context: zmq.Context[zmq.Socket[bytes]], handshake_address: str) -> int:
    handshake = context.socket(zmq.PAIR)
    handshake.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)  # the parent may not listen yet
    handshake.connect(handshake_address)
    encode = msgspec.msgpack.Encoder().encode
    handshake.send(encode(HandshakeHello(os.getpid())))
    init = msgspec.msgpack.decode(handshake.recv(), type=Handshake)
    assert isinstance(init, HandshakeInit), init
    try:
        core = EngineCore(init.config)
    except EngineError as error:
        logger.error("EngineCore failed to start.")
        logger.error("%s: %s", type(error).__name__, error)
        handshake.send(encode(HandshakeDead(type(error).__name__, str(error))))
        return 1
    except Exception as error:
        logger.exception("EngineCore failed to start.")
        handshake.send(encode(HandshakeDead(type(error).__name__, str(error))))
        return 1
    proc = EngineCoreProc(core, context, init)
    handshake.send(encode(core.ready_message))
    return proc.run()


class EngineCoreProc:
    """Sockets and the busy loop around one EngineCore."""

    def __init__(
        self, core: EngineCore, context: zmq.Context[zmq.Socket[bytes]], init: HandshakeInit
    ) -> None:
        self._core = core
        self._heap = Heap()
        self._shutdown_timeout_s = init.config.shutdown_timeout_s
        self._stop_deadline: float | None = None
        self._input = context.socket(zmq.PULL)
        self._input.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)  # an API server may come later
        for address, _ in init.links.clients:
            self._input.connect(address)
        self._senders = [_sender(context, address) for _, address in init.links.clients]
        self._share = OutputShare(init.config.parallel.data_parallel_rank)
        stats = init.links.stats
        self._stats = None if stats is None else _sender(context, stats, MOST_UNREAD)
        self._has_worked = False
        self._awaited_sleeps: list[tuple[UtilityRequest, SleepCall]] = []  # until it is idle
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode_add = msgspec.msgpack.Decoder(EngineCoreRequest).decode
        self._decode_abort = msgspec.msgpack.Decoder(list[str]).decode
        self._decode_utility = msgspec.msgpack.Decoder(UtilityRequest).decode
        # A signal only sets a flag; the socket pair wakes the poll that waits for requests.
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        signal.signal(signal.SIGTERM, self._on_sigterm)
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)

    def run(self) -> int:
        """Loop until told to stop; a step that fails ends the process with code 1."""
        try:
            self._busy_loop()
        except EngineError as error:  # it says all: where it was raised would only hide that
            logger.error("EngineCore encountered a fatal error.")
            logger.error("%s: %s", type(error).__name__, error)
            self._send(EngineCoreOutputs(engine_dead=True))
            return 1
        except Exception:
            logger.exception("EngineCore encountered a fatal error.")
            self._send(EngineCoreOutputs(engine_dead=True))
            return 1
        finally:
            self._core.shutdown()
        logger.info("[shutdown] EngineCore: exiting busy loop")
        return 0

    def _busy_loop(self) -> None:
        poller = zmq.Poller()
        poller.register(self._input, zmq.POLLIN)
        poller.register(self._wake_read.fileno(), zmq.POLLIN)
        for descriptor in self._core.executor.wake_descriptors:
            poller.register(descriptor, zmq.POLLIN)
        while not self._should_stop():
            if self._core.is_idle:
                self._sleep_if_awaited()
                self._heap.give_back()
                poller.poll()
                self._drain_wakeups()
                self._core.executor.check_health()
            self._receive()
            if not self._core.is_idle:
                outputs = self._core.step()
                self._send_step(outputs)
                if any(output.prompt_logprobs for output in outputs.outputs):
                    self._heap.give_back()

    def _should_stop(self) -> bool:
        if self._stop_deadline is None:
            return False
        if self._core.is_idle:
            return True
        if time.monotonic() < self._stop_deadline:
            return False
        count = self._core.abort_all()
        logger.info("[shutdown] EngineCore: aborting in-flight requests count=%d", count)
        return True

    def _receive(self) -> None:
        """Apply every message that has arrived; aborts are reported even when no step follows."""
        has_aborted = False
        ends_of_clients: list[UtilityRequest] = []
        while True:
            try:
                kind, payload = self._input.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            if kind == RequestType.ADD.value:
                request = self._decode_add(payload)
                self._share.note(request)
                self._core.add_request(request)
            elif kind == RequestType.ABORT.value:
                has_aborted |= self._abort(self._decode_abort(payload))
            elif kind == RequestType.UTILITY.value:
                call = self._decode_utility(payload)
                if call.method.startswith(ABORT_CLIENT):
                    ends_of_clients.append(call)
                else:
                    self._answer(call)
        # The client's own last requests came by another way, and may have been overtaken.
        for call in ends_of_clients:
            has_aborted = True
            self._answer(call)
        if has_aborted and self._core.is_idle:
            self._send_step(self._core.stats_message())

    def _abort(self, request_ids: Sequence[str]) -> bool:
        self._share.forget(request_ids)
        return self._core.abort_requests(request_ids) > 0

    def _answer(self, call: UtilityRequest) -> None:
        if call.method.startswith(SLEEP):
            self._sleep(call)
            return
        if call.method.startswith(WAKE_UP):
            self._wake_up(call)
            return
        self._send_answer(call, self._call(call))

    def _send_answer(self, call: UtilityRequest, answer: UtilityOutput) -> None:
        self._send(EngineCoreOutputs(utility_output=answer), call.client_index)

    def _sleep(self, call: UtilityRequest) -> None:
        asked = msgspec.json.decode(call.method.removeprefix(SLEEP), type=SleepCall)
        self._core.prepare_sleep(asked.mode)
        if asked.mode == "wait" and not self._core.is_idle:
            self._awaited_sleeps.append((call, asked))
            return
        self._fall_asleep(call, asked.level)

    def _sleep_if_awaited(self) -> None:
        awaited, self._awaited_sleeps = self._awaited_sleeps, []
        for call, asked in awaited:
            self._fall_asleep(call, asked.level)

    def _fall_asleep(self, call: UtilityRequest, level: int) -> None:
        """Who asked is told last, when the state is known to everybody."""
        outputs = self._core.fall_asleep(level)
        self._send_step(self._core.stats_message(outputs))
        self._send_answer(call, UtilityOutput(call.call_id, self._core.sleep_level))

    def _wake_up(self, call: UtilityRequest) -> None:
        awaited, self._awaited_sleeps = self._awaited_sleeps, []
        for waiting, _ in awaited:
            error = "The engine was woken before it slept."
            self._send_answer(waiting, UtilityOutput(waiting.call_id, error=error))
        if awaited:
            self._core.give_up_sleep()
        tags = call.method.removeprefix(WAKE_UP)
        self._core.wake_up(tags.split(",") if tags else SLEEP_TAGS)
        self._send_step(self._core.stats_message())
        self._send_answer(call, UtilityOutput(call.call_id, self._core.sleep_level))

    def _call(self, request: UtilityRequest) -> UtilityOutput:
        if request.method == "reset_prefix_cache":
            return UtilityOutput(request.call_id, self._core.reset_prefix_cache())
        if request.method == "sleep_level":
            return UtilityOutput(request.call_id, self._core.sleep_level)
        if request.method == "asked_sleep_level":
            awaited = (asked.level for _, asked in self._awaited_sleeps)
            return UtilityOutput(request.call_id, max(self._core.sleep_level, *awaited, 0))
        if request.method == TELL_SLEEP:
            if self._core.sleep_level:  # awake, the next step tells more
                self._send_step(self._core.stats_message())
            return UtilityOutput(request.call_id, True)
        if request.method in _DEBUG_DOCUMENTS:
            name = _DEBUG_DOCUMENTS[request.method]
            return UtilityOutput(request.call_id, self._core.debug_document(name))
        if request.method.startswith(ABORT_CLIENT):
            lost = self._share.ids_of(int(request.method.removeprefix(ABORT_CLIENT)))
            return UtilityOutput(request.call_id, self._abort(lost))
        if request.method.startswith(LOAD_ADAPTER):
            adapter = msgspec.json.decode(
                request.method.removeprefix(LOAD_ADAPTER), type=LoraRequest
            )
            return UtilityOutput(request.call_id, self._core.load_adapter(adapter))
        if request.method.startswith(UNLOAD_ADAPTER):
            self._core.unload_adapter(int(request.method.removeprefix(UNLOAD_ADAPTER)))
            return UtilityOutput(request.call_id, True)
        if request.method.startswith(_TRACE):
            found = self._core.trace_document(request.method.removeprefix(_TRACE))
            return UtilityOutput(request.call_id, found)
        return UtilityOutput(request.call_id, error=f"no such method: {request.method}")

    def _send_step(self, outputs: EngineCoreOutputs) -> None:
        if self._stats is None:
            self._send(outputs)
            return
        if not self._has_worked:
            self._has_worked = True
            self._send(EngineCoreOutputs())  # who starts it again may do so as often as before
        for client, share in self._share.shares(outputs):
            self._send(share, client)
        with contextlib.suppress(zmq.Again):  # there has been no coordinator for long
            self._stats.send(self._encode(self._share.stats(outputs)), zmq.NOBLOCK)

    def _send(self, message: EngineCoreOutputs, client: int = 0) -> None:
        self._senders[client].send(self._encode(message))

    def _on_sigterm(self, _signum: int, _frame: object) -> None:
        if self._stop_deadline is None:
            self._stop_deadline = time.monotonic() + self._shutdown_timeout_s
            logger.info("[shutdown] EngineCore: trigger received signal=SIGTERM")

    def _drain_wakeups(self) -> None:
        try:
            while self._wake_read.recv(64):
                pass
        except BlockingIOError:
            pass


def _sender(
    context: zmq.Context[zmq.Socket[bytes]], address: str, most: int = 0
) -> zmq.Socket[bytes]:
    """Keeps what it is given until somebody listens there, however late or again that is.

    `most` is the number of messages that it keeps; 0 is all.
    """
    socket = context.socket(zmq.PUSH)
    socket.setsockopt(zmq.SNDHWM, most)
    socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
    socket.connect(address)
    return socket
