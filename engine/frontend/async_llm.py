"""AsyncLLM: the front end's one object; requests go in, RequestDeltas come out.

Owns the task that reads EngineCore's outputs, and aborts what nobody waits for. Starting and ending
the EngineCore process is the client's business. `start_async_llm` is the one way to such an object,
for the API server and the offline LLM.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from engine.args import EngineArgs
from engine.config import EngineConfig
from engine.core.together import all_together
from engine.errors import (
    EngineDeadError,
    EngineError,
    GenerationError,
    ReplicaDownError,
    RequestError,
)
from engine.frontend.chat_template import ChatTemplate
from engine.frontend.daemon_thread import in_daemon_thread
from engine.frontend.engine_start import LoadedModel, load_model
from engine.frontend.input_processor import InputProcessor
from engine.frontend.iteration_stats import IterationStats, ParentRequest, StatSink
from engine.frontend.output_processor import OutputProcessor
from engine.frontend.outputs import Outlet, RequestDelta
from engine.frontend.request_traces import FrontendTraces
from engine.frontend.tokenizer import Tokenizer
from engine.frontend.traffic_recorder import KEY_BYTES, TrafficFile, TrafficRecorder
from engine.logger import get_logger
from engine.lora_adapters import LoraRequest
from engine.messages import (
    LOAD_ADAPTER,
    SLEEP,
    SLEEP_LEVELS,
    SLEEP_MODES,
    SLEEP_TAGS,
    UNLOAD_ADAPTER,
    WAKE_UP,
    EngineCoreOutputs,
    EngineCoreRequest,
    HandshakeReady,
    SchedulerStats,
    SleepCall,
)

logger = get_logger(__name__)


class EngineCoreClient(Protocol):
    """What AsyncLLM needs of EngineCore; `engine.core.client` has the real one."""

    @property
    def num_engines(self) -> int:
        """Replicas that requests are spread over; each has a scheduler and a KV cache."""

    async def start(self) -> tuple[HandshakeReady, ...]:
        """Start the engines, one answer each; raises the EngineError that ended the start."""

    async def add_request(self, request: EngineCoreRequest) -> None:
        """Queue one request; EngineDeadError when there is no engine."""

    async def abort_requests(self, request_ids: Sequence[str]) -> None:
        """End requests early; unknown ids are ignored."""

    async def get_output(self) -> EngineCoreOutputs:
        """The next step's outputs; EngineDeadError once EngineCore is gone."""

    def engine_of(self, request_id: str, /) -> int:
        """Which engine has the request; 0 for one that is not known."""

    async def call_utility(
        self, method: str, engine: int = 0, /
    ) -> bool | int | float | str | None:
        """Call a named method of one EngineCore; ReplicaDownError where others serve without it."""

    async def shutdown(self, timeout_s: float) -> None:
        """End EngineCore; returns when its process is gone."""


