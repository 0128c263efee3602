"""Server-sent events: a job's outputs as `data: {...}` blocks, and the response that sends them.

Chunks are glued from ready-made JSON pieces: at 32 streams this is the server's hottest path.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine.errors import EngineError
from engine.frontend.async_llm import AsyncLLM
from engine.frontend.logprobs import LogprobsList
from engine.frontend.outputs import RequestDelta
from engine.frontend.request_traces import FrontendTrace
from engine.server.errors import ApiError, error_body, error_response, to_api_error
from engine.server.generation import Choice, Job, run_job, usage
from engine.server.http.client_watch import ClientGone, unless_client_goes
from engine.server.http.connections import Connection

DONE = b"data: [DONE]\n\n"

_INLINE_LOGPROBS = 512  # writing more takes longer than a millisecond

encode_json = msgspec.json.encode


class Delta(msgspec.Struct, frozen=True):
    """What one event of a choice adds; `usage` counts everything so far.

    `token_ids` are None unless the client asked for them.
    """

    text: str
    reasoning: str = ""
    logprobs: LogprobsList | None = None
    usage: dict[str, object] | None = None
    token_ids: list[int] | None = None

    def usage_field(self) -> bytes:
        """The end of the event's object; empty without counts."""
        return b"" if self.usage is None else b',"usage":' + encode_json(self.usage)

    def token_ids_field(self) -> bytes:
        """The end of a choice's object; empty without token ids."""
        return b"" if self.token_ids is None else b',"token_ids":' + encode_json(self.token_ids)


class AnswerFormat(Protocol):
    """How a job's answer is written: one document, or the events of a stream."""

    def document(self, choices: Sequence[Choice]) -> bytes: ...

    def opening(self, index: int, choice: Choice) -> bytes:
        """Event before a choice's first text; may be empty. `choice` has its first output."""

    def event(self, index: int, delta: Delta) -> bytes: ...

    def around_text(self, index: int) -> tuple[bytes, bytes] | None:
        """What stands before and behind the JSON string of an event that brings text and nothing
        else; None where each event is written anew.
        """

    def closing(self, index: int, delta: Delta, choice: Choice) -> bytes:
        """Last event of a choice: its last text and why it ended."""

    def usage_event(self, usage: dict[str, object]) -> bytes:
        """Event with token counts and no choices."""

    def failure(self, error: ApiError) -> bytes:
        """Last event of a stream that fails on its way."""

    @property
    def ending(self) -> bytes:
        """What stands behind the last event of every stream."""


class OpenAIStream:
    """How the streams of both completion APIs end; a part of their AnswerFormats."""

    ending = DONE

    def failure(self, error: ApiError) -> bytes:
        return b"data: " + error_body(error) + b"\n\n"


class NamedEventStream:
    """How the streams of the Responses and Messages APIs end: their last event has the counts, and
    nothing stands behind it. A part of their AnswerFormats.
    """

    ending = b""

    def usage_event(self, _usage: dict[str, object]) -> bytes:
        """Nothing: every answer has its counts."""
        return b""

    def around_text(self, _index: int) -> None:
        """None: events are numbered, or belong to blocks that text may open."""


