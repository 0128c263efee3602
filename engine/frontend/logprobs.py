"""Log probabilities with their tokens as text, per position. Response formats are the server's."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from engine.frontend.tokenizer import Tokenizer
from engine.messages import PackedLogprobs, TokenLogprobs

_UNKNOWN = math.nan  # nothing predicts the first token of a prompt


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
        """The text of the token, under the name that vLLM's class has."""
        return self.token


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """The token at one position and the most likely ones there, best first."""

    chosen: Logprob
    top: list[Logprob]


class LogprobsList(Sequence[PositionLogprobs]):
    """Positions of one request; their text is looked up when they are read.

    Kept as plain numbers: as objects, those of one long prompt took gigabytes, and making them held
    up every other request.
    """

    __slots__ = ("_ends", "_ids", "_ranks", "_tokenizer", "_values")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids = array("i")
        self._values = array("f")
        self._ranks = array("i")
        self._ends = array("q")  # of each position, in the first two

    @classmethod
    def of_tokens(cls, tokenizer: Tokenizer, entries: Iterable[TokenLogprobs]) -> LogprobsList:
        """The logprobs of generated tokens, one entry per position."""
        found = cls(tokenizer)
        for entry in entries:
            found._add(entry)
        return found

    @classmethod
    def of_prompt(
        cls, tokenizer: Tokenizer, first_token_id: int, entries: PackedLogprobs
    ) -> LogprobsList:
        """Those of a whole prompt; `entries` begin with its second token."""
        found = cls(tokenizer)
        found._add(TokenLogprobs([first_token_id], [_UNKNOWN], 0))
        found._ids.frombytes(entries.token_ids)
        found._values.frombytes(entries.logprobs)
        found._ranks.frombytes(entries.ranks)
        width = entries.width
        found._ends.extend(range(1 + width, 1 + (len(entries) + 1) * width, width or 1))
        return found

    def extend(self, newer: LogprobsList) -> None:
        """Append the positions of a later output."""
        start = len(self._ids)
        self._ids.extend(newer._ids)
        self._values.extend(newer._values)
        self._ranks.extend(newer._ranks)
        self._ends.extend(start + end for end in newer._ends)

    def copy(self) -> LogprobsList:
        """One that can grow on its own."""
        twin = LogprobsList(self._tokenizer)
        twin.extend(self)
        return twin

    def emptied(self) -> LogprobsList:
        """Without any position, which is not the same as not having been asked for."""
        return LogprobsList(self._tokenizer)

    @property
    def num_entries(self) -> int:
        """Tokens of all positions together."""
        return len(self._ids)

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[PositionLogprobs]:
        return map(self._position, range(len(self)))

    @overload
    def __getitem__(self, index: int) -> PositionLogprobs: ...

    @overload
    def __getitem__(self, index: slice) -> list[PositionLogprobs]: ...

    def __getitem__(self, index: int | slice) -> PositionLogprobs | list[PositionLogprobs]:
        if isinstance(index, slice):
            return [self._position(place) for place in range(len(self))[index]]
        return self._position(range(len(self))[index])

    def _add(self, entry: TokenLogprobs) -> None:
        self._ids.extend(entry.token_ids)
        self._values.extend(entry.logprobs)
        self._ranks.append(entry.rank)
        self._ends.append(len(self._ids))

    def _position(self, place: int) -> PositionLogprobs:
        start = self._ends[place - 1] if place else 0
        part = slice(start, self._ends[place])
        count = part.stop - start
        ranks = (self._ranks[place], *range(1, count))
        chosen, *top = map(self._spell, self._ids[part], self._values[part], ranks)
        return PositionLogprobs(chosen, top)

    def _spell(self, token_id: int, value: float, rank: int) -> Logprob:
        known = None if math.isnan(value) else value
        return Logprob(token_id, self._tokenizer.token_bytes(token_id), known, rank)
