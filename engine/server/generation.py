"""Job: one API request as the engine sees it, and running it. Knows neither chat nor HTTP.

A job has one sub-request per prompt and sample; their outputs come back merged, with the index of
the choice they belong to.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from engine.errors import CONTEXT_CODE, RequestError
from engine.frontend.async_llm import AsyncLLM
from engine.frontend.iteration_stats import ParentRequest
from engine.frontend.logprobs import LogprobsList
from engine.frontend.outputs import Outlet, RequestDelta
from engine.frontend.request_traces import Marks
from engine.logger import get_logger
from engine.messages import EngineCoreRequest
from engine.sampling_params import SamplingParams
from engine.server.images import NO_IMAGES, PromptImages
from engine.server.parsers.thinking import ThinkingPlan, generate_thinking
from engine.server.prompts import encode_bad_words, truncated
from engine.server.protocol import GenerationBody
from engine.server.state import Services

logger = get_logger(__name__)

ChoiceOutput = tuple[int, RequestDelta]

MAX_LOGPROBS = 1 << 20
"""Log probabilities of one API request: tokens times tokens shown for each.

Written as JSON they are a hundred times that in bytes.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One API request. `requests[i]` makes choice `i`; `echoes` is what choice `i` begins with.

    With `has_echo` that is the whole prompt. `is_prompt_only` leaves out what is generated, so that
    only the echo remains. `thinking` is there where a model's thought is told
    from its answer. `shows_token_ids` adds vLLM's `token_ids` and `prompt_token_ids`,
    `tokens_as_ids` writes `token_id:7` for a token in logprobs. `on_start` is called as the engine
    gets the requests, `on_end` when it has none of them any more.
    """

    id: str
    created: int
    model: str
    requests: list[EngineCoreRequest]
    n: int
    include_usage: bool
    continuous_usage: bool
    echoes: list[str]
    has_echo: bool
    is_prompt_only: bool
    shows_token_ids: bool = False
    tokens_as_ids: bool = False
    thinking: ThinkingPlan | None = None
    on_start: Callable[[], None] = lambda: None
    on_end: Callable[[], None] = lambda: None

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens; a prompt that is sampled n times counts once."""
        return sum(len(request.prompt_token_ids) for request in self.requests[:: self.n])

    def shown_logprobs(self, part: Choice | RequestDelta) -> LogprobsList | None:
        """The positions of the answer's text: an echoed prompt's come first."""
        if part.logprobs is None or part.prompt_logprobs is None or not self.has_echo:
            return part.logprobs
        shown = part.prompt_logprobs.copy()
        shown.extend(part.logprobs)
        return shown

    def token_id_fields(self, choice: Choice) -> dict[str, object]:
        """The generated tokens of one choice as a field, when they are asked for."""
        return {"token_ids": choice.token_ids} if self.shows_token_ids else {}

    def prompt_id_fields(self, index: int) -> dict[str, object]:
        """The prompt of choice `index` as a field, when it is asked for."""
        shown = self.shows_token_ids
        return {"prompt_token_ids": self.requests[index].prompt_token_ids} if shown else {}

    def prompt_id_tail(self, index: int) -> bytes:
        """The same as the end of an event's object."""
        if not self.shows_token_ids:
            return b""
        ids = msgspec.json.encode(self.requests[index].prompt_token_ids)
        return b',"prompt_token_ids":' + ids

    def visible(self, output: RequestDelta) -> RequestDelta:
        """The output as the client may see it."""
        if not self.is_prompt_only:
            return output
        logprobs = None if output.logprobs is None else output.logprobs.emptied()
        return dataclasses.replace(output, text="", token_ids=[], logprobs=logprobs)


@dataclass(slots=True)
class Choice:
    """What has come of one choice so far."""

    texts: list[str] = field(default_factory=list)
    reasonings: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    num_tokens: int = 0
    num_cached_tokens: int = 0
    num_reasoning_tokens: int = 0
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: LogprobsList | None = None
    prompt_logprobs: LogprobsList | None = None

    def add(self, output: RequestDelta) -> None:
        """Keep what an output brought, and count it."""
        if self.logprobs is None:
            self.logprobs = output.logprobs
        elif output.logprobs is not None:
            self.logprobs.extend(output.logprobs)
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = output.prompt_logprobs
        self.texts.append(output.text)
        self.reasonings.append(output.reasoning)
        self.token_ids += output.token_ids
        self.count(output)

    def count(self, output: RequestDelta) -> None:
        """Note how much an output brought, and how the choice ended: all that a stream needs."""
        self.num_reasoning_tokens += output.num_reasoning_tokens
        self.num_tokens += len(output.token_ids)
        self.num_cached_tokens = output.num_cached_tokens
        self.stop_reason = output.stop_reason
        if output.finish_reason is not None:
            self.finish_reason = str(output.finish_reason)

    @property
    def num_logprobs(self) -> int:
        """Log probabilities that the answer shows."""
        parts = (self.logprobs, self.prompt_logprobs)
        return sum(part.num_entries for part in parts if part is not None)


