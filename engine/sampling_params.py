"""SamplingParams: how the next token of one request is chosen and when the request ends."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling settings of one request (field names and ranges as in vLLM's sampling_params.py).

    `temperature` 0 is greedy. `top_k` 0 or -1 is off. `max_tokens` None means the rest of the
    context. `seed` None draws from the engine's own generator. `stop` strings are matched in the
    API server, `stop_token_ids` in the scheduler.
    """

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

    @property
    def is_greedy(self) -> bool:
        """True when the next token is the argmax."""
        return self.temperature < 1e-5

    def validate(self) -> SamplingParams:
        """Return self, or raise RequestError naming the field, its value and its limit."""
        _require(0.0 <= self.temperature <= 2.0, "temperature", self.temperature, "in [0, 2]")
        _require(0.0 < self.top_p <= 1.0, "top_p", self.top_p, "in (0, 1]")
        _require(self.top_k >= -1, "top_k", self.top_k, "0 or -1 (off), or at least 1")
        _require(0.0 <= self.min_p <= 1.0, "min_p", self.min_p, "in [0, 1]")
        _require(self.min_tokens >= 0, "min_tokens", self.min_tokens, "at least 0")
        if self.max_tokens is not None:
            _require(self.max_tokens >= 1, "max_tokens", self.max_tokens, "at least 1")
            limit = self.max_tokens
            _require(
                self.min_tokens <= limit,
                "min_tokens",
                self.min_tokens,
                f"at most max_tokens={limit}",
            )
        if self.seed is not None:
            _require(-(2**63) <= self.seed < 2**63, "seed", self.seed, "a 64-bit integer")
        _require(len(self.stop) <= 4, "stop", len(self.stop), "at most 4 strings")
        _require(all(self.stop), "stop", "''", "non-empty strings")
        return self


def _require(holds: bool, param: str, value: object, limit: str) -> None:
    # NaN compares false everywhere, so it is refused by the range checks without a case of its own.
    if not holds:
        raise RequestError(f"{param} must be {limit}, got {value}.", param=param)