class AsyncLLM:
    """Generates text with a running EngineCore. `start` needs a running event loop."""

    def __init__(
        self,
        client: EngineCoreClient,
        tokenizer: Tokenizer,
        input_processor: InputProcessor,
        sinks: Sequence[StatSink] = (),
        traces: FrontendTraces | None = None,
        recorder: TrafficRecorder | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.input_processor = input_processor
        self.dead = asyncio.Event()
        self.traces = traces
        self._client = client
        self._recorder = recorder
        self._processor = OutputProcessor(tokenizer, recorder)
        self._sinks = tuple(sinks)
        self._error: EngineError | None = None
        self._handler: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._aborts: set[asyncio.Task[None]] = set()

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls, model: str, args: EngineArgs | None = None
    ) -> AsyncGenerator[AsyncLLM, None]:
        """Start an engine for `model` and end it with the block; `input_processor` makes requests.

        Raises the EngineError that ended the start.
        """
        started = await start_async_llm(model, args or EngineArgs())
        try:
            yield started.llm
        finally:
            await started.shutdown()

    def start(self) -> None:
        """Begin to read EngineCore's outputs; the client has been started before."""
        self._handler = asyncio.create_task(self._read_outputs(), name="output-handler")
        self._handler.add_done_callback(self._on_handler_done)

    @property
    def num_unfinished(self) -> int:
        return self._processor.num_unfinished

    @property
    def num_queued_tokens(self) -> int:
        """Prompt tokens of the requests that have no output yet."""
        return self._processor.num_queued_tokens

    async def generate(
        self,
        request: EngineCoreRequest,
        parent: ParentRequest | None = None,
        outlet: Outlet | None = None,
    ) -> AsyncGenerator[RequestDelta, None]:
        """Run one request; outputs carry what is new since the previous one.

        What the outlet takes does not come out here. Closing or cancelling the generator aborts the
        request. Raises EngineDeadError when EngineCore is down or goes down.
        """
        if self._error is not None:
            raise self._error
        box = self._processor.add_request(request, parent, outlet)
        self._idle.clear()
        try:
            if self.traces is not None:
                self.traces.note(request.request_id, "registered")
            await self._client.add_request(request)
            if self.traces is not None:
                self.traces.note(request.request_id, "sent")
            while True:
                output = await box.get()
                yield output
                if output.is_finished:
                    return
        finally:
            # Still known: the consumer left before the end. This may run during a cancellation, in
            # which nothing can be awaited any more, so the message goes out from a task of its own.
            self._drop([request.request_id], EngineError("the request was given up"))

    async def load_adapter(self, request: LoraRequest) -> str | None:
        """Load a LoRA adapter in every engine; what is in the way, or None."""
        method = LOAD_ADAPTER + msgspec.json.encode(request).decode()
        answers = (await self._call_all(method)).values()
        return next((text for text in answers if isinstance(text, str)), None)

    async def unload_adapter(self, lora_id: int) -> None:
        """Free a LoRA adapter once no request has it."""
        await self._call_all(f"{UNLOAD_ADAPTER}{lora_id}")

    async def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Put every engine to sleep; EngineError when one does not, and then none sleeps.

        RequestError for a level or a mode that is none.
        """
        _require_one_of("level", level, SLEEP_LEVELS)
        _require_one_of("mode", mode, SLEEP_MODES)
        call = msgspec.json.encode(SleepCall(int(level), mode)).decode()  # it may be True
        try:
            await self._call_all(SLEEP + call)
        except EngineDeadError:
            raise
        except EngineError:
            await self.wake_up()
            raise

    async def wake_up(self, tags: Sequence[str] = ()) -> None:
        """Wake every engine, or bring back of each what `tags` name; RequestError for others than
        SLEEP_TAGS.
        """
        for tag in tags:
            _require_one_of("tags", tag, SLEEP_TAGS)
        await self._call_all(WAKE_UP + ",".join(tags))

    async def sleep_level(self) -> int:
        """How deep the deepest engine sleeps; 0 when all are awake."""
        levels = (await self._call_all("sleep_level")).values()
        return max((level for level in levels if isinstance(level, int)), default=0)

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes of every engine; False while blocks of one are in use."""
        return all((await self._call_all("reset_prefix_cache")).values())

    @property
    def num_engines(self) -> int:
        return self._client.num_engines

    async def debug_document(self, name: str, engine: int = 0) -> str | None:
        """JSON of `scheduler` or `blocks`; None where the engine keeps none."""
        answer = await self._client.call_utility(f"debug_{name}", engine)
        return answer if isinstance(answer, str) else None

    async def request_documents(self) -> dict[int, str]:
        """JSON of the requests of each engine that is there."""
        answers = await self._call_all("debug_requests")
        return {engine: text for engine, text in answers.items() if isinstance(text, str)}

    async def trace_document(self, request_id: str) -> dict[str, Any] | None:
        """When what was done for a request; None if it is not known, or traces are not kept."""
        if self.traces is None:
            return None
        answers = (await self._call_all(f"debug_trace:{request_id}")).values()
        core = next((json.loads(text) for text in answers if isinstance(text, str)), None)
        document = self.traces.document(request_id, core)
        shown = self.traces.prompt_start(request_id)
        if document is not None and shown is not None:
            document["prompt"] = self.tokenizer.decode(shown, skip_special_tokens=False)
            document["is_prompt_cut"] = len(shown) < document["prompt_tokens"]
        return document

    def cancel(self, request_id: str) -> bool:
        """End a request from outside; whoever waits for it gets an error. False: no such one."""
        if request_id not in self._processor.unfinished_ids:
            return False
        self._drop([request_id], GenerationError("The request was cancelled on the server."))
        return True

    async def drain(self, timeout_s: float) -> None:
        """Wait until no request is in flight, `timeout_s` at most."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except asyncio.TimeoutError:
            logger.info(
                "[shutdown] API server: aborting in-flight requests count=%d", self.num_unfinished
            )

    async def shutdown(self, error: EngineError) -> None:
        """Stop: requests still in flight end with `error`, aborts are sent, reading ends."""
        self._error = self._error or error
        self._drop(self._processor.unfinished_ids, error)
        if self._aborts:
            await asyncio.wait(set(self._aborts))
        if self._handler is not None:
            self._handler.cancel()
            await asyncio.wait({self._handler})
        if self._recorder is not None:
            await in_daemon_thread(self._recorder.close)

    # ---- inside --------------------------------------------------------------------------------

    async def _call_all(self, method: str) -> dict[int, bool | int | float | str | None]:
        """Answers by engine. A replica that is down is left out: it has neither requests nor
        cached prefixes.
        """

        async def ask(engine: int) -> None:
            with contextlib.suppress(ReplicaDownError):
                answers[engine] = await self._client.call_utility(method, engine)

        answers: dict[int, bool | int | float | str | None] = {}
        await all_together(ask(engine) for engine in range(self.num_engines))
        return answers

    async def _read_outputs(self) -> None:
        while True:
            outputs = await self._client.get_output()
            came_s = time.monotonic()
            step = self._processor.process(outputs, time.time())
            if self.traces is not None:
                ids = (output.request_id for output in outputs.outputs)
                self.traces.note_outputs(ids, came_s, time.monotonic())
            # Whoever got some of these sends them before anything else is done: before they are
            # counted, and before the next ones, which may be waiting already.
            await asyncio.sleep(0)
            self._record(outputs.scheduler_stats, step.stats, outputs.engine_index)
            if step.stopped_ids:
                await self._client.abort_requests(step.stopped_ids)
            self._note_idle()

    def _on_handler_done(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        cause = task.exception()
        if isinstance(cause, EngineDeadError):
            self._error = cause
        else:
            logger.error("AsyncLLM output handler failed.", exc_info=cause)
            self._error = EngineDeadError("The output handler of the API server failed.")
        logger.error("EngineCore died: %s", self._error)
        self._processor.fail_all(self._error)
        self._note_idle()
        self.dead.set()

    def _drop(self, request_ids: Sequence[str], error: EngineError) -> None:
        by_engine: dict[int, list[str]] = {}
        for request_id in request_ids:
            by_engine.setdefault(self._client.engine_of(request_id), []).append(request_id)
        num_dropped = 0
        for engine, ids in by_engine.items():
            stats = self._processor.abort(ids, error)
            num_dropped += stats.num_aborted
            if stats.num_aborted:
                self._record(None, stats, engine)
        if not num_dropped:
            return
        self._note_idle()
        task = asyncio.create_task(self._send_abort(list(request_ids)))
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def _send_abort(self, request_ids: list[str]) -> None:
        await self._client.abort_requests(request_ids)
        logger.debug("Aborted request(s) %s.", ",".join(request_ids))

    def _record(self, scheduler: SchedulerStats | None, stats: IterationStats, engine: int) -> None:
        for sink in self._sinks:
            sink.record(scheduler, stats, engine)

    def _note_idle(self) -> None:
        if not self._processor.num_unfinished:
            self._idle.set()


def _require_one_of(name: str, value: object, known: Sequence[object]) -> None:
    if value not in known:
        choice = " or ".join((", ".join(map(str, known[:-1])), str(known[-1])))
        raise RequestError(f"{name}={str(value)[:40]} is not known; use {choice}.", param=name)


ClientFactory = Callable[[EngineConfig], EngineCoreClient]
MakeSinks = Callable[[EngineConfig, Sequence[HandshakeReady]], Sequence[StatSink]]


@dataclass(frozen=True, slots=True)
class StartedEngine:
    """An engine that can generate; `sampling_defaults` are the model's own."""

    client: EngineCoreClient
    llm: AsyncLLM
    config: EngineConfig
    chat_template: ChatTemplate | None
    sampling_defaults: Mapping[str, float]
    max_joint_prefill_tokens: int | None = None  # of several prompts in one step; None: no limit

    async def shutdown(self) -> None:
        """End everything; requests in flight are cut off. Returns when the process is gone."""
        await self.llm.shutdown(EngineDeadError("The engine was shut down."))
        await self.client.shutdown(0.0)


