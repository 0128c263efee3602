"""Top-k, top-p, min-p and the draw in one launch, with the rules of `engine.worker.sampler`.

Thresholds are found bit by bit, without a sort: what ties with the last kept token is kept, too.
Twin: `engine.worker.sampler.sample`.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.step_batch import NO_TOKEN
from engine.kernels.triton.runtime import Launch

_NO_TOKEN = tl.constexpr(NO_TOKEN)
_BEYOND = tl.constexpr(2**31 - 1)


@triton.jit
def ordered(x):
    """float32 -> uint32 of the same order; both zeros are one number."""
    bits = (x + 0.0).to(tl.uint32, bitcast=True)
    flipped = tl.where((bits >> 31) != 0, 0xFFFFFFFF, 0x80000000).to(tl.uint32)
    return bits ^ flipped


@triton.jit
def kept_mass(start, vocabulary, heat, peak, threshold, BLOCK: tl.constexpr):
    """The sum of the weights of a row's tokens that reach the threshold."""
    total = tl.full((), 0.0, tl.float32)
    for first in range(0, vocabulary, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        x = tl.load(start + columns, mask=columns < vocabulary, other=float("-inf")) / heat
        weights = tl.where(ordered(x) >= threshold, tl.exp(x - peak), 0.0)
        total += tl.sum(tl.where(columns < vocabulary, weights, 0.0), axis=0)
    return total


@triton.jit
def sample_kernel(
    tokens,  # [R] int64
    logits,  # [R, vocabulary] float32
    temperature,  # [R] float32; 0: the most likely token
    top_k,  # [R] int32; 0: off
    top_p,  # [R] float32
    min_p,  # [R] float32
    uniforms,  # [R] float32 in [0, 1)
    vocabulary,
    BLOCK: tl.constexpr,
):
    """One program per row: the largest logit, two thresholds, then the draw in vocabulary order."""
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * vocabulary
    heat = tl.load(temperature + row)
    is_greedy = heat <= 0.0
    heat = tl.where(is_greedy, 1.0, heat)
    peak = tl.full((), float("-inf"), tl.float32)
    broken = tl.full((), 0, tl.int32)
    for first in range(0, vocabulary, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        x = tl.load(start + columns, mask=columns < vocabulary, other=float("-inf")) / heat
        broken = tl.maximum(broken, tl.max((x != x).to(tl.int32), axis=0))
        peak = tl.maximum(peak, tl.max(tl.where(x != x, float("-inf"), x), axis=0))

    lowest = tl.load(min_p + row)
    floor = tl.where(
        lowest > 0.0, peak + tl.log(tl.where(lowest > 0.0, lowest, 1.0)), -float("inf")
    )
    # A greedy row keeps what is as large as its largest logit, and draws the first of that.
    threshold = ordered(tl.where(is_greedy, peak, floor))
    count = tl.load(top_k + row)
    if (count > 0) & (count < vocabulary) & (not is_greedy):
        kept = tl.full((), 0, tl.uint32)
        for bit in range(32):
            candidate = kept | (tl.full((), 0x80000000, tl.uint32) >> bit)
            above = tl.full((), 0, tl.int32)
            for first in range(0, vocabulary, BLOCK):
                columns = first + tl.arange(0, BLOCK)
                inside = columns < vocabulary
                x = tl.load(start + columns, mask=inside, other=float("-inf")) / heat
                # What min-p drops is -inf to top-k.
                key = ordered(tl.where(x < floor, float("-inf"), x))
                above += tl.sum((inside & (key >= candidate)).to(tl.int32), axis=0)
            kept = tl.where(above >= count, candidate, kept)
        threshold = tl.maximum(threshold, kept)

    total = kept_mass(start, vocabulary, heat, peak, threshold, BLOCK)

    share = tl.load(top_p + row)
    if (share < 1.0) & (not is_greedy):
        kept = tl.full((), 0, tl.uint32)
        for bit in range(32):
            candidate = kept | (tl.full((), 0x80000000, tl.uint32) >> bit)
            mass = tl.full((), 0.0, tl.float32)
            for first in range(0, vocabulary, BLOCK):
                columns = first + tl.arange(0, BLOCK)
                x = tl.load(start + columns, mask=columns < vocabulary, other=float("-inf")) / heat
                key = ordered(x)
                is_kept = (key >= threshold) & (key >= candidate) & (columns < vocabulary)
                mass += tl.sum(tl.where(is_kept, tl.exp(x - peak), 0.0), axis=0)
            kept = tl.where((mass >= share * total) & (mass > 0.0), candidate, kept)
        threshold = tl.maximum(threshold, kept)
        total = kept_mass(start, vocabulary, heat, peak, threshold, BLOCK)

    wanted = tl.where(is_greedy, 0.0, tl.load(uniforms + row)) * total
    before = tl.full((), 0.0, tl.float32)
    token = tl.full((), _BEYOND, tl.int32)
    last = tl.full((), _NO_TOKEN, tl.int32)
    for first in range(0, vocabulary, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        inside = columns < vocabulary
        x = tl.load(start + columns, mask=inside, other=float("-inf")) / heat
        weights = tl.where(inside & (ordered(x) >= threshold), tl.exp(x - peak), 0.0)
        reached = before + tl.cumsum(weights, axis=0)
        is_hit = (reached > wanted) & (weights > 0.0)
        token = tl.minimum(token, tl.min(tl.where(is_hit, columns, _BEYOND), axis=0))
        last = tl.maximum(last, tl.max(tl.where(weights > 0.0, columns, _NO_TOKEN), axis=0))
        before += tl.sum(weights, axis=0)
    # The sums of two passes may differ in their last digits: the last kept token is drawn then.
    token = tl.where(token == _BEYOND, last, token)
    token = tl.where(broken > 0, _NO_TOKEN, token)
    tl.store(tokens + row, token.to(tl.int64))


def sample(
    launch: Launch,
    tokens: Tensor,
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    uniforms: Tensor,
    block: int,
    warps: int,
) -> Tensor:
    """Token [R] of each row of `logits` [R, vocabulary] float32, which stay as they are."""
    rows, vocabulary = logits.shape
    launch(
        sample_kernel,
        (rows,),
        tokens,
        logits,
        temperature,
        top_k,
        top_p,
        min_p,
        uniforms,
        vocabulary,
        BLOCK=block,
        num_warps=warps,
    )
    return tokens
