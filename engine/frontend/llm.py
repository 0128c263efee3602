"""LLM: offline generation, without a server. `LLM(model).generate(prompts, SamplingParams())`.

Owns an EngineCore process and the event loop that talks to it. Meant for scripts and notebooks: its
methods wait. The process ends with `shutdown`, the `with` block, the object or the interpreter.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import os
import sys
import time
import weakref
from collections.abc import Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from engine.config import EngineConfig
from engine.core.together import all_together
from engine.errors import EngineDeadError, RequestError
from engine.frontend import outputs
from engine.frontend.async_llm import EngineCoreClient, StartedEngine, start_async_llm
from engine.frontend.chat_template import ChatMessage, plain_text
from engine.frontend.embeddings import TextPrompt, check_dimensions, embed_all
from engine.frontend.input_processor import tokenize_bad_words
from engine.frontend.iteration_stats import ParentRequest
from engine.frontend.loop_thread import LoopThread
from engine.frontend.offline_inputs import (
    Prompts,
    Settings,
    as_conversations,
    as_list,
    parse_engine_args,
    text_or_ids,
    uniform_params,
)
from engine.frontend.offline_outputs import (
    EmbeddingOutput,
    EmbeddingRequestOutput,
    RequestOutput,
    request_output,
)
from engine.logger import setup_logging
from engine.messages import EngineCoreRequest
from engine.sampling_params import SamplingParams

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class _Ask:
    """One prompt, checked: one engine request per sample."""

    request_id: str
    text: str | None
    requests: list[EngineCoreRequest]


class LLM:
    """A loaded model. `model` is a folder, a .gguf file, a Hugging Face id or a built-in's name."""

    def __init__(self, model: str, **engine_args: Any) -> None:
        """Load the model; `engine_args` are the flags of `serve` (`max_model_len=4096`).

        Raises ConfigError, ModelError or MemoryBudgetError when that cannot work.
        """
        args = parse_engine_args(engine_args)
        _log_to_stderr()
        self._loop = LoopThread("LLM")
        try:
            self._engine = self._loop.run(
                start_async_llm(model, args, client_factory=_client_that_logs_to_stderr)
            )
        except BaseException:
            self._loop.close(asyncio.sleep(0))
            raise
        self._ids = itertools.count()
        # Also runs when the object is forgotten and when the interpreter ends.
        self._end = weakref.finalize(self, _end, self._loop, self._engine, os.getpid())

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def shutdown(self) -> None:
        """End the EngineCore process; returns when it is gone. Harmless the second time."""
        self._end()

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Free memory until `wake_up`: the KV cache, and of a GPU the weights, which go to the
        host's memory (level 1); level 2 drops them, and they are read again. Prompts that are asked
        meanwhile raise EngineAsleepError.
        """
        self._loop.run(self._engine.llm.sleep(level, mode))

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Bring back all, or of `weights` and `kv_cache` what `tags` name."""
        self._loop.run(self._engine.llm.wake_up(tags or ()))

    def get_default_sampling_params(self) -> SamplingParams:
        """What is used for prompts without settings: the model's generation_config.json."""
        settings: dict[str, Any] = dict(self._engine.sampling_defaults)
        return SamplingParams(**settings)

    def generate(
        self, prompts: Prompts, sampling_params: Settings = None, *, use_tqdm: bool = False
    ) -> list[RequestOutput]:
        """One result per prompt, in their order; all prompts run together.

        `sampling_params` is one for all or one per prompt. `use_tqdm` shows progress on stderr.
        A prompt that cannot be run raises RequestError before any is started.
        """
        asked = [text_or_ids(prompt) for prompt in as_list(prompts)]
        return self._answer(asked, sampling_params, add_special_tokens=True, progress=use_tqdm)

    def chat(
        self,
        messages: Sequence[ChatMessage] | Sequence[Sequence[ChatMessage]],
        sampling_params: Settings = None,
        *,
        use_tqdm: bool = False,
        add_generation_prompt: bool = True,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Like `generate`, for one conversation or several, through the model's chat template."""
        prompts: list[str | list[int]] = [
            self._render(chat, add_generation_prompt, chat_template_kwargs)
            for chat in as_conversations(messages)
        ]
        # Chat templates write the special tokens themselves.
        return self._answer(prompts, sampling_params, add_special_tokens=False, progress=use_tqdm)

    def embed(
        self, prompts: Prompts, *, dimensions: int | None = None, prompt_name: str | None = None
    ) -> list[EmbeddingRequestOutput]:
        """One vector per prompt, pooled as `pooler_config` says; `dimensions` shortens it.

        Before each text stands what the model's files have for `prompt_name`, or by default.
        """
        config = self._engine.config
        before = TextPrompt.named(
            config.model.sentence, prompt_name, self._engine.llm.tokenizer, config.tasks.pooling
        )
        requests = [
            self._make_pooling(index, text_or_ids(prompt), before)
            for index, prompt in enumerate(as_list(prompts))
        ]
        check_dimensions(dimensions, config.model.embedding_size)
        found = self._run(embed_all(self._engine.llm, requests))
        return [
            EmbeddingRequestOutput(
                request_id=request.request_id,
                outputs=EmbeddingOutput(embedding.shortened(dimensions).floats),
                prompt_token_ids=request.prompt_token_ids,
                num_cached_tokens=embedding.num_cached_tokens,
            )
            for request, embedding in zip(requests, found, strict=True)
        ]

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False while requests run."""
        return self._run(self._engine.llm.reset_prefix_cache())

    # ---- inside --------------------------------------------------------------------------------

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if not self._end.alive:
            work.close()
            raise EngineDeadError("This LLM was shut down; make a new one.")
        return self._loop.run(work)

    def _answer(
        self,
        prompts: list[str | list[int]],
        settings: Settings,
        *,
        add_special_tokens: bool,
        progress: bool,
    ) -> list[RequestOutput]:
        params = self._one_per_prompt(settings, len(prompts))
        asks = [
            self._make_ask(index, prompt, params[index], add_special_tokens=add_special_tokens)
            for index, prompt in enumerate(prompts)
        ]
        counter = _Progress(len(asks), is_shown=progress)
        return self._run(all_together(_answer_one(self._engine, ask, counter) for ask in asks))

    def _one_per_prompt(self, settings: Settings, count: int) -> list[SamplingParams]:
        if settings is None:
            settings = self.get_default_sampling_params()
        if isinstance(settings, SamplingParams):
            settings = [settings] * count
        if len(settings) != count:
            raise RequestError(
                f"{count} prompts came with {len(settings)} sampling_params; give one for all, or "
                "one per prompt.",
                param="sampling_params",
            )
        return [uniform_params(params) for params in settings]

    def _make_ask(
        self, index: int, prompt: str | list[int], params: SamplingParams, *,
        add_special_tokens: bool,
    ) -> _Ask:  # fmt: skip
        llm, request_id = self._engine.llm, str(next(self._ids))
        text = prompt if isinstance(prompt, str) else None
        ids = (
            llm.tokenizer.encode(prompt, add_special_tokens=add_special_tokens)
            if isinstance(prompt, str)
            else prompt
        )
        try:
            params = tokenize_bad_words(llm.tokenizer, params.validate())
            requests = [
                llm.input_processor.process(
                    f"{request_id}-{sample}",
                    ids,
                    params.for_sample(sample),
                    arrival_time=time.time(),
                )
                for sample in range(params.n)
            ]
        except RequestError as error:
            raise RequestError(
                f"prompt {index}: {error}", param=error.param, code=error.code
            ) from error
        return _Ask(request_id, text, requests)

    def _make_pooling(
        self, index: int, prompt: str | list[int], before: TextPrompt
    ) -> EngineCoreRequest:
        llm, pooling = self._engine.llm, self._engine.config.tasks.pooling
        if isinstance(prompt, str):
            pooling = before.pooling
            prompt = llm.tokenizer.encode(before.before(prompt), add_special_tokens=True)
        return llm.input_processor.process_pooling(
            str(next(self._ids)),
            prompt,
            pooling,
            arrival_time=time.time(),
            prompt_param=f"prompt {index}",
        )

    def _render(
        self,
        messages: Sequence[ChatMessage],
        add_generation_prompt: bool,
        template_args: dict[str, Any] | None,
    ) -> str:
        template = self._engine.chat_template
        if template is None:
            raise RequestError(
                "This model has no chat template, so it cannot chat; use generate(), or give "
                "LLM(..., chat_template=FILE).",
                param="messages",
            )
        return template.render(
            [{**message, "content": plain_text(message.get("content"))} for message in messages],
            add_generation_prompt=add_generation_prompt,
            template_args=template_args,
        )


def _end(loop: LoopThread, engine: StartedEngine, owner_pid: int) -> None:
    # A forked child has a copy of the object, but neither the thread nor the process.
    if os.getpid() == owner_pid:
        loop.close(engine.shutdown())


def _client_that_logs_to_stderr(config: EngineConfig) -> EngineCoreClient:
    from engine.core.replicas import create_client

    return create_client(config, log_fd=2)


def _log_to_stderr() -> None:
    """Show the engine's lines unless the program has set up logging; stdout is the script's."""
    if not logging.getLogger("engine").hasHandlers():
        setup_logging("LLM", stream=sys.stderr)


# ---- in the event loop ---------------------------------------------------------------------------


class _Progress:
    """A line on stderr that counts the prompts that are done."""

    def __init__(self, total: int, *, is_shown: bool) -> None:
        self._total = total
        self._done = 0
        self._is_shown = is_shown

    def advance(self) -> None:
        """One more prompt is done."""
        self._done += 1
        if self._is_shown:
            end = "\n" if self._done == self._total else ""
            print(f"\rPrompts done: {self._done}/{self._total}", end=end, file=sys.stderr)


async def _answer_one(engine: StartedEngine, ask: _Ask, progress: _Progress) -> RequestOutput:
    parent = ParentRequest(len(ask.requests))
    answers = await asyncio.gather(
        *(_whole_answer(engine, request, parent) for request in ask.requests)
    )
    progress.advance()
    return request_output(ask.request_id, ask.text, ask.requests[0].prompt_token_ids, answers)


async def _whole_answer(
    engine: StartedEngine, request: EngineCoreRequest, parent: ParentRequest
) -> outputs.RequestDelta:
    whole: outputs.RequestDelta | None = None
    async with aclosing(engine.llm.generate(request, parent)) as pieces:
        async for piece in pieces:
            if whole is None:
                whole = piece
            else:
                whole.absorb(piece)
    assert whole is not None, "the last output of a request is always sent"
    return whole