def named_event(kind: str, body: bytes) -> bytes:
    """An event of these streams; `body` is its JSON."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), body)


def cut_open(event: bytes, field: bytes) -> tuple[bytes, bytes]:
    """What stands before and behind the empty string of a field, such as b'"text":'. In a JSON
    string its quotes would be escaped, so the field itself is found.
    """
    head, _, rest = event.partition(field + b'""')
    return head + field, rest


async def document(answer: AnswerFormat, choices: Sequence[Choice]) -> bytes:
    """The whole answer; a large one is written beside the event loop."""
    if sum(choice.num_logprobs for choice in choices) <= _INLINE_LOGPROBS:
        return answer.document(choices)
    return await asyncio.to_thread(answer.document, choices)


def _is_short(output: RequestDelta) -> bool:
    """Whether its event is written in no time."""
    logprobs, of_prompt = output.logprobs, output.prompt_logprobs
    count = 0 if logprobs is None else logprobs.num_entries
    count += 0 if of_prompt is None else of_prompt.num_entries
    return count <= _INLINE_LOGPROBS


class EventWriter:
    """Makes events of a job's outputs. As a ChoiceOutlet it writes them into the connection at once
    while the task that sends has nothing to do, so that a token wakes no task.
    """

    def __init__(
        self, llm: AsyncLLM, job: Job, answer: AnswerFormat, connection: Connection | None
    ) -> None:
        self._choices = [Choice() for _ in job.requests]
        self._unopened = set(range(len(job.requests)))
        self._traces = llm.traces
        self._job = job
        self._answer = answer
        self._connection = connection
        # All that came is sent, and whoever sends waits for the next output.
        self.is_waiting = False

    def can_take(self, output: RequestDelta) -> bool:
        connection = self._connection
        is_free = self.is_waiting and connection is not None and connection.can_write
        return is_free and _is_short(output)

    def take(self, index: int, output: RequestDelta) -> None:
        """Send the event of an output of choice `index`, if it makes one."""
        event = self.event(index, output)
        if event and self._connection is not None:
            self._connection.write(event)
        self.note_sent(output)

    def text_taker(self, index: int) -> Callable[[str, int], bool] | None:
        """The short way of texts into the connection, where events bring nothing beside them."""
        job, connection = self._job, self._connection
        if connection is None or job.continuous_usage or job.shows_token_ids:
            return None
        frame = self._answer.around_text(index)
        if frame is None:
            return None
        trace = None if self._traces is None else self._traces.of(job.requests[index].request_id)
        return TextOutlet(self, connection, self._choices[index], trace, *frame).take

    def event(self, index: int, output: RequestDelta) -> bytes:
        """The event of one output, with the opening of its choice; may be empty."""
        job, choice, text = self._job, self._choices[index], output.text
        choice.count(output)
        head = b""
        if index in self._unopened:
            self._unopened.remove(index)
            head = self._answer.opening(index, choice)
            text = job.echoes[index] + text
        counts = usage(job, self._choices) if job.continuous_usage else None
        token_ids = output.token_ids if job.shows_token_ids else None
        logprobs = None if output.logprobs is None else job.shown_logprobs(output)
        delta = Delta(text, output.reasoning, logprobs, counts, token_ids)
        if output.finish_reason is not None:
            return head + self._answer.closing(index, delta, choice)
        if text or delta.reasoning or logprobs or token_ids:
            return head + self._answer.event(index, delta)
        return head

    def usage_event(self) -> bytes:
        """What stands behind the last choice."""
        return self._answer.usage_event(usage(self._job, self._choices))

    def note_sent(self, output: RequestDelta) -> None:
        """Its event has been handed to the socket."""
        if self._traces is not None:
            self._traces.note_event(output.request_id)


class TextOutlet:
    """Writes the texts of a choice that has been opened into its connection: what `EventWriter`
    does for any output, where next to nothing can differ between two events.
    """

    __slots__ = ("_after", "_before", "_choice", "_connection", "_trace", "_writer")

    def __init__(
        self,
        writer: EventWriter,
        connection: Connection,
        choice: Choice,
        trace: FrontendTrace | None,
        before: bytes,
        after: bytes,
    ) -> None:
        self._writer = writer
        self._connection = connection
        self._choice = choice
        self._trace = trace
        self._before = before
        self._after = after

    def take(self, text: str, num_tokens: int) -> bool:
        """Send the event of a text, if it makes one; False where the task has to."""
        connection = self._connection
        if not self._writer.is_waiting or not connection.can_write:
            return False
        self._choice.num_tokens += num_tokens
        if text:
            connection.write(self._before + encode_json(text) + self._after)
        if self._trace is not None:
            self._trace.note_event()
        return True


async def stream_job(
    llm: AsyncLLM, job: Job, answer: AnswerFormat, connection: Connection | None = None
) -> AsyncGenerator[bytes, None]:
    """The events of a job, its ending included, but for those that go into the connection at once.
    The first `anext` raises what refuses the request, and a failure later on is the last event.
    """
    has_begun = False
    writer = EventWriter(llm, job, answer, connection)
    try:
        async with aclosing(_events(llm, job, writer)) as events:
            async for event in events:
                has_begun = True
                yield event
    except EngineError as error:
        if not has_begun:
            raise
        yield answer.failure(to_api_error(error))
    yield answer.ending


async def _events(llm: AsyncLLM, job: Job, writer: EventWriter) -> AsyncGenerator[bytes, None]:
    async with aclosing(run_job(llm, job, writer)) as outputs:
        async for index, output in outputs:
            writer.is_waiting = False
            if _is_short(output):
                event = writer.event(index, output)
            else:
                event = await asyncio.to_thread(writer.event, index, output)
            if event:
                yield event
            writer.note_sent(output)
            writer.is_waiting = True
    if job.include_usage:
        yield writer.usage_event()


class Document(Response):
    """A JSON document in parts of a size that holds up nobody."""

    media_type = "application/json"
    _PART_BYTES = 1 << 18

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the document part by part; between two of them others have their turn."""
        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})
        body = memoryview(self.body)
        for first in range(0, len(body), self._PART_BYTES):
            await _send_body(send, bytes(body[first : first + self._PART_BYTES]))
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class EventStream(Response):
    """Sends events until they end or the client goes away; then the generator is closed.

    Headers go out with the first event, so a request that fails before it still gets its status.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        self._events = events
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        # The base class counted an empty body; a stream's length is unknown.
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the events end or the client is gone, whichever is first."""
        with contextlib.suppress(ClientGone):
            request = Request(scope, receive)
            await unless_client_goes(request, self._send_all(scope, receive, send))

    async def _send_all(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events) as events:
            try:
                first = await anext(events)
            except EngineError as error:
                await error_response(to_api_error(error))(scope, receive, send)
                return
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            await _send_body(send, first)
            async for event in events:
                await _send_body(send, event)
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_body(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})
