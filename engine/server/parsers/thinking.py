"""A request of a model that thinks: thought and answer apart, a limit on the first, a grammar for
the second.

A limit and a grammar need two requests to the engine: one that ends with the thought, and one that
goes on behind it. The second finds all of the first in the prefix cache, of several replicas where
it comes to the same one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from engine.errors import RequestError
from engine.frontend.async_llm import AsyncLLM
from engine.frontend.iteration_stats import ParentRequest
from engine.frontend.outputs import Outlet, RequestDelta
from engine.frontend.tokenizer import Tokenizer
from engine.messages import EngineCoreRequest, FinishReason
from engine.server.parsers.reasoning import (
    REASONING_PARSERS,
    ReasoningTags,
    Start,
    start_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThoughtMarks:
    """A family's tags as tokens of the served model.

    `closing_ids` are the tokens that end a thought at its limit, `closing_id` is the closing tag
    where that is one token. A grammar's answer begins behind `head_ids` where the model ended its
    thought itself, and behind `first_head_ids` where it had none.
    """

    tags: ReasoningTags
    closing_ids: tuple[int, ...]
    head_ids: tuple[int, ...] = ()
    first_head_ids: tuple[int, ...] = ()
    closing_id: int | None
    num_opening_ids: int
    keeps_special_tokens: bool

    @property
    def has_heads(self) -> bool:
        """Whether thought and answer are messages with heads, not text around tags."""
        return bool(self.head_ids)


def thought_marks(parser: str | None, tokenizer: Tokenizer) -> ThoughtMarks | None:
    """Those of --reasoning-parser; None without one."""
    if parser is None:
        return None
    tags = REASONING_PARSERS[parser]

    def ids_of(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text, add_special_tokens=False)) if text else ()

    closing = ids_of(tags.closing)
    head = tags.answer_head
    has_head = bool(head.strip())
    return ThoughtMarks(
        tags=tags,
        closing_ids=ids_of(f"{'' if has_head else chr(10)}{tags.closing}{head}"),
        head_ids=ids_of(head) if has_head else (),
        first_head_ids=ids_of(head.removeprefix(tags.answer_begun)) if has_head else (),
        closing_id=closing[0] if len(closing) == 1 else None,
        num_opening_ids=len(tokenizer.encode(tags.opening, add_special_tokens=False)),
        keeps_special_tokens=not tokenizer.decode(closing, skip_special_tokens=True),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingPlan:
    """How one request's thought is dealt with; `budget` is its most tokens.

    A thought that is not shown still counts. With `keeps_calls` a tool parser reads the answer.
    """

    marks: ThoughtMarks
    start: Start
    budget: int | None
    is_shown: bool
    keeps_calls: bool = False

    def needs_two_requests(self, request: EngineCoreRequest) -> bool:
        """Whether one request to the engine cannot do it."""
        is_bound = self.budget is not None or request.sampling_params.structured_outputs is not None
        return is_bound and self.start is not Start.OUTSIDE


def plan_thinking(
    marks: ThoughtMarks | None,
    prompt: str,
    *,
    budget: int | None,
    is_shown: bool,
    keeps_calls: bool = False,
) -> ThinkingPlan | None:
    """The plan of a chat whose rendered prompt is `prompt`; None for a model that does not think.

    RequestError for a limit where thoughts are not told from answers.
    """
    if marks is None:
        if budget is not None:
            raise RequestError(
                "thinking_token_budget needs a model that thinks, and --reasoning-parser to tell "
                "its thought; this server has none.",
                param="thinking_token_budget",
            )
        return None
    start = start_of(prompt, marks.tags)
    return ThinkingPlan(
        marks=marks, start=start, budget=budget, is_shown=is_shown, keeps_calls=keeps_calls
    )


async def generate_thinking(
    llm: AsyncLLM,
    request: EngineCoreRequest,
    parent: ParentRequest,
    plan: ThinkingPlan,
    outlet: Outlet | None = None,
) -> AsyncGenerator[RequestDelta, None]:
    """The outputs of one sample, `text` being its answer alone. Closing it aborts the request."""
    reader = _Reader(plan, plan.start)
    if not plan.needs_two_requests(request):
        own = outlet and outlet.behind(reader.read)
        async with aclosing(llm.generate(request, parent, own)) as outputs:
            async for output in outputs:
                yield reader.read(output)
        return
    thought = _Thought()
    async with aclosing(_think(llm, request, plan, reader, thought)) as parts:
        async for part in parts:
            yield part
            if part.is_finished:
                return
    answer = _answer_request(request, plan, thought)
    if thought.is_none:
        reader = _Reader(plan, plan.start if plan.marks.has_heads else Start.OUTSIDE)
    reader.read_forced(_forced_text(request, plan, thought))
    if answer.sampling_params.max_tokens == 0:
        yield RequestDelta(request.request_id, finish_reason=FinishReason.LENGTH)
        return

    def read(output: RequestDelta) -> RequestDelta:
        part = reader.read(output)
        part.num_cached_tokens = thought.num_cached_tokens
        return part

    own = outlet and outlet.behind(read)
    async with aclosing(llm.generate(answer, parent, own)) as outputs:
        async for output in outputs:
            yield read(output)


@dataclass(slots=True)
class _Thought:
    """What the first request came to."""

    token_ids: list[int] = dataclasses.field(default_factory=list)
    num_cached_tokens: int = 0
    is_cut: bool = False  # by its limit
    is_none: bool = False  # the model began with the answer


async def _think(
    llm: AsyncLLM,
    request: EngineCoreRequest,
    plan: ThinkingPlan,
    reader: _Reader,
    thought: _Thought,
) -> AsyncGenerator[RequestDelta, None]:
    """The first request, up to the end of the thought; a finished part ends the whole answer."""
    limit = _thought_limit(request, plan)
    if limit == 0:
        thought.is_cut = True
        return
    first = _thought_request(request, plan, limit)
    async with aclosing(llm.generate(first, ParentRequest(1))) as outputs:
        async for output in outputs:
            thought.token_ids += output.token_ids
            thought.num_cached_tokens = output.num_cached_tokens
            is_closed = output.stop_reason == plan.marks.tags.closing
            is_at_limit = output.finish_reason is FinishReason.LENGTH
            part = reader.read(_without_stop(output, request, plan))
            thought.is_cut = is_at_limit and limit < (request.sampling_params.max_tokens or 0)
            has_ended = is_closed or thought.is_cut
            if part.text.strip() and not is_closed and _goes_on(request, reader):
                if thought.is_cut:
                    part.finish_reason = part.stop_reason = None
                    thought.is_cut = False
                yield part
                return
            is_other_message = plan.marks.has_heads and has_ended and not reader.has_thought
            if is_other_message or (part.text.strip() and not is_closed):
                thought.is_cut = False
                thought.is_none = True
                thought.token_ids.clear()
                return
            if is_closed or thought.is_cut:
                part.finish_reason = part.stop_reason = None
            yield part


def _goes_on(request: EngineCoreRequest, reader: _Reader) -> bool:
    """Whether an answer that began by itself behind a thought can go on from where it is."""
    return reader.has_thought and request.sampling_params.structured_outputs is None


def _without_stop(
    output: RequestDelta, request: EngineCoreRequest, plan: ThinkingPlan
) -> RequestDelta:
    """The client's own stop strings are not shown, unless it wants to see them."""
    reason = output.stop_reason
    is_shown = request.sampling_params.include_stop_str_in_output
    if isinstance(reason, str) and reason != plan.marks.tags.closing and not is_shown:
        return dataclasses.replace(output, text=output.text.removesuffix(reason))
    return output


