"""POST /v1/completions: prompts (text or token ids) to a job, its outputs to OpenAI's objects."""

from __future__ import annotations

from collections.abc import Sequence

from engine.frontend.request_traces import Marks
from engine.frontend.tokenizer import Tokenizer
from engine.server.generation import Choice, Job, make_job, usage
from engine.server.logprobs import CompletionLogprobs, prompt_logprobs
from engine.server.prompts import decode, encode_all, text_allowance
from engine.server.protocol import CompletionBody
from engine.server.state import Services
from engine.server.streaming import Delta, OpenAIStream, cut_open, encode_json
from engine.server.structured import check_structured_outputs


async def answer_completion(
    services: Services, body: CompletionBody, marks: Marks
) -> tuple[Job, CompletionFormat]:
    """The job of a request, and how its answer is written."""
    job = await _make_completion_job(services, body, marks)
    return job, CompletionFormat(job)


async def _make_completion_job(services: Services, body: CompletionBody, marks: Marks) -> Job:
    """Tokenize what is text, check."""
    services.check_model(body.model)
    params = body.sampling_params(services.sampling_defaults)
    tokenizer, prompts = services.llm.tokenizer, body.prompts
    body.check_choices(len(prompts))
    token_ids = await _tokenize(services, body, prompts)
    marks.note("tokenized")
    params = await check_structured_outputs(services.grammars, body, params)
    return await make_job(
        services,
        body,
        token_ids,
        params,
        id_prefix="cmpl-",
        prompt_param="prompt",
        echoes=[await _as_text(tokenizer, prompt) for prompt in prompts] if body.echo else None,
        has_echo=body.echo,
        is_prompt_only=body.is_prompt_only,
        marks=marks,
    )


async def _tokenize(
    services: Services, body: CompletionBody, prompts: Sequence[str | list[int]]
) -> list[list[int]]:
    """Ids of every prompt; those that are too long are refused before any is tokenised."""
    processor = services.llm.input_processor
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    for text in texts:
        processor.check_text(text, "prompt", at_least=text_allowance(body.truncate_prompt_tokens))
    for prompt in prompts:
        if not isinstance(prompt, str) and body.truncate_prompt_tokens is None:
            processor.check_prompt(prompt, "prompt")
    found = iter(
        await encode_all(services.llm.tokenizer, texts, add_special_tokens=body.add_special_tokens)
    )
    return [next(found) if isinstance(prompt, str) else prompt for prompt in prompts]


async def _as_text(tokenizer: Tokenizer, prompt: str | list[int]) -> str:
    return prompt if isinstance(prompt, str) else await decode(tokenizer, prompt)


class CompletionFormat(OpenAIStream):
    """Text completion objects of one job; chunks have the same shape."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._head = (
            b'data: {"id":"%s","object":"text_completion","created":%d,"model":%s,"choices":['
            % (job.id.encode(), job.created, encode_json(job.model))
        )
        self._logprobs = [CompletionLogprobs(as_ids=job.tokens_as_ids) for _ in job.requests]

    def document(self, choices: Sequence[Choice]) -> bytes:
        """The answer that is not streamed."""
        return encode_json(
            {
                "id": self._job.id,
                "object": "text_completion",
                "created": self._job.created,
                "model": self._job.model,
                "choices": [
                    {
                        "index": index,
                        "text": self._job.echoes[index] + "".join(choice.texts),
                        "logprobs": self._logprobs[index].write(positions) if positions else None,
                        "finish_reason": choice.finish_reason,
                        "stop_reason": choice.stop_reason,
                        "prompt_logprobs": prompt_logprobs(choice.prompt_logprobs)
                        if choice.prompt_logprobs
                        else None,
                        **self._job.token_id_fields(choice),
                        **self._job.prompt_id_fields(index),
                    }
                    for index, choice in enumerate(choices)
                    for positions in (self._job.shown_logprobs(choice),)
                ],
                "usage": usage(self._job, choices),
            }
        )

    def opening(self, index: int, _choice: Choice) -> bytes:
        """Completions have no opening chunk, unless it brings the prompt's token ids."""
        tail = self._job.prompt_id_tail(index)
        return self._chunk(index, Delta(""), b'"finish_reason":null' + tail) if tail else b""

    def event(self, index: int, delta: Delta) -> bytes:
        return self._chunk(index, delta, b'"finish_reason":null')

    def around_text(self, index: int) -> tuple[bytes, bytes]:
        return cut_open(self.event(index, Delta("")), b'"text":')

    def closing(self, index: int, delta: Delta, choice: Choice) -> bytes:
        """The last text and why the choice ended."""
        reasons = b'"finish_reason":%s,"stop_reason":%s' % (
            encode_json(choice.finish_reason),
            encode_json(choice.stop_reason),
        )
        return self._chunk(index, delta, reasons)

    def usage_event(self, usage: dict[str, object]) -> bytes:
        """The chunk after the last choice."""
        return b'%s],"usage":%s}\n\n' % (self._head, encode_json(usage))

    def _chunk(self, index: int, delta: Delta, reasons: bytes) -> bytes:
        writer = self._logprobs[index]
        return b'%s{"index":%d,"text":%s,"logprobs":%s,%s%s}]%s}\n\n' % (
            self._head,
            index,
            encode_json(delta.text),
            encode_json(writer.write(delta.logprobs)) if delta.logprobs else b"null",
            reasons,
            delta.token_ids_field(),
            delta.usage_field(),
        )
