"""POST /v1/responses: OpenAI's Responses API, without state, over the chat route."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from engine.frontend.logprobs import PositionLogprobs
from engine.frontend.request_traces import Marks
from engine.server.blocks import Block, BlockKind, BlockReader, Step, StepKind
from engine.server.errors import ApiError
from engine.server.generation import Choice, Job
from engine.server.logprobs import chat_logprobs
from engine.server.protocol_responses import Functions, ResponsesBody
from engine.server.routes.chat import make_chat_job
from engine.server.state import Services
from engine.server.streaming import Delta, NamedEventStream, encode_json, named_event
from engine.server.tools import ToolPlan


async def answer_response(
    services: Services, body: ResponsesBody, marks: Marks
) -> tuple[Job, ResponsesFormat]:
    """The job of a request, and how its answer is written."""
    functions = Functions(body.tools, body.tool_choice)
    job, plan = await make_chat_job(services, body.chat(functions), marks)
    return job, ResponsesFormat(job, plan, body, functions)


class ResponsesFormat(NamedEventStream):
    """Response objects and events of one job."""

    def __init__(self, job: Job, plan: ToolPlan, body: ResponsesBody, functions: Functions) -> None:
        self._job = job
        self._plan = plan
        self._body = body
        self._functions = functions
        self._reader = BlockReader(plan)
        self._num_events = 0
        self._status = "completed"  # of the item that ends next
        self._logprobs: dict[int, list[object]] = {}
        self._unwritten: list[PositionLogprobs] = []

    def document(self, choices: Sequence[Choice]) -> bytes:
        """The answer that is not streamed."""
        (choice,) = choices
        reader = BlockReader.of_whole(self._plan, choice)
        texts = [block for block in reader.blocks if block.kind is BlockKind.TEXT]
        if texts:
            self._unwritten += (choice.logprobs or [])[choice.num_reasoning_tokens :]
            self._note_logprobs(texts[-1])
        return encode_json(self._response(reader, choice))

    def opening(self, _index: int, _choice: Choice) -> bytes:
        """`response.created` and `.in_progress`: the response without output."""
        begun = self._response(self._reader, None)
        return b"".join(
            self._event(f"response.{name}", response=begun) for name in ("created", "in_progress")
        )

    def event(self, _index: int, delta: Delta) -> bytes:
        if delta.logprobs is not None and not delta.reasoning:
            self._unwritten += delta.logprobs
        return self._written(self._reader.feed(delta.reasoning, delta.text))

    def closing(self, index: int, delta: Delta, choice: Choice) -> bytes:
        """The last text, and the whole response."""
        rest = self.event(index, delta)
        self._status = _status(choice)
        rest += self._written(self._reader.finish())
        response = self._response(self._reader, choice)
        return rest + self._event(f"response.{response['status']}", response=response)

    def failure(self, error: ApiError) -> bytes:
        response = self._response(self._reader, None) | {
            "status": "failed",
            "error": {"code": "server_error", "message": str(error)},
        }
        return self._event("response.failed", response=response)

    # ---- the response --------------------------------------------------------------------------

    def _response(self, reader: BlockReader, choice: Choice | None) -> dict[str, Any]:
        """As far as it has come: `choice` is there at the end."""
        status = "in_progress" if choice is None else _status(choice)
        blocks = reader.blocks
        output = [
            self._item(block, status if block is blocks[-1] else "completed") for block in blocks
        ]
        is_cut = status == "incomplete"
        return {
            "id": self._job.id,
            "object": "response",
            "created_at": self._job.created,
            "completed_at": None if choice is None else int(time.time()),
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "model": self._job.model,
            "output": output,
            "usage": None if choice is None else self._usage(choice),
            **self._asked(),
        }

    def _asked(self) -> dict[str, object]:
        """What was asked for, as it was followed: the limit is that of the context, if lower."""
        body, params = self._body, self._job.requests[0].sampling_params
        has_limit = body.max_output_tokens is not None
        form = body.text.format
        return {
            "instructions": body.instructions,
            "max_output_tokens": params.max_tokens if has_limit else None,
            "max_tool_calls": None,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls,
            "previous_response_id": None,
            "prompt_cache_key": body.prompt_cache_key,
            "reasoning": {"effort": body.reasoning.effort, "summary": None},
            "safety_identifier": body.safety_identifier,
            "service_tier": "default",
            "store": False,
            "temperature": params.temperature,
            "text": {
                "format": {"type": form.type, **form.model_dump(by_alias=True, exclude_unset=True)}
            },
            "tool_choice": body.tool_choice,
            "tools": self._functions.kept,
            "top_logprobs": body.top_logprobs,
            "top_p": params.top_p,
            "truncation": body.truncation,
            "user": body.user,
        }

    def _usage(self, choice: Choice) -> dict[str, object]:
        prompt, answer = self._job.num_prompt_tokens, choice.num_tokens
        return {
            "input_tokens": prompt,
            "input_tokens_details": {
                "cached_tokens": choice.num_cached_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens": answer,
            "output_tokens_details": {"reasoning_tokens": choice.num_reasoning_tokens},
            "total_tokens": prompt + answer,
        }

    # ---- its items -----------------------------------------------------------------------------

    def _item(self, block: Block, status: str) -> dict[str, object]:
        head = {"id": _item_id(block), "status": status}
        if block.kind is BlockKind.CALL:
            return {
                "type": "function_call",
                **head,
                "call_id": f"call_{block.id}",
                **self._functions.origin(block.name).as_fields,
                "arguments": block.text or ("{}" if status == "completed" else ""),
            }
        content = [self._part(block)] if block.text else []
        if block.kind is BlockKind.THOUGHT:
            return {"type": "reasoning", **head, "summary": [], "content": content}
        return {"type": "message", **head, "role": "assistant", "content": content}

    def _part(self, block: Block, text: str | None = None) -> dict[str, object]:
        text = block.text if text is None else text
        if block.kind is BlockKind.THOUGHT:
            return {"type": "reasoning_text", "text": text}
        logprobs = self._logprobs.get(block.index, []) if text else []
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def _note_logprobs(self, block: Block) -> list[object]:
        """The new positions of a block's text as JSON, kept for its end, too."""
        written = chat_logprobs(self._unwritten)["content"]
        assert isinstance(written, list)
        self._unwritten.clear()
        self._logprobs.setdefault(block.index, []).extend(written)
        return written

    # ---- events --------------------------------------------------------------------------------

    def _written(self, steps: Iterable[Step]) -> bytes:
        return b"".join(event for step in steps for event in self._step(step))

    def _step(self, step: Step) -> Iterator[bytes]:
        block = step.block
        if step.kind is StepKind.OPENED:
            yield from self._begin(block)
        elif step.kind is StepKind.CLOSED:
            yield from self._end(block)
        else:
            is_text = block.kind is BlockKind.TEXT
            extra = {"logprobs": self._note_logprobs(block)} if is_text else {}
            yield self._about(block, f"{_DELTAS[block.kind]}.delta", delta=step.text, **extra)

    def _begin(self, block: Block) -> Iterator[bytes]:
        item = self._item(block, "in_progress")
        yield self._event("response.output_item.added", output_index=block.index, item=item)
        if block.kind is not BlockKind.CALL:
            yield self._about(block, "response.content_part.added", part=self._part(block, ""))

    def _end(self, block: Block) -> Iterator[bytes]:
        name = f"{_DELTAS[block.kind]}.done"
        if block.kind is BlockKind.TEXT:
            self._note_logprobs(block)  # those of tokens without text
        item = self._item(block, self._status)
        if block.kind is BlockKind.CALL:
            yield self._about(block, name, name=item["name"], arguments=item["arguments"])
        else:
            part = self._part(block)
            shown = {key: part[key] for key in ("text", "logprobs") if key in part}
            yield self._about(block, name, **shown)
            yield self._about(block, "response.content_part.done", part=part)
        yield self._event("response.output_item.done", output_index=block.index, item=item)

    def _about(self, block: Block, kind: str, **fields: object) -> bytes:
        """An event of one part of one item."""
        place = {} if block.kind is BlockKind.CALL else {"content_index": 0}
        return self._event(
            kind, item_id=_item_id(block), output_index=block.index, **place, **fields
        )

    def _event(self, kind: str, **fields: object) -> bytes:
        document = {"type": kind, "sequence_number": self._num_events, **fields}
        self._num_events += 1
        return named_event(kind, encode_json(document))


_DELTAS = {
    BlockKind.THOUGHT: "response.reasoning_text",
    BlockKind.TEXT: "response.output_text",
    BlockKind.CALL: "response.function_call_arguments",
}
_PREFIXES = {BlockKind.THOUGHT: "rs", BlockKind.TEXT: "msg", BlockKind.CALL: "fc"}


def _status(choice: Choice) -> str:
    return "incomplete" if choice.finish_reason == "length" else "completed"


def _item_id(block: Block) -> str:
    return f"{_PREFIXES[block.kind]}_{block.id}"