def _thought_limit(request: EngineCoreRequest, plan: ThinkingPlan) -> int:
    most = request.sampling_params.max_tokens or 0
    if plan.budget is None:
        return most
    opening = 0 if plan.start is Start.INSIDE else plan.marks.num_opening_ids
    return min(most, plan.budget + opening)


def _thought_request(
    request: EngineCoreRequest, plan: ThinkingPlan, limit: int
) -> EngineCoreRequest:
    params = request.sampling_params
    return msgspec.structs.replace(
        request,
        sampling_params=dataclasses.replace(
            params,
            structured_outputs=None,
            stop=(*params.stop, plan.marks.tags.closing),
            include_stop_str_in_output=True,
            max_tokens=limit,
            min_tokens=0,
        ),
    )


def _forced_ids(
    request: EngineCoreRequest, plan: ThinkingPlan, thought: _Thought
) -> tuple[int, ...]:
    """What is written for the model between its thought and its answer."""
    if thought.is_cut:
        return plan.marks.closing_ids
    if request.sampling_params.structured_outputs is None:
        return ()
    return plan.marks.first_head_ids if thought.is_none else plan.marks.head_ids


def _forced_text(request: EngineCoreRequest, plan: ThinkingPlan, thought: _Thought) -> str:
    """The same as text, without the blanks around a tag."""
    tags = plan.marks.tags
    head = tags.answer_head.strip()
    if thought.is_cut:
        return f"{tags.closing}{head}"
    return "" if request.sampling_params.structured_outputs is None else head


def _answer_request(
    request: EngineCoreRequest, plan: ThinkingPlan, thought: _Thought
) -> EngineCoreRequest:
    """What follows the thought: the client's own request, with the thought in its prompt."""
    params, used = request.sampling_params, len(thought.token_ids)
    closing = _forced_ids(request, plan, thought)
    return msgspec.structs.replace(
        request,
        request_id=f"{request.request_id}-answer",
        prompt_token_ids=[*request.prompt_token_ids, *thought.token_ids, *closing],
        sampling_params=dataclasses.replace(
            params,
            max_tokens=max(0, (params.max_tokens or 0) - used - len(closing)),
            min_tokens=max(0, params.min_tokens - used),
            prompt_logprobs=None,
        ),
    )


class _Reader:
    """Splits the outputs of one answer and counts the tokens of its thought."""

    def __init__(self, plan: ThinkingPlan, start: Start) -> None:
        self._plan = plan
        self._splitter = plan.marks.tags.splitter(start, keeps_calls=plan.keeps_calls)

    @property
    def has_thought(self) -> bool:
        return self._splitter.has_thought

    def read(self, output: RequestDelta) -> RequestDelta:
        """The output with its text told apart."""
        was_inside = self._splitter.is_inside
        part = self._splitter.feed(output.text)
        reasoning, content = part.reasoning, part.content
        is_inside = self._splitter.is_inside
        if output.is_finished:
            last = self._splitter.finish()
            reasoning, content = reasoning + last.reasoning, content + last.content
        return dataclasses.replace(
            output,
            text=content,
            reasoning=reasoning if self._plan.is_shown else "",
            num_reasoning_tokens=self._num_thought(output.token_ids, was_inside, is_inside),
        )

    def read_forced(self, text: str) -> None:
        """What was written for the model is not shown."""
        self._splitter.feed(text)

    def _num_thought(self, token_ids: list[int], was_inside: bool, is_inside: bool) -> int:
        if is_inside:
            return len(token_ids)
        if not was_inside:
            return 0
        closing = self._plan.marks.closing_id
        return token_ids.index(closing) + 1 if closing in token_ids else len(token_ids)