def real_client(config: EngineConfig) -> EngineCoreClient:
    """The client that starts one EngineCore process, or one for each replica."""
    from engine.core.replicas import create_client

    return create_client(config)


async def start_async_llm(
    model: str,
    args: EngineArgs,
    *,
    client_factory: ClientFactory = real_client,
    make_sinks: MakeSinks | None = None,
) -> StartedEngine:
    """Everything up to the engine's ready message; raises the EngineError that ended the start.

    A cancellation leaves no process behind.
    """
    loaded = await load_model(model, args)
    return await start_loaded(loaded, args, client_factory, make_sinks)


async def start_loaded(
    loaded: LoadedModel,
    args: EngineArgs,
    client_factory: ClientFactory,
    make_sinks: MakeSinks | None = None,
    traffic_key: bytes | None = None,
) -> StartedEngine:
    """The same for a model whose front end is read already. `traffic_key` is the one that all API
    servers of a start have; None where there is one.
    """
    client = client_factory(loaded.config)
    try:
        readies = await client.start()
    except BaseException:
        await client.shutdown(0.0)
        raise
    observability = loaded.config.observability
    llm = AsyncLLM(
        client,
        loaded.tokenizer,
        loaded.input_processor(min(ready.max_model_len for ready in readies), args.max_logprobs),
        make_sinks(loaded.config, readies) if make_sinks else (),
        FrontendTraces(keeps_prompts=observability.show_prompts)
        if observability.debug_endpoints
        else None,
        _recorder(loaded.config, args, traffic_key),
    )
    llm.start()
    return StartedEngine(
        client,
        llm,
        loaded.config,
        loaded.chat_template,
        loaded.sampling_defaults.settings,
        readies[0].max_joint_prefill_tokens,
    )


def _recorder(config: EngineConfig, args: EngineArgs, key: bytes | None) -> TrafficRecorder | None:
    if args.record_traffic is None:
        return None
    file = TrafficFile(
        args.record_traffic, args.record_traffic_max_bytes, key or os.urandom(KEY_BYTES)
    )
    return TrafficRecorder(file, config.cache.block_size)
