"""POST /v1/embeddings: inputs (text or token ids) to pooling requests, and the answer's object."""

from __future__ import annotations

import asyncio
import base64
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from engine.errors import RequestError
from engine.frontend.embeddings import Embedding, TextPrompt, check_dimensions
from engine.frontend.input_processor import InputProcessor
from engine.logger import get_logger
from engine.messages import EngineCoreRequest
from engine.server.http.body_limits import CheckedList
from engine.server.prompts import encode_all, text_allowance, truncated
from engine.server.protocol import Body, Int32, PromptLimit, TokenIds
from engine.server.state import Services
from engine.server.streaming import encode_json

logger = get_logger(__name__)


MAX_INPUTS = 2048
"""Most inputs of one API request, as at OpenAI."""


class EmbeddingBody(Body):
    """POST /v1/embeddings. Beside those, vLLM's at values that change nothing.

    `prompt_name` is sentence-transformers' word for what the model's files put before a text.
    """

    input: str | CheckedList[str] | TokenIds | CheckedList[TokenIds]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Int32 | None = None
    user: str | None = None
    add_special_tokens: bool = True
    cache_salt: str | None = None
    priority: Int32 = 0
    prompt_name: str | None = None
    messages: None = None
    truncate_prompt_tokens: PromptLimit | None = None
    embed_dtype: Literal["float32"] = "float32"
    endianness: Literal["native", "little"] = "native"
    normalize: Literal[True] = True
    use_activation: Literal[True] = True

    @property
    def embedding_body(self) -> EmbeddingBody:
        """The request for the vectors: itself."""
        return self

    async def document(self, job: EmbeddingJob, embeddings: Sequence[Embedding]) -> bytes:
        """The answer, written beside the event loop."""
        return await asyncio.to_thread(job.document, embeddings)

    @property
    def inputs(self) -> list[str | list[int]]:
        """The inputs as a list, whatever form they came in."""
        if isinstance(self.input, str):
            return [self.input]
        if self.input and isinstance(self.input[0], int):
            return [[token for token in self.input if isinstance(token, int)]]
        return [entry for entry in self.input if not isinstance(entry, int)]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingJob:
    """One API request. `requests[i]` makes vector `i`."""

    id: str
    created: int
    model: str
    requests: list[EngineCoreRequest]
    dimensions: int | None
    as_base64: bool

    def document(self, embeddings: Sequence[Embedding]) -> bytes:
        return encode_json(
            {
                "id": self.id,
                "object": "list",
                "created": self.created,
                "model": self.model,
                "data": [
                    {
                        "index": index,
                        "object": "embedding",
                        "embedding": self._write(embedding.shortened(self.dimensions)),
                    }
                    for index, embedding in enumerate(embeddings)
                ],
                "usage": self.usage(embeddings),
            }
        )

    def usage(self, embeddings: Sequence[Embedding]) -> dict[str, object]:
        """Token counts of all inputs."""
        num_tokens = sum(len(request.prompt_token_ids) for request in self.requests)
        cached = sum(embedding.num_cached_tokens for embedding in embeddings)
        return {
            "prompt_tokens": num_tokens,
            "total_tokens": num_tokens,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def _write(self, embedding: Embedding) -> str | msgspec.Raw:
        if self.as_base64:
            return base64.b64encode(embedding.data).decode("ascii")
        # Written one by one: all in one call would keep the interpreter for a second.
        return msgspec.Raw(encode_json(embedding.floats))


async def make_embedding_job(services: Services, body: EmbeddingBody) -> EmbeddingJob:
    """Tokenize what is text, check; RequestError refuses the whole request."""
    lora = services.adapter_of(body.model)
    before = TextPrompt.named(
        services.sentence, body.prompt_name, services.llm.tokenizer, services.tasks.pooling
    )
    inputs = body.inputs
    _check_inputs(
        inputs,
        services.llm.input_processor,
        text_allowance(body.truncate_prompt_tokens),
    )
    check_dimensions(body.dimensions, services.embedding_size)
    job_id, now = f"embd-{uuid.uuid4().hex}", time.time()
    texts = [before.before(entry) for entry in inputs if isinstance(entry, str)]
    found = iter(
        await encode_all(services.llm.tokenizer, texts, add_special_tokens=body.add_special_tokens)
    )
    requests = []
    for index, entry in enumerate(inputs):
        await asyncio.sleep(0)  # thousands of inputs must not hold up the other requests
        is_text = isinstance(entry, str)
        token_ids = next(found) if isinstance(entry, str) else entry
        is_ended = is_text and body.add_special_tokens
        if body.truncate_prompt_tokens is not None:
            token_ids = truncated(
                token_ids,
                body.truncate_prompt_tokens,
                services.llm.input_processor.max_model_len,
                keeps_end=False,
                end=services.llm.tokenizer.end_tokens if is_ended else [],
            )
        requests.append(
            services.llm.input_processor.process_pooling(
                f"{job_id}-{index}",
                token_ids,
                before.pooling if is_text else services.tasks.pooling,
                arrival_time=now,
                prompt_param=_name(index, len(inputs)),
                cache_salt=body.cache_salt,
                priority=body.priority,
                lora=lora,
            )
        )
    if services.log_requests:
        logger.info("Received request %s: params: %s.", job_id, services.tasks.pooling)
    return EmbeddingJob(
        id=job_id,
        created=int(now),
        model=services.model_name if lora is None else lora.name,
        requests=requests,
        dimensions=body.dimensions,
        as_base64=body.encoding_format == "base64",
    )


def _check_inputs(
    inputs: Sequence[str | list[int]], processor: InputProcessor, at_least: int
) -> None:
    if not 1 <= len(inputs) <= MAX_INPUTS:
        raise RequestError(
            f"input must hold 1 to {MAX_INPUTS} entries, got {len(inputs)}.", param="input"
        )
    for index, entry in enumerate(inputs):
        if not entry:  # a tokenizer may make a token of nothing
            name = _name(index, len(inputs))
            raise RequestError(f"{name} is empty; it must hold some text or tokens.", param=name)
        if isinstance(entry, str):
            processor.check_text(entry, _name(index, len(inputs)), at_least=at_least)


def _name(index: int, count: int) -> str:
    """`input`, or `input.3` as in the paths of other errors."""
    return "input" if count == 1 else f"input.{index}"
