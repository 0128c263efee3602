"""Log probabilities with their tokens as text, per position. Response formats are the server's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.frontend.tokenizer import Tokenizer
from engine.messages import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token, the bytes that it stands for, its log probability and its rank (from 1).

    `logprob` is None for the first token of a prompt, which nothing predicts.
    """

    token_id: int
    raw: bytes
    logprob: float | None
    rank: int

    @property
    def token(self) -> str:
        r"""The token as text; bytes that are no whole character are written as `\xe2`."""
        return self.raw.decode("utf-8", "backslashreplace")

    @property
    def decoded_token(self) -> str:
        """vLLM's name of `token`."""
        return self.token


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """The token at one position and the most likely ones there, best first."""

    chosen: Logprob
    top: list[Logprob]


def spell(tokenizer: Tokenizer, entries: Sequence[TokenLogprobs]) -> list[PositionLogprobs]:
    """The entries with their tokens' text."""
    return [_position(tokenizer, entry) for entry in entries]


def spell_prompt(
    tokenizer: Tokenizer, first_token_id: int, entries: Sequence[TokenLogprobs]
) -> list[PositionLogprobs]:
    """One position per prompt token, the first included."""
    first = Logprob(first_token_id, tokenizer.token_bytes(first_token_id), None, 0)
    return [PositionLogprobs(first, []), *spell(tokenizer, entries)]


def _position(tokenizer: Tokenizer, entry: TokenLogprobs) -> PositionLogprobs:
    ranks = (entry.rank, *range(1, len(entry.token_ids)))
    chosen, *top = (
        Logprob(token_id, tokenizer.token_bytes(token_id), logprob, rank)
        for token_id, logprob, rank in zip(entry.token_ids, entry.logprobs, ranks, strict=True)
    )
    return PositionLogprobs(chosen, top)
