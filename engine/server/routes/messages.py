"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages API over the chat route."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from starlette.responses import Response

from engine.frontend.request_traces import Marks
from engine.server.blocks import Block, BlockKind, BlockReader, Step, StepKind
from engine.server.errors import ApiError, messages_error_body
from engine.server.generation import Choice, Job
from engine.server.protocol_messages import CountTokensBody, MessagesBody
from engine.server.routes.chat import make_chat_job
from engine.server.routes.introspection import chat_token_ids, json_response
from engine.server.state import Services
from engine.server.streaming import Delta, NamedEventStream, encode_json, named_event
from engine.server.tools import ToolPlan


async def count_tokens(services: Services, body: CountTokensBody) -> Response:
    """How many tokens the prompt of a request has; it may be longer than the context."""
    chat = body.chat(can_think=services.thought_marks is not None)
    services.check_model(chat.model)
    return json_response({"input_tokens": len(await chat_token_ids(services, chat))})


async def answer_messages(
    services: Services, body: MessagesBody, marks: Marks
) -> tuple[Job, MessagesFormat]:
    """The job of a request, and how its answer is written."""
    chat = body.chat(can_think=services.thought_marks is not None)
    job, plan = await make_chat_job(services, chat, marks)
    return job, MessagesFormat(job, plan, body)


class MessagesFormat(NamedEventStream):
    """Message objects and events of one job."""

    def __init__(self, job: Job, plan: ToolPlan, body: MessagesBody) -> None:
        self._job = job
        self._plan = plan
        self._reader = BlockReader(plan)
        self._max_tokens = job.requests[0].sampling_params.max_tokens or 0
        self._is_cut = self._max_tokens < body.max_tokens

    def document(self, choices: Sequence[Choice]) -> bytes:
        """The answer that is not streamed."""
        (choice,) = choices
        reader = BlockReader.of_whole(self._plan, choice)
        content = [self._content(block) for block in reader.blocks]
        has_calls = any(block["type"] == "tool_use" for block in content)
        message = self._message(choice, content)
        return encode_json({**message, **self._end(choice, has_calls=has_calls)})

    def opening(self, _index: int, choice: Choice) -> bytes:
        """`message_start`: the message without content, but with the prompt's counts."""
        return _event("message_start", message=self._message(choice, []))

    def event(self, _index: int, delta: Delta) -> bytes:
        return self._written(self._reader.feed(delta.reasoning, delta.text))

    def closing(self, index: int, delta: Delta, choice: Choice) -> bytes:
        """The last text, why it ended, and the counts."""
        rest = self.event(index, delta) + self._written(self._reader.finish())
        end = self._end(choice, has_calls=self._reader.num_calls > 0)
        usage = self._usage(choice)
        return b"".join(
            (rest, _event("message_delta", delta=end, usage=usage), _event("message_stop"))
        )

    def failure(self, error: ApiError) -> bytes:
        return named_event("error", messages_error_body(error))

    def _message(self, choice: Choice, content: list[dict[str, object]]) -> dict[str, object]:
        return {
            "id": self._job.id,
            "type": "message",
            "role": "assistant",
            "model": self._job.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(choice),
        }

    def _end(self, choice: Choice, *, has_calls: bool) -> dict[str, object]:
        """Why an answer ended; `has_calls` is whether a tool_use block came out."""
        text = choice.stop_reason if isinstance(choice.stop_reason, str) else None
        return {"stop_reason": self._stop_reason(choice, has_calls), "stop_sequence": text}

    def _stop_reason(self, choice: Choice, has_calls: bool) -> str:
        if choice.finish_reason == "length":
            return "model_context_window_exceeded" if self._is_cut else "max_tokens"
        if isinstance(choice.stop_reason, str):
            return "stop_sequence"
        return "tool_use" if has_calls else "end_turn"

    def _usage(self, choice: Choice) -> dict[str, object]:
        """Counts. What was found in the prefix cache is apart from the rest of the prompt, and a
        limit that was lowered to what the context has room for is there, too.
        """
        prompt, cached = self._job.num_prompt_tokens, choice.num_cached_tokens
        counts: dict[str, object] = {
            "input_tokens": prompt - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": choice.num_tokens,
            "output_tokens_details": {"thinking_tokens": choice.num_reasoning_tokens},
            "service_tier": "standard",
        }
        return {**counts, "max_tokens": self._max_tokens} if self._is_cut else counts

    def _content(self, block: Block) -> dict[str, object]:
        if block.kind is BlockKind.CALL:
            arguments = _as_object(block.text)
            if arguments is None:  # cut off: not to be acted on
                return {"type": "text", "text": f"{block.name}({block.text}"}
            return {**self._start(block), "input": arguments}
        name = "thinking" if block.kind is BlockKind.THOUGHT else "text"
        signed = {"signature": self._job.id} if block.kind is BlockKind.THOUGHT else {}
        return {**self._start(block), name: block.text, **signed}

    def _start(self, block: Block) -> dict[str, object]:
        """A block without what it holds."""
        if block.kind is BlockKind.THOUGHT:
            return {"type": "thinking", "thinking": "", "signature": ""}
        if block.kind is BlockKind.TEXT:
            return {"type": "text", "text": ""}
        return {"type": "tool_use", "id": f"toolu_{block.id}", "name": block.name, "input": {}}

    def _written(self, steps: Iterable[Step]) -> bytes:
        return b"".join(self._step(step) for step in steps)

    def _step(self, step: Step) -> bytes:
        block = step.block
        if step.kind is StepKind.OPENED:
            return _event(
                "content_block_start", index=block.index, content_block=self._start(block)
            )
        if step.kind is StepKind.GREW:
            return _delta(block, *_DELTAS[block.kind], step.text)
        stop = _event("content_block_stop", index=block.index)
        if block.kind is BlockKind.THOUGHT:
            # Nobody checks it; clients keep a thought for the next request if it is signed.
            return _delta(block, "signature_delta", "signature", self._job.id) + stop
        return stop


_DELTAS = {
    BlockKind.THOUGHT: ("thinking_delta", "thinking"),
    BlockKind.TEXT: ("text_delta", "text"),
    BlockKind.CALL: ("input_json_delta", "partial_json"),
}


def _delta(block: Block, kind: str, name: str, text: str) -> bytes:
    return _event("content_block_delta", index=block.index, delta={"type": kind, name: text})


def _event(kind: str, **fields: Any) -> bytes:
    return named_event(kind, encode_json({"type": kind, **fields}))


PING = _event("ping")
"""What Anthropic's clients pass over; for them and for proxies the connection is not silent."""


def _as_object(text: str) -> dict[str, object] | None:
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, object])
    except msgspec.MsgspecError:
        return None
