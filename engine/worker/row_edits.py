"""What of one request changes its logits, kept per row of the InputBatch. numpy only.

Applying it to a step's logits is `logit_edits`' business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.kernels.step_batch import IntArray
from engine.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class BadWords:
    """Token sequences that must not appear in the output.

    `prefixes` [words, longest - 1] holds all but the last token of each, aligned right; -1 stands
    where a word is shorter.
    """

    prefixes: IntArray
    last: IntArray

    @classmethod
    def of(cls, words: Sequence[Sequence[int]]) -> BadWords:
        width = max(len(word) for word in words) - 1
        prefixes = np.full((len(words), width), -1, dtype=np.int64)
        for row, word in enumerate(words):
            prefixes[row, width - len(word) + 1 :] = word[:-1]
        return cls(prefixes, np.array([word[-1] for word in words], dtype=np.int64))

    def forbidden_after(self, output: NDArray[np.int32]) -> IntArray:
        """Tokens that would complete a word behind `output`."""
        width = self.prefixes.shape[1]
        tail = np.full(width, -2, dtype=np.int64)  # equal to no token and to no padding
        known = min(width, len(output))
        if known:
            tail[width - known :] = output[-known:]
        matches = ((self.prefixes == tail) | (self.prefixes == -1)).all(axis=1)
        return np.asarray(self.last[matches])


@dataclass(frozen=True, slots=True)
class RowEdits:
    """The edits of one request that do not depend on counts."""

    bias_ids: IntArray
    bias: NDArray[np.float32]
    allowed: IntArray  # empty: every token
    bad_words: BadWords | None
    stop_ids: IntArray  # forbidden below min_tokens

    @classmethod
    def of(cls, params: SamplingParams, eos_token_ids: Sequence[int]) -> RowEdits | None:
        """The edits of a request; None when it has none."""
        early = (*eos_token_ids, *params.stop_token_ids) if params.min_tokens else ()
        if not (early or params.logit_bias or params.allowed_token_ids) and not (
            params.bad_words_token_ids
        ):
            return None
        words = params.bad_words_token_ids
        return cls(
            bias_ids=np.array([token for token, _ in params.logit_bias], dtype=np.int64),
            bias=np.array([bias for _, bias in params.logit_bias], dtype=np.float32),
            allowed=np.unique(np.array(params.allowed_token_ids, dtype=np.int64)),
            bad_words=BadWords.of(words) if words else None,
            stop_ids=np.array(early, dtype=np.int64),
        )


class SeenTokens:
    """The distinct tokens of each penalised row, and how often each was generated.

    Arrays have `max_rows` rows; np.zeros takes no memory until a row is used.
    """

    def __init__(self, max_rows: int, max_tokens: int) -> None:
        self._ids = np.zeros((max_rows, max_tokens), dtype=np.int32)
        self._counts = np.zeros((max_rows, max_tokens), dtype=np.int32)
        self._num = np.zeros(max_rows, dtype=np.int64)

    def start(self, row: int, token_ids: Sequence[int], num_prompt_tokens: int) -> None:
        """Begin a row with what is known of the request; prompt tokens count 0 times."""
        ids, place = np.unique(np.array(token_ids, dtype=np.int32), return_inverse=True)
        self._num[row] = len(ids)
        self._ids[row, : len(ids)] = ids
        self._counts[row, : len(ids)] = np.bincount(place[num_prompt_tokens:], minlength=len(ids))

    def add(self, rows: IntArray, token_ids: IntArray) -> None:
        """Count one generated token per row."""
        num = self._num[rows]
        places = np.arange(int(num.max()) + 1)
        is_here = (self._ids[rows, : len(places)] == token_ids[:, None]) & (places < num[:, None])
        is_new = ~is_here.any(axis=1)
        place = np.where(is_new, num, is_here.argmax(axis=1))
        self._ids[rows, place] = token_ids
        self._counts[rows, place] = np.where(is_new, 1, self._counts[rows, place] + 1)
        self._num[rows] += is_new

    def of(self, rows: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Flat (number in `rows`, token id, count) of all seen tokens."""
        num = self._num[rows]
        places = np.arange(int(num.max()))
        mask = places < num[:, None]
        ids = self._ids[rows, : len(places)][mask].astype(np.int64)
        counts = self._counts[rows, : len(places)][mask].astype(np.int64)
        return np.repeat(np.arange(len(rows)), num), ids, counts
