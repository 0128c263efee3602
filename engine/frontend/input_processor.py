"""InputProcessor: checks one prompt against the model's limits and makes the EngineCoreRequest.

Everything that can be wrong with a request is refused here, before EngineCore sees it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from engine.errors import CONTEXT_CODE, RequestError
from engine.frontend.tokenizer import Tokenizer
from engine.lora_adapters import LoraRequest
from engine.messages import EngineCoreRequest, ImageInput
from engine.pooling_params import PoolingParams
from engine.sampling_params import MAX_LOGPROBS, SamplingParams, check_logprobs


class InputProcessor:
    """Limits of one loaded model. `max_model_len` is the length that EngineCore reported.

    `max_logprobs` -1 allows the whole vocabulary. `default_max_tokens` is for requests that bring
    no limit; without it they may fill the context. `max_chars_per_token` bounds the text that is
    worth tokenising; None is no bound.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        max_model_len: int,
        eos_token_ids: Sequence[int],
        max_logprobs: int = MAX_LOGPROBS,
        default_max_tokens: int | None = None,
        max_chars_per_token: int | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self._max_logprobs = vocab_size if max_logprobs == -1 else min(max_logprobs, vocab_size)
        self._default_max_tokens = default_max_tokens
        self._max_chars = (
            None if max_chars_per_token is None else max_chars_per_token * max_model_len
        )
        self._eos_token_ids = tuple(dict.fromkeys(eos_token_ids))

    def process(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        arrival_time: float,
        prompt_param: str = "prompt",
        logprobs_param: str = "logprobs",
        cache_salt: str | None = None,
        priority: int = 0,
        lora: LoraRequest | None = None,
        message_digests: tuple[bytes, ...] = (),
        images: tuple[ImageInput, ...] = (),
    ) -> EngineCoreRequest:
        """Return the checked request; RequestError says which limit it breaks."""
        self.check_prompt(prompt_token_ids, prompt_param)
        check_logprobs(logprobs_param, params.logprobs, self._max_logprobs)
        check_logprobs("prompt_logprobs", params.prompt_logprobs, self._max_logprobs)
        return EngineCoreRequest(
            request_id=request_id,
            prompt_token_ids=prompt_token_ids,
            sampling_params=self._resolve(params, len(prompt_token_ids)),
            arrival_time=arrival_time,
            eos_token_ids=() if params.ignore_eos else self._eos_token_ids,
            cache_salt=cache_salt,
            priority=priority,
            lora=lora,
            message_digests=message_digests,
            images=images,
        )

    def process_pooling(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        pooling: PoolingParams,
        *,
        arrival_time: float,
        prompt_param: str = "input",
        cache_salt: str | None = None,
        priority: int = 0,
        lora: LoraRequest | None = None,
    ) -> EngineCoreRequest:
        """The same for a prompt that becomes a vector; it may fill the whole context."""
        self._check_pooled_length(prompt_token_ids, prompt_param)
        self.check_token_ids(prompt_token_ids, prompt_param)
        return EngineCoreRequest(
            request_id=request_id,
            prompt_token_ids=prompt_token_ids,
            sampling_params=SamplingParams(temperature=0.0),
            arrival_time=arrival_time,
            cache_salt=cache_salt,
            priority=priority,
            lora=lora,
            pooling=pooling,
        )

    def _check_pooled_length(self, token_ids: Sequence[int], param: str) -> None:
        if not token_ids:
            raise RequestError(f"{param} is empty; it must hold at least one token.", param=param)
        if len(token_ids) > self.max_model_len:
            raise RequestError(
                f"This model's maximum context length is {self.max_model_len} tokens, but {param} "
                f"has {len(token_ids)} tokens. Shorten it to {self.max_model_len} tokens or fewer.",
                param=param,
                code=CONTEXT_CODE,
            )

    def check_text(self, text: str, param: str, *, at_least: int = 0) -> None:
        """Refuse a text that must have too many tokens, before it is tokenised (as vLLM does).

        `at_least` is a number of characters that is never refused.
        """
        if self._max_chars is None or len(text) <= max(self._max_chars, at_least):
            return
        raise RequestError(
            f"This model's maximum context length is {self.max_model_len} tokens, which is at most "
            f"{self._max_chars} characters, but {param} has {len(text)} characters. Shorten it.",
            param=param,
            code=CONTEXT_CODE,
        )

    def check_prompt(self, token_ids: Sequence[int], param: str) -> None:
        """Refuse an empty prompt, one that fills the context, and ids outside the vocabulary."""
        if not token_ids:
            raise RequestError("The prompt is empty; it must hold at least one token.", param=param)
        if len(token_ids) >= self.max_model_len:
            raise RequestError(
                f"This model's maximum context length is {self.max_model_len} tokens, but the "
                f"prompt has {len(token_ids)} input tokens and leaves no room for output. Shorten "
                f"it to {self.max_model_len - 1} tokens or fewer.",
                param=param,
                code=CONTEXT_CODE,
            )
        self.check_token_ids(token_ids, param)

    def within_context(self, params: SamplingParams, num_prompt_tokens: int) -> SamplingParams:
        """`params` with no higher `max_tokens` than the context has room for behind the prompt.

        Of a prompt that fills the context, and so will be cut or refused, half is left.
        """
        room = self.max_model_len - num_prompt_tokens
        most = room if room > 0 else self.max_model_len // 2
        if params.max_tokens is None:
            if room > 0:
                return params
            most = min(most, self._default_max_tokens or most)
        elif params.max_tokens <= most:
            return params
        return dataclasses.replace(params, max_tokens=most)

    def check_token_ids(self, token_ids: Sequence[int], param: str) -> None:
        """Refuse ids outside the vocabulary."""
        if token_ids and not (min(token_ids) >= 0 and max(token_ids) < self.vocab_size):
            wrong = next(i for i in token_ids if not 0 <= i < self.vocab_size)
            raise RequestError(
                f"{param}: token id {wrong} is out of vocabulary; ids run from 0 to "
                f"{self.vocab_size - 1}.",
                param=param,
            )

    def _resolve(self, params: SamplingParams, num_prompt_tokens: int) -> SamplingParams:
        room = self.max_model_len - num_prompt_tokens
        if params.max_tokens is not None and params.max_tokens > room:
            raise RequestError(
                f"max_tokens {params.max_tokens} is too large: this model's maximum context length "
                f"is {self.max_model_len} tokens and the prompt has {num_prompt_tokens} input "
                f"tokens, so at most {room} can be generated.",
                param="max_tokens",
                code=CONTEXT_CODE,
            )
        default = min(room, self._default_max_tokens or room)
        self.check_token_ids(params.stop_token_ids, "stop_token_ids")
        self.check_token_ids([token_id for token_id, _ in params.logit_bias], "logit_bias")
        self.check_token_ids(params.allowed_token_ids, "allowed_token_ids")
        return dataclasses.replace(
            params,
            max_tokens=default if params.max_tokens is None else params.max_tokens,
            top_k=min(params.top_k, self.vocab_size),
        ).validate()


def tokenize_bad_words(tokenizer: Tokenizer, params: SamplingParams) -> SamplingParams:
    """Fill in `bad_words_token_ids`: each word as a text begins with it, and behind a space."""
    if not params.bad_words:
        return params
    texts = list(dict.fromkeys(text for word in params.bad_words for text in _spellings(word)))
    encoded = map(tuple, tokenizer.encode_long(texts, add_special_tokens=False))
    return dataclasses.replace(
        params, bad_words_token_ids=tuple(dict.fromkeys(ids for ids in encoded if ids))
    )


def _spellings(word: str) -> tuple[str, ...]:
    stripped = word.lstrip()
    return (stripped, f" {stripped}") if stripped else (word,)
