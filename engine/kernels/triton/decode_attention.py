"""Attention of one new token per sequence over the paged cache, keys split over programs.

The usual step needs nothing before it: the kernel norms and rotates its heads, attends to the new
key and value from registers and writes them to the cache. Twin: `ReferenceKernels.attention`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.activation import tanh
from engine.kernels.triton.heads import Rotation, rotated, stored, widened, within
from engine.kernels.triton.runtime import Launch, is_interpreted
from engine.kernels.triton.targets import Tiles

_LOG2_E = tl.constexpr(1.4426950408889634)
_SMALLEST_DOT = 16  # rows of a matrix instruction


@dataclass(frozen=True, slots=True)
class DecodeScratch:
    """Where splits leave their parts; `counters` are zero before and after each launch."""

    parts: Tensor  # [sequences x kv_heads x splits x group, head_dim + 2] float32, or more
    counters: Tensor  # [sequences x kv_heads] int32

    @classmethod
    def allocate(
        cls, sequences: int, q_heads: int, kv_heads: int, head_dim: int, splits: int, device: Any
    ) -> DecodeScratch:
        """For up to so many sequences; nothing is needed where keys are not split."""
        rows = sequences * q_heads * splits if splits > 1 else 1
        return cls(
            torch.empty(rows, head_dim + 2, dtype=torch.float32, device=device),
            torch.zeros(sequences * kv_heads, dtype=torch.int32, device=device),
        )

    def has_room(
        self, sequences: int, q_heads: int, kv_heads: int, head_dim: int, splits: int
    ) -> bool:
        """Whether a launch of this size may use it."""
        rows, width = self.parts.shape
        is_enough = rows >= sequences * q_heads * splits and width == head_dim + 2
        return splits == 1 or (is_enough and len(self.counters) >= sequences * kv_heads)


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What all launches of one layer's attention share."""

    q_heads: int
    scale: float
    window: int | None = None
    soft_cap: float | None = None
    kv_scales: tuple[float, float] = (1.0, 1.0)  # of an fp8 cache
    sinks: Tensor | None = None  # [q heads], scores of one more key whose value is zero


@triton.jit
def capped(scores, cap, HAS_CAP: tl.constexpr):
    """Scores in the unit of exp2, pressed softly below `cap` before."""
    if HAS_CAP:
        scores = cap * tanh(scores / cap)
    return scores * _LOG2_E


@triton.jit
def weighed(scores, largest):
    """The largest score so far, the weights of these, and what the sums before shrink by."""
    new_largest = tl.maximum(largest, tl.max(scores, axis=1))
    # Where nothing was seen yet, -inf - -inf is no number.
    base = tl.where(new_largest == float("-inf"), 0.0, new_largest)
    return new_largest, tl.exp2(scores - base[:, None]), tl.exp2(largest - base)


@triton.jit
def with_sinks(total, largest, sinks, heads, is_head, HAS_SINKS: tl.constexpr):
    """The sum of the weights [rows] with that of each row's sink."""
    if HAS_SINKS:
        sink = tl.load(sinks + heads, mask=is_head, other=0.0).to(tl.float32) * _LOG2_E
        # Rows of padding have seen nothing: exp2 of infinity is never divided by.
        total = total + tl.where(is_head, tl.exp2(sink - largest), 0.0)
    return total


@triton.jit
def divided(sum_of_values, total):
    """[rows, dims] by [rows]; rows of padding, which have seen nothing, become zeros."""
    return sum_of_values / tl.where(total == 0.0, 1.0, total)[:, None]


