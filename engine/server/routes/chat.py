"""POST /v1/chat/completions: messages to a job, a job's outputs to OpenAI's chat objects."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from engine.errors import RequestError
from engine.frontend.chat_template import CHATML
from engine.frontend.logprobs import PositionLogprobs
from engine.frontend.request_traces import Marks
from engine.server.generation import Choice, Job, make_job, usage
from engine.server.images import NO_IMAGES
from engine.server.logprobs import chat_logprobs, prompt_logprobs
from engine.server.parsers.thinking import plan_thinking
from engine.server.prompts import encode, text_allowance
from engine.server.protocol import ChatBody, TokenizeBody
from engine.server.state import Services
from engine.server.streaming import Delta, OpenAIStream, cut_open, encode_json
from engine.server.structured import check_structured_outputs
from engine.server.tool_answer import ToolAnswer
from engine.server.tools import ToolPlan, plan_tools

_GOES_ON = b'"finish_reason":null'


async def answer_chat(services: Services, body: ChatBody, marks: Marks) -> tuple[Job, ChatFormat]:
    """The job of a request, and how its answer is written."""
    job, plan = await make_chat_job(services, body, marks)
    return job, ChatFormat(job, plan, body.answer_role)


async def make_chat_job(services: Services, body: ChatBody, marks: Marks) -> tuple[Job, ToolPlan]:
    """Render the template, tokenize, check."""
    services.check_model(body.model)
    param = body.PROMPT_PARAM
    urls = services.images.urls(body.messages, param)

    def prepare() -> tuple[ToolPlan, str, tuple[bytes, ...]]:
        plan = plan_tools(
            body.tools,
            body.tool_choice,
            is_parallel=body.parallel_tool_calls,
            auto_parser=services.tool_call_parser,
        )
        prompt = render_chat(services, body, plan.for_template, len(urls), param)
        return plan, prompt, tuple(message.digest() for message in body.messages)

    plan, prompt, digests = await services.rendering.run(prepare)
    thinking = plan_thinking(
        services.thought_marks,
        prompt,
        budget=body.thinking_token_budget,
        is_shown=body.include_reasoning,
        keeps_calls=plan.reads_form,
    )
    marks.note("rendered")
    token_ids = await encode(
        services.llm,
        prompt,
        add_special_tokens=body.add_special_tokens,
        param=param,
        at_least=text_allowance(body.truncate_prompt_tokens),
    )
    marks.note("tokenized")
    images = NO_IMAGES
    if urls:
        services.llm.input_processor.check_prompt(token_ids, param)  # before they are unpacked
        body.check_choices(1)
        images = await services.images.inputs(urls, token_ids, param, body.n)
    params = body.fitted(
        body.sampling_params(services.sampling_defaults),
        services.llm.input_processor,
        len(token_ids),
    )
    params = await check_structured_outputs(services.grammars, body, params)
    params = await plan.apply(services.grammars, params)
    if thinking is not None and thinking.marks.keeps_special_tokens:
        params = dataclasses.replace(params, skip_special_tokens=False)
    job = await make_job(
        services,
        body,
        [token_ids],
        params,
        id_prefix=body.ID_PREFIX,
        prompt_param=param,
        logprobs_param="top_logprobs",
        echoes=[body.echoed_text],
        marks=marks,
        thinking=thinking,
        message_digests=digests,
        images=images,
    )
    return job, plan


def render_chat(
    services: Services,
    body: ChatBody | TokenizeBody,
    tools: Sequence[dict[str, Any]] | None,
    num_images: int,
    param: str,
) -> str:
    """The prompt of a chat, with all tokens of its images; RequestError when the model has no
    template or it refuses.
    """
    if services.chat_template is None:
        raise RequestError(
            "This model has no chat template, so it cannot chat; use /v1/completions, or start the "
            f"server with --chat-template FILE (or --chat-template {CHATML}, the plain form that "
            "most chat models understand).",
            param="messages",
        )
    prompt = services.chat_template.render(
        [message.for_template(services.images.read_content) for message in body.messages or ()],
        add_generation_prompt=body.adds_generation_prompt,
        continue_final_message=body.continue_final_message,
        template_args=body.template_args,
        tools=tools,
    )
    return services.images.expand(prompt, num_images, param)


class ChatFormat(OpenAIStream):
    """Chat completion objects and chunks of one job."""

    def __init__(self, job: Job, plan: ToolPlan, role: str = "assistant") -> None:
        self._job = job
        self._role = role
        self._tools = [ToolAnswer(plan) for _ in job.requests if plan.make_parser]
        self._head = (
            b'data: {"id":"%s","object":"chat.completion.chunk","created":%d,"model":%s,"choices":['
            % (job.id.encode(), job.created, encode_json(job.model))
        )

    def document(self, choices: Sequence[Choice]) -> bytes:
        """The answer that is not streamed."""
        return encode_json(
            {
                "id": self._job.id,
                "object": "chat.completion",
                "created": self._job.created,
                "model": self._job.model,
                "choices": [
                    {
                        "index": index,
                        "message": self._message(
                            index,
                            self._job.echoes[index] + "".join(choice.texts),
                            "".join(choice.reasonings),
                        ),
                        "logprobs": self._logprobs(choice.logprobs) if choice.logprobs else None,
                        "finish_reason": self._finish_reason(index, choice),
                        "stop_reason": choice.stop_reason,
                        **self._job.token_id_fields(choice),
                    }
                    for index, choice in enumerate(choices)
                ],
                "usage": usage(self._job, choices),
                "prompt_logprobs": prompt_logprobs(choices[0].prompt_logprobs)
                if choices[0].prompt_logprobs
                else None,
                **self._job.prompt_id_fields(0),
            }
        )

    def _logprobs(self, positions: Sequence[PositionLogprobs]) -> dict[str, object]:
        return chat_logprobs(positions, as_ids=self._job.tokens_as_ids)

    def _message(self, index: int, text: str, reasoning: str) -> dict[str, object]:
        message: dict[str, object] = {"role": self._role, "content": text}
        if self._tools:
            message = self._tools[index].message(text)
        if reasoning:
            message |= {"content": message["content"] or None, **_reasoning_fields(reasoning)}
        return message

    def _finish_reason(self, index: int, choice: Choice) -> str | None:
        if self._tools:
            return self._tools[index].finish_reason(choice.finish_reason)
        return choice.finish_reason

    def opening(self, index: int, _choice: Choice) -> bytes:
        """The chunk that names the role."""
        content = b'{"role":%s,"content":""}' % encode_json(self._role)
        return self._chunk(index, content, Delta(""), tail=self._job.prompt_id_tail(index))

    def event(self, index: int, delta: Delta) -> bytes:
        """A chunk with text, or several with pieces of tool calls."""
        if not self._tools and not delta.reasoning:
            return self._chunk(index, b'{"content":%s}' % encode_json(delta.text), delta)
        pieces = self._pieces(index, delta)
        return self._chunks(index, pieces or [{}] * bool(delta.logprobs), delta)

    def around_text(self, index: int) -> tuple[bytes, bytes] | None:
        """None with tools: text may be a part of a call."""
        if self._tools:
            return None
        return cut_open(self.event(index, Delta("")), b'"content":')

    def closing(self, index: int, delta: Delta, choice: Choice) -> bytes:
        """The last text, if any, and a chunk with the finish reason."""
        pieces = self._pieces(index, delta)
        if self._tools:
            pieces += self._tools[index].finish()
        reasons = b'"finish_reason":%s,"stop_reason":%s' % (
            encode_json(self._finish_reason(index, choice)),
            encode_json(choice.stop_reason),
        )
        return self._chunks(index, pieces or [{}], delta, reasons)

    def _pieces(self, index: int, delta: Delta) -> list[dict[str, object]]:
        """What a delta brings, thought first."""
        pieces = [_reasoning_fields(delta.reasoning)] if delta.reasoning else []
        if self._tools:
            return pieces + self._tools[index].feed(delta.text)
        return pieces + ([{"content": delta.text}] if delta.text else [])

    def usage_event(self, usage: dict[str, object]) -> bytes:
        """The chunk after the last choice."""
        return b'%s],"usage":%s}\n\n' % (self._head, encode_json(usage))

    def _chunks(
        self,
        index: int,
        pieces: Sequence[dict[str, object]],
        delta: Delta,
        reasons: bytes = _GOES_ON,
    ) -> bytes:
        """One chunk per piece: the first has the logprobs, the last the reasons."""
        chunks = []
        for number, piece in enumerate(pieces, 1):
            is_last = number == len(pieces)
            chunks.append(
                self._chunk(index, encode_json(piece), delta, reasons if is_last else _GOES_ON)
            )
            delta = Delta("", usage=delta.usage)
        return b"".join(chunks)

    def _chunk(
        self,
        index: int,
        content: bytes,
        delta: Delta,
        reasons: bytes = _GOES_ON,
        tail: bytes = b"",
    ) -> bytes:
        return b'%s{"index":%d,"delta":%s,"logprobs":%s,%s%s}]%s%s}\n\n' % (
            self._head,
            index,
            content,
            encode_json(self._logprobs(delta.logprobs)) if delta.logprobs else b"null",
            reasons,
            delta.token_ids_field(),
            tail,
            delta.usage_field(),
        )


def _reasoning_fields(text: str) -> dict[str, object]:
    """vLLM's name of today, and the one that older clients read."""
    return {"reasoning": text, "reasoning_content": text}