def usage(job: Job, choices: Sequence[Choice]) -> dict[str, object]:
    """The `usage` object of OpenAI's answers; with `n` choices the prompt counts once."""
    completion = sum(choice.num_tokens for choice in choices)
    cached = sum(choice.num_cached_tokens for choice in choices[:: job.n])
    counts: dict[str, object] = {
        "prompt_tokens": job.num_prompt_tokens,
        "total_tokens": job.num_prompt_tokens + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    if job.thinking is not None:
        thought = sum(choice.num_reasoning_tokens for choice in choices)
        counts["completion_tokens_details"] = {"reasoning_tokens": thought}
    return counts


async def make_job(
    services: Services,
    body: GenerationBody,
    prompts: Sequence[list[int]],
    params: SamplingParams,
    *,
    id_prefix: str,
    prompt_param: str,
    marks: Marks,
    logprobs_param: str = "logprobs",
    echoes: Sequence[str] | None = None,
    has_echo: bool = False,
    is_prompt_only: bool = False,
    thinking: ThinkingPlan | None = None,
    message_digests: tuple[bytes, ...] = (),
    images: PromptImages = NO_IMAGES,
) -> Job:
    """Check every prompt and make the sub-requests; RequestError refuses the whole request."""
    body.check_choices(len(prompts))
    params = await encode_bad_words(services.llm.tokenizer, params)
    if (limit := body.truncate_prompt_tokens) is not None:
        longest, reserved = services.llm.input_processor.max_model_len, params.max_tokens or 1
        whole = sum(map(len, prompts))
        prompts = [
            truncated(prompt, limit, longest, reserved=reserved, keeps_end=True)
            for prompt in prompts
        ]
        if images.inputs and sum(map(len, prompts)) < whole:
            raise RequestError(
                f"The prompt has {whole} input tokens and would have to be cut, which is not done "
                "to one with images. Send fewer of them, or less text.",
                param=prompt_param,
                code=CONTEXT_CODE,
            )
    lora = services.adapter_of(body.model)  # it may have been unloaded meanwhile
    job_id = f"{id_prefix}{uuid.uuid4().hex}"
    now = time.time()
    requests: list[EngineCoreRequest] = []
    for prompt in prompts:
        await asyncio.sleep(0)  # long prompts are looked through one by one
        first = services.llm.input_processor.process(
            f"{job_id}-{len(requests)}",
            prompt,
            params,
            arrival_time=now,
            prompt_param=prompt_param,
            logprobs_param=logprobs_param,
            cache_salt=body.cache_salt,
            priority=body.priority,
            lora=lora,
            message_digests=message_digests,
            images=images.inputs,
        )
        requests += _samples(first, job_id, body.n, len(requests))
    _check_logprobs(requests, params, logprobs_param)
    _begin_traces(services.llm, requests, marks)
    if services.log_requests:
        logger.info("Received request %s: params: %s.", job_id, params)
    options = body.stream_options
    return Job(
        id=job_id,
        created=int(now),
        model=services.model_name if lora is None else lora.name,
        requests=requests,
        n=body.n,
        include_usage=options is not None and options.include_usage,
        continuous_usage=options is not None and options.continuous_usage_stats,
        echoes=[echo for echo in echoes or [""] * len(prompts) for _ in range(body.n)],
        has_echo=has_echo,
        is_prompt_only=is_prompt_only,
        shows_token_ids=body.return_token_ids,
        tokens_as_ids=body.return_tokens_as_token_ids,
        thinking=thinking,
        on_end=images.leave,
    )


def _check_logprobs(
    requests: Sequence[EngineCoreRequest], params: SamplingParams, logprobs_param: str
) -> None:
    """Refuse too large an answer. One sample alone generates no more than the context holds."""
    of_prompts, generated = params.prompt_logprobs, params.logprobs
    count = 0
    if of_prompts is not None:
        tokens = sum(len(request.prompt_token_ids) for request in requests)
        count += tokens * (of_prompts + 1)
    if generated is not None and len(requests) > 1:
        tokens = sum(request.sampling_params.max_tokens or 0 for request in requests)
        count += tokens * (generated + 1)
    if count > MAX_LOGPROBS:
        raise RequestError(
            f"This asks for up to {count} log probabilities (tokens of all prompts and samples, "
            f"times those shown for each); one request may ask for {MAX_LOGPROBS}. Lower "
            f"{logprobs_param}, prompt_logprobs, max_tokens or n, or send fewer prompts.",
            param="prompt_logprobs" if of_prompts is not None else logprobs_param,
        )


def _samples(
    first: EngineCoreRequest, job_id: str, count: int, start: int
) -> Iterator[EngineCoreRequest]:
    """`first`, numbered `start`, and its further samples."""
    yield first
    for sample in range(1, count):
        yield msgspec.structs.replace(
            first,
            request_id=f"{job_id}-{start + sample}",
            sampling_params=first.sampling_params.for_sample(sample),
        )


def _begin_traces(llm: AsyncLLM, requests: Sequence[EngineCoreRequest], marks: Marks) -> None:
    if llm.traces is not None:
        marks.note("built")
        for request in requests:
            llm.traces.begin(request.request_id, marks, request.prompt_token_ids)


class ChoiceOutlet(Protocol):
    """An Outlet for the outputs of all choices of a job."""

    def can_take(self, output: RequestDelta) -> bool: ...

    def take(self, index: int, output: RequestDelta) -> None:
        """Deal with an output of choice `index`."""

    def text_taker(self, index: int) -> Callable[[str, int], bool] | None:
        """`Outlet.take_text` of choice `index`, if there is one."""


async def run_job(
    llm: AsyncLLM, job: Job, outlet: ChoiceOutlet | None = None
) -> AsyncGenerator[ChoiceOutput, None]:
    """Outputs of all choices as they come, but for those that the outlet takes. Closing it aborts
    what still runs.
    """
    parents = [ParentRequest(job.n) for _ in job.requests[:: job.n]]
    job.on_start()
    children = [
        _outputs(llm, job, request, parents[index // job.n], _outlet_of(outlet, job, index))
        for index, request in enumerate(job.requests)
    ]
    if len(children) == 1:
        try:
            async with aclosing(children[0]) as outputs:
                async for output in outputs:
                    yield 0, job.visible(output)
        finally:
            job.on_end()
        return
    waiting = {_next_output(child): index for index, child in enumerate(children)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                index = waiting.pop(task)
                output = task.result()
                yield index, job.visible(output)
                if not output.is_finished:
                    waiting[_next_output(children[index])] = index
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for child in children:
            await child.aclose()
        job.on_end()


def _outlet_of(outlet: ChoiceOutlet | None, job: Job, index: int) -> Outlet | None:
    if outlet is None:
        return None
    if job.is_prompt_only:
        return Outlet(outlet.can_take, lambda output: outlet.take(index, job.visible(output)))
    take_text = outlet.text_taker(index)
    return Outlet(outlet.can_take, lambda output: outlet.take(index, output), take_text)


def _outputs(
    llm: AsyncLLM,
    job: Job,
    request: EngineCoreRequest,
    parent: ParentRequest,
    outlet: Outlet | None,
) -> AsyncGenerator[RequestDelta, None]:
    if job.thinking is None:
        return llm.generate(request, parent, outlet)
    return generate_thinking(llm, request, parent, job.thinking, outlet)


def _next_output(
    outputs: AsyncGenerator[RequestDelta, None],
) -> asyncio.Task[RequestDelta]:
    async def step() -> RequestDelta:
        return await anext(outputs)

    return asyncio.create_task(step())


async def collect_job(llm: AsyncLLM, job: Job) -> list[Choice]:
    """Run a job to its end and return its choices in order."""
    collected = _Collected([Choice() for _ in job.requests])
    async with aclosing(run_job(llm, job, collected)) as outputs:
        async for index, output in outputs:
            collected.take(index, output)
    return collected.choices


@dataclass(frozen=True, slots=True)
class _Collected:
    """A ChoiceOutlet that adds up."""

    choices: list[Choice]

    def can_take(self, _output: RequestDelta) -> bool:
        return True

    def take(self, index: int, output: RequestDelta) -> None:
        self.choices[index].add(output)

    def text_taker(self, _index: int) -> None:
        """None: the tokens are kept, too."""
