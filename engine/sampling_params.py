"""SamplingParams: how the next token of one request is chosen and when the request ends."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from engine.errors import RequestError

MAX_LOGPROBS = 20
"""Default of --max-logprobs: most likely tokens that a request may ask for at each position."""

MAX_WORD_CHARS = 1024
"""Longest stop string and bad word: each new token is compared with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """What the output must look like: exactly one field is set (names of vLLM's class).

    `json` is a JSON schema as text, `grammar` a Lark or EBNF grammar as llguidance reads it.
    `compiled_bytes` is the memory that it takes once compiled, 0 where nobody has measured it.
    """

    json: str | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    compiled_bytes: int = dataclasses.field(default=0, compare=False)

    @property
    def num_chars(self) -> int:
        """Length of what was asked for."""
        texts = (self.json, self.regex, self.grammar, *(self.choice or ()))
        return sum(len(text) for text in texts if text)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling settings of one request (field names and ranges as in vLLM's sampling_params.py).

    `n` samples are drawn from one prompt, each a request of its own to the engine. `temperature` 0
    is greedy. `top_k` 0 or -1 is off. `max_tokens` None means the rest of the context. `seed` None
    draws from the engine's own generator. `stop` strings are matched in the API server,
    `stop_token_ids` in the scheduler. `repetition_penalty` counts prompt and output, the other two
    penalties count output only. `logit_bias` is (token id, bias) pairs, and empty
    `allowed_token_ids` allow every token. `bad_words` become `bad_words_token_ids` in the front
    end. `logprobs` 0 asks for the chosen token's log probability only, None for none.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    structured_outputs: StructuredOutputsParams | None = None

    @property
    def is_greedy(self) -> bool:
        """True when the next token is the argmax."""
        return self.temperature < 1e-5

    @property
    def has_penalties(self) -> bool:
        """True when the tokens seen so far change the next one's logits."""
        return bool(self.repetition_penalty != 1 or self.presence_penalty or self.frequency_penalty)

    def validate(self) -> SamplingParams:
        """Return self, or raise RequestError naming the field, its value and its limit."""
        _require(self.n >= 1, "n", self.n, "at least 1")
        _require(0.0 <= self.temperature <= 2.0, "temperature", self.temperature, "in [0, 2]")
        _require(0.0 < self.top_p <= 1.0, "top_p", self.top_p, "in (0, 1]")
        _require(self.top_k >= -1, "top_k", self.top_k, "0 or -1 (off), or at least 1")
        _require(0.0 <= self.min_p <= 1.0, "min_p", self.min_p, "in [0, 1]")
        self._validate_edits()
        self._validate_end()
        check_logprobs("logprobs", self.logprobs)
        check_logprobs("prompt_logprobs", self.prompt_logprobs)
        if self.seed is not None:
            _require(-(2**63) <= self.seed < 2**63, "seed", self.seed, "a 64-bit integer")
        is_useful = self.n == 1 or not self.is_greedy
        limit = "1 with temperature 0 (all samples would be equal)"
        _require(is_useful, "n", self.n, limit)
        return self

    def for_sample(self, index: int) -> SamplingParams:
        """Settings of one of the n samples: the first keeps the seed, the others get neighbours."""
        if self.seed is None or index == 0:
            return self
        seed = (self.seed + index + 2**63) % 2**64 - 2**63  # wrapped into 64 bits
        return dataclasses.replace(self, seed=seed)

    def _validate_edits(self) -> None:
        # The bounds keep a penalised logit finite; vLLM's rule is "greater than 0".
        penalty = self.repetition_penalty
        _require(0.01 <= penalty <= 100, "repetition_penalty", penalty, "in [0.01, 100]")
        for name, value in (
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ):
            _require(-2 <= value <= 2, name, value, "in [-2, 2]")
        for token_id, bias in self.logit_bias:
            if not -100 <= bias <= 100:
                limit = f"in [-100, 100] for every token (here {token_id})"
                _require(False, "logit_bias", bias, limit)
        _require(len(self.bad_words) <= 128, "bad_words", len(self.bad_words), "at most 128 words")
        _require(all(self.bad_words), "bad_words", "''", "non-empty strings")
        _require_short("bad_words", self.bad_words)

    def _validate_end(self) -> None:
        _require(self.min_tokens >= 0, "min_tokens", self.min_tokens, "at least 0")
        if self.max_tokens is not None:
            _require(self.max_tokens >= 1, "max_tokens", self.max_tokens, "at least 1")
            limit = f"at most max_tokens={self.max_tokens}"
            _require(self.min_tokens <= self.max_tokens, "min_tokens", self.min_tokens, limit)
        _require(len(self.stop) <= 4, "stop", len(self.stop), "at most 4 strings")
        _require(all(self.stop), "stop", "''", "non-empty strings")
        _require_short("stop", self.stop)


def check_logprobs(param: str, number: int | None, limit: int | None = None) -> None:
    """Refuse a negative number of tokens per position, and one above the limit."""
    if number is not None:
        allowed = "at least 0" if limit is None else f"in [0, {limit}]"
        _require(number >= 0 and (limit is None or number <= limit), param, number, allowed)


def _require_short(param: str, texts: tuple[str, ...]) -> None:
    longest = max(map(len, texts), default=0)
    limit = f"strings of at most {MAX_WORD_CHARS} characters"
    _require(longest <= MAX_WORD_CHARS, param, f"one of {longest}", limit)


def _require(holds: bool, param: str, value: object, limit: str) -> None:
    # NaN compares false everywhere, so it is refused by the range checks without a case of its own.
    if not holds:
        raise RequestError(f"{param} must be {limit}, got {value}.", param=param)
