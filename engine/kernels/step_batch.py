"""StepBatch: one model step as flat host arrays, the same for prefill, decode and mixed batches.

It owns no tensors: a torch set copies the arrays to its device, a native set takes their addresses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

IntArray: TypeAlias = NDArray[np.int64]
"""Every index array of a step: one width, so that torch may index with it without a copy."""
FloatArray: TypeAlias = NDArray[np.float32]


def within_runs(lengths: IntArray) -> IntArray:
    """0, 1, .. for each run, one run behind the other."""
    starts = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum())) - np.repeat(starts, lengths)


NO_TOKEN = -1
"""Stands for the most likely token of a row whose logits are no numbers (NaN)."""


@dataclass(frozen=True, slots=True)
class ImageTokens:
    """What the tokens of images in a step are: rows of their own, that see their image whole.

    `embeddings` [I, hidden] stand for their embeddings as they are, without the family's factor.
    """

    embeddings: FloatArray
    rows: IntArray  # [T] of each token in `embeddings`, -1 for one of text
    key_ends: IntArray  # [T] place behind the last key that each token sees


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The tokens of S sequences, one behind the other (T in all), R of which need logits.

    Each of the G groups of KV layers has block tables of its own. `slot_mapping[g, t]` = block id x
    block size + offset, where the KV of token t is written. `block_table` rows are padded with 0,
    the null block; blocks that fell out of a sliding window are not to be read.
    """

    token_ids: IntArray  # [T]; -1 - r: what row r of the step before was given, not known here yet
    positions: IntArray  # [T]
    slot_mapping: IntArray  # [G, T]
    query_start_loc: IntArray  # [S + 1] first token of each sequence, then T
    num_computed: IntArray  # [S] tokens of the sequence whose KV is cached already
    block_table: IntArray  # [G, S, blocks of the longest sequence or more]
    logits_rows: IntArray  # [R] indices into the T tokens
    rows: IntArray | None = None  # [S] of the requests in the runner's batch, until they end
    residual: FloatArray | None = None  # [T, hidden] from the pipeline stage before
    adapters: IntArray | None = (
        None  # [T] slot of each token's adapter, -1 for none; None: no one has
    )
    images: ImageTokens | None = None  # None: each token sees the keys up to its own