@triton.jit
def decode_attention_kernel(
    out,  # [tokens, Q heads x HEAD_DIM]
    qkv,  # [tokens, Q heads + 2 x KV_HEADS, HEAD_DIM]
    cache,  # one page; its layout is in `heads`
    tables,  # [.., table_width[0]] int32
    first_row,  # the row of sequence 0 in `tables`
    table_width,  # int32 on the device, so that a recorded graph fits longer tables
    contexts,  # [S] int32: tokens of the sequence, this one included; 0: no sequence
    slots,  # [tokens] int32, where the new key and value belong (FUSED)
    sequences,  # [programs] int32: the sequence of each program (not UNIFORM)
    query_start,  # [S + 1] int32: its token (not UNIFORM)
    angles,
    q_norm,
    k_norm,
    sinks,  # [Q heads] (HAS_SINKS)
    parts,  # sums of values, then the largest score and the sum of the weights
    counters,
    eps,
    scale,  # of the scores, k_scale included
    cap,
    k_scale,
    v_scale,
    window,  # keys that are seen, the token's own included; 0: all
    qkv_stride,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # query heads per kv head
    GROUP_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    KEYS: tl.constexpr,  # per step of the loop
    SPLITS: tl.constexpr,
    UNIFORM: tl.constexpr,  # sequence i is token i
    FUSED: tl.constexpr,  # norm, rotate and store here
    HAS_Q_NORM: tl.constexpr,
    HAS_K_NORM: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    FP8: tl.constexpr,
    DOT: tl.constexpr,  # format of the products' inputs
):
    """One program per sequence, kv head and split of its keys; the last split adds them all up."""
    number = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    if UNIFORM:
        sequence = number.to(tl.int64)
        token = sequence
    else:
        sequence = tl.load(sequences + number).to(tl.int64)
        token = tl.load(query_start + sequence).to(tl.int64)
    context = tl.load(contexts + sequence)
    if context == 0:
        return
    groups = tl.arange(0, GROUP_PAD)[:, None]
    dims = tl.arange(0, DIM_PAD)[None, :]
    is_group = groups < GROUP
    inside = within(dims, HEAD_DIM, DIM_PAD)
    heads = qkv + token * qkv_stride + (kv_head * GROUP + groups) * HEAD_DIM
    if FUSED:
        angle = angles + (context - 1).to(tl.int64) * 2 * HEAD_DIM
        query = rotated(heads, is_group, q_norm, angle, eps, HEAD_DIM, DIM_PAD, HAS_Q_NORM).to(
            qkv.dtype.element_ty
        )
        stored_keys = context - 1
    else:
        query = tl.load(heads + dims, mask=is_group & inside, other=0.0)
        stored_keys = context
    largest = tl.full((GROUP_PAD,), float("-inf"), tl.float32)
    total = tl.zeros((GROUP_PAD,), tl.float32)
    sum_of_values = tl.zeros((GROUP_PAD, DIM_PAD), tl.float32)

    first_key = tl.where(window > 0, tl.maximum(context - window, 0), 0)
    first_tile = first_key // KEYS
    end_tile = tl.cdiv(context, KEYS)
    per_split = tl.cdiv(end_tile - first_tile, SPLITS)
    start = first_tile + split * per_split
    end = tl.minimum(start + per_split, end_tile)
    width = tl.load(table_width).to(tl.int64)
    table = tables + (first_row + sequence) * width
    for tile in range(start, end):
        keys = tile * KEYS + tl.arange(0, KEYS)
        is_key = (keys >= first_key) & (keys < stored_keys)
        blocks = tl.load(table + keys // BLOCK_SIZE, mask=is_key, other=0).to(tl.int64)
        rows = (blocks * 2 * BLOCK_SIZE + keys % BLOCK_SIZE) * KV_HEADS + kv_head
        places = cache + rows[:, None] * HEAD_DIM + dims
        is_read = is_key[:, None] & inside
        key = widened(tl.load(places, mask=is_read, other=0), qkv, FP8)
        scores = tl.dot(query.to(DOT), tl.trans(key.to(DOT)), input_precision="ieee")
        scores = capped(scores * scale, cap, HAS_CAP)
        scores = tl.where(is_key[None, :], scores, float("-inf"))
        largest, weights, shrink = weighed(scores, largest)
        values = places + BLOCK_SIZE * KV_HEADS * HEAD_DIM
        value = widened(tl.load(values, mask=is_read, other=0), qkv, FP8)
        weights_in = weights.to(qkv.dtype.element_ty).to(DOT)
        product = tl.dot(weights_in, value.to(DOT), input_precision="ieee")
        sum_of_values = sum_of_values * shrink[:, None] + product
        total = total * shrink + tl.sum(weights, axis=1)

    if FUSED:  # noqa: SIM102  (known when it is compiled, unlike the next)
        if (start < end) & (end == end_tile):
            one = tl.zeros((1, 1), tl.int32)
            is_one = tl.full((1, 1), 1, tl.int1)
            own = qkv + token * qkv_stride + (KV_HEADS * GROUP + kv_head) * HEAD_DIM + one
            angle = angles + (context - 1).to(tl.int64) * 2 * HEAD_DIM
            new_key = rotated(own, is_one, k_norm, angle, eps, HEAD_DIM, DIM_PAD, HAS_K_NORM)
            new_key = new_key.to(qkv.dtype.element_ty).to(tl.float32)
            new_value = tl.load(own + KV_HEADS * HEAD_DIM + dims, mask=inside, other=0.0)
            kept_key = stored(new_key, k_scale, cache, FP8)
            kept_value = stored(new_value.to(tl.float32), v_scale, cache, FP8)
            slot = tl.load(slots + token).to(tl.int64)
            block = slot // BLOCK_SIZE
            row = (block * 2 * BLOCK_SIZE + slot % BLOCK_SIZE) * KV_HEADS + kv_head
            place = cache + row * HEAD_DIM + dims
            tl.store(place, kept_key, mask=inside)
            tl.store(place + BLOCK_SIZE * KV_HEADS * HEAD_DIM, kept_value, mask=inside)
            # Seen as the next steps will see it: rounded by the cache.
            seen_key = widened(kept_key, qkv, FP8).to(tl.float32)
            seen_value = widened(kept_value, qkv, FP8).to(tl.float32)
            score = tl.sum(query.to(tl.float32) * seen_key, axis=1)
            score = capped(score * scale, cap, HAS_CAP)
            new_largest = tl.maximum(largest, score)
            weight = tl.exp2(score - new_largest)
            shrink = tl.exp2(largest - new_largest)
            rounded = weight.to(qkv.dtype.element_ty).to(tl.float32)
            sum_of_values = sum_of_values * shrink[:, None] + rounded[:, None] * seen_value
            total = total * shrink + weight
            largest = new_largest

    target = out + token * (KV_HEADS * GROUP * HEAD_DIM) + (kv_head * GROUP + groups) * HEAD_DIM
    lanes = tl.arange(0, GROUP_PAD)
    q_heads = kv_head * GROUP + lanes
    if SPLITS == 1:
        total = with_sinks(total, largest, sinks, q_heads, lanes < GROUP, HAS_SINKS)
        result = divided(sum_of_values, total) * v_scale
        tl.store(target + dims, result.to(out.dtype.element_ty), mask=is_group & inside)
    else:
        PART: tl.constexpr = HEAD_DIM + 2
        pair = number * KV_HEADS + kv_head
        row = (pair.to(tl.int64) * SPLITS + split) * GROUP
        places = parts + (row + groups) * PART
        tl.store(places + dims, sum_of_values, mask=is_group & inside)
        ends = parts + (row + lanes) * PART + HEAD_DIM
        tl.store(ends, largest, mask=lanes < GROUP)
        tl.store(ends + 1, total, mask=lanes < GROUP)
        tl.debug_barrier()
        arrived = tl.atomic_add(counters + pair, 1, sem="acq_rel")
        if arrived == SPLITS - 1:
            tl.debug_barrier()
            largest = tl.full((GROUP_PAD,), float("-inf"), tl.float32)
            total = tl.zeros((GROUP_PAD,), tl.float32)
            sum_of_values = tl.zeros((GROUP_PAD, DIM_PAD), tl.float32)
            for other in range(SPLITS):
                row = (pair.to(tl.int64) * SPLITS + other) * GROUP
                ends = parts + (row + lanes) * PART + HEAD_DIM
                peak = tl.load(ends, mask=lanes < GROUP, other=float("-inf"), cache_modifier=".cg")
                part = tl.load(ends + 1, mask=lanes < GROUP, other=0.0, cache_modifier=".cg")
                sums = parts + (row + groups) * PART + dims
                values_of = tl.load(sums, mask=is_group & inside, other=0.0, cache_modifier=".cg")
                new_largest = tl.maximum(largest, peak)
                base = tl.where(new_largest == float("-inf"), 0.0, new_largest)
                shrink = tl.exp2(largest - base)
                grow = tl.exp2(peak - base)
                sum_of_values = sum_of_values * shrink[:, None] + values_of * grow[:, None]
                total = total * shrink + part * grow
                largest = new_largest
            total = with_sinks(total, largest, sinks, q_heads, lanes < GROUP, HAS_SINKS)
            result = divided(sum_of_values, total) * v_scale
            tl.store(target + dims, result.to(out.dtype.element_ty), mask=is_group & inside)
            tl.store(counters + pair, 0)


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """Which sequences decode. `sequences` None: all of them, and sequence i is token i."""

    count: int
    sequences: Tensor | None  # [count] int32
    query_start: Tensor | None
    contexts: Tensor
    tables: Tensor  # [.., width] int32, the rows of all KV groups
    table_width: Tensor  # [1] int32
    first_row: int = 0  # of this group, in `tables`


def decode_attention(
    launch: Launch,
    out: Tensor,
    qkv: Tensor,
    page: Tensor,
    rows: DecodeRows,
    shape: AttentionShape,
    scratch: DecodeScratch,
    tiles: Tiles,
    splits: int,
    slots: Tensor | None = None,
    rotation: Rotation | None = None,
) -> Tensor:
    """Attention of the decoding tokens of `qkv` [T, heads, head_dim] into their rows of `out`.

    With `slots` and `rotation` keys and values are normed, rotated and stored on the way; no other
    sequence of the step may read the blocks that are written.
    """
    block_size, kv_heads, head_dim = page.shape[2:]
    group = shape.q_heads // kv_heads
    nothing = qkv
    q_norm = rotation.q_norm if rotation else None
    k_norm = rotation.k_norm if rotation else None
    launch(
        decode_attention_kernel,
        (rows.count, kv_heads, splits),
        out,
        qkv,
        page,
        rows.tables,
        rows.first_row,
        rows.table_width,
        rows.contexts,
        nothing if slots is None else slots,
        nothing if rows.sequences is None else rows.sequences,
        nothing if rows.query_start is None else rows.query_start,
        rotation.angles if rotation else nothing,
        nothing if q_norm is None else q_norm,
        nothing if k_norm is None else k_norm,
        nothing if shape.sinks is None else shape.sinks,
        scratch.parts,
        scratch.counters,
        rotation.eps if rotation else 0.0,
        shape.scale * shape.kv_scales[0],
        shape.soft_cap or 0.0,
        *shape.kv_scales,
        shape.window or 0,
        qkv.stride(0),
        KV_HEADS=kv_heads,
        GROUP=group,
        GROUP_PAD=max(_SMALLEST_DOT, triton.next_power_of_2(group)),
        HEAD_DIM=head_dim,
        DIM_PAD=max(_SMALLEST_DOT, triton.next_power_of_2(head_dim)),
        BLOCK_SIZE=block_size,
        KEYS=keys_per_tile(tiles.decode_keys, head_dim),
        SPLITS=splits,
        UNIFORM=rows.sequences is None,
        FUSED=rotation is not None,
        HAS_Q_NORM=q_norm is not None,
        HAS_K_NORM=k_norm is not None,
        HAS_CAP=shape.soft_cap is not None,
        HAS_SINKS=shape.sinks is not None,
        FP8=page.element_size() == 1,
        DOT=dot_dtype(qkv.dtype),
        num_warps=tiles.decode_warps,
        num_stages=tiles.stages,
    )
    return out


def keys_per_tile(keys: int, head_dim: int) -> int:
    """Half the keys for heads of more than 128 numbers, whose tiles are twice as wide."""
    return keys if head_dim <= 128 else max(_SMALLEST_DOT, keys // 2)


def dot_dtype(dtype: torch.dtype) -> Any:
    """Of the inputs of matrix instructions; the interpreter multiplies no bfloat16."""
    if is_interpreted():
        return tl.float32
    return {
        torch.bfloat16: tl.bfloat16,
        torch.float16: tl.float16,
        torch.float32: tl.float32,
    }[dtype]
