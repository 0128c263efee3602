"""The most likely token of each row in one launch. Twin: `kernel_set.most_likely`."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.step_batch import NO_TOKEN
from engine.kernels.triton.runtime import Launch

_NO_TOKEN = tl.constexpr(NO_TOKEN)
_BEYOND = tl.constexpr(2**31 - 1)


@triton.jit
def argmax_kernel(
    tokens,  # [R] int64
    logits,  # [R, vocabulary] float32
    best_values,  # [R, splits] float32, scratch
    best_tokens,  # [R, splits] int32, scratch
    counters,  # [R] int32, zero before and after
    vocabulary,
    SPLITS: tl.constexpr,
    PADDED_SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program per row and part of the vocabulary; the last of a row compares the parts.

    Of equal logits the first token is taken. A row with a NaN gets NO_TOKEN.
    """
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    part = tl.cdiv(vocabulary, SPLITS)
    start = split * part
    end = tl.minimum(start + part, vocabulary)
    best = tl.full((), float("-inf"), tl.float32)
    token = tl.full((), _BEYOND, tl.int32)
    broken = tl.full((), 0, tl.int32)
    for first in range(start, end, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        inside = columns < end
        values = tl.load(logits + row * vocabulary + columns, mask=inside, other=float("-inf"))
        broken = tl.maximum(broken, tl.max((values != values).to(tl.int32), axis=0))
        largest = tl.max(tl.where(values != values, float("-inf"), values), axis=0)
        is_largest = inside & (values == largest)
        place = tl.min(tl.where(is_largest, columns, _BEYOND), axis=0).to(tl.int32)
        is_better = (largest > best) | (token == _BEYOND)
        token = tl.where(is_better, place, token)
        best = tl.where(is_better, largest, best)
    # A NaN anywhere decides the row: it is handed on as a token that no other can beat.
    token = tl.where(broken > 0, _NO_TOKEN, token)
    best = tl.where(broken > 0, float("inf"), best)
    if SPLITS == 1:
        tl.store(tokens + row, token.to(tl.int64))
    else:
        tl.store(best_values + row * SPLITS + split, best)
        tl.store(best_tokens + row * SPLITS + split, token)
        tl.debug_barrier()
        arrived = tl.atomic_add(counters + row, 1, sem="acq_rel")
        if arrived == SPLITS - 1:
            parts = tl.arange(0, PADDED_SPLITS)
            is_part = parts < SPLITS
            places = row * SPLITS + parts
            values = tl.load(
                best_values + places, mask=is_part, other=float("-inf"), cache_modifier=".cg"
            )
            found = tl.load(best_tokens + places, mask=is_part, other=_BEYOND, cache_modifier=".cg")
            largest = tl.max(values, axis=0)
            # NO_TOKEN is less than any token, so it wins against an infinite logit too.
            winner = tl.min(tl.where(values == largest, found, _BEYOND), axis=0)
            tl.store(tokens + row, winner.to(tl.int64))
            tl.store(counters + row, 0)


def argmax(
    launch: Launch,
    tokens: Tensor,
    logits: Tensor,
    scratch: tuple[Tensor, Tensor, Tensor],
    splits: int,
    block: int,
    warps: int,
) -> Tensor:
    """Token [R] of each row of `logits`; `scratch` has room for R rows of `splits` parts."""
    values, places, counters = scratch
    rows, vocabulary = logits.shape
    launch(
        argmax_kernel,
        (rows, splits),
        tokens,
        logits,
        values,
        places,
        counters,
        vocabulary,
        SPLITS=splits,
        PADDED_SPLITS=triton.next_power_of_2(splits),
        BLOCK=block,
        num_warps=warps,
    )
    return tokens
