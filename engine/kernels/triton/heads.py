"""Queries and keys before attention: norms of heads, rotary positions, and the write to the cache.

A cache page is [block, key or value, offset in block, kv head, head_dim], as the reference set has
it; uint8 pages hold float8 e4m3. Twins: `ReferenceKernels.rotary`, `rms_norm` and `store_kv`.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.fp8 import from_e4m3, to_e4m3
from engine.kernels.triton.runtime import Launch


@dataclass(frozen=True, slots=True)
class Rotation:
    """What is done to the heads of queries and keys of one layer; all float32.

    `angles` is [positions, 2 x head_dim]: cosines, then sines whose first half is negated.
    """

    angles: Tensor
    q_norm: Tensor | None = None  # [head_dim]
    k_norm: Tensor | None = None
    eps: float = 0.0


@triton.jit
def within(dims, HEAD_DIM: tl.constexpr, DIM_PAD: tl.constexpr):
    """Mask of the numbers of a head, constant where there is no padding: that saves registers."""
    if HEAD_DIM == DIM_PAD:
        return tl.full(dims.shape, 1, tl.int1)
    return dims < HEAD_DIM


@triton.jit
def rotated(
    heads,  # pointers to the heads' first numbers, [N, 1]
    is_head,  # [N, 1]
    norm,
    angles,  # the row of the position
    eps,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    """[N, DIM_PAD] float32 of N heads at one position, normed where HAS_NORM; zeros beyond."""
    dims = tl.arange(0, DIM_PAD)[None, :]
    inside = within(dims, HEAD_DIM, DIM_PAD)
    # The other half of a rotated pair is read once more rather than exchanged between threads.
    swapped = tl.where(dims < HEAD_DIM // 2, dims + HEAD_DIM // 2, dims - HEAD_DIM // 2)
    mask = is_head & inside
    x = tl.load(heads + dims, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(heads + swapped, mask=mask, other=0.0).to(tl.float32)
    if HAS_NORM:
        factor = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / HEAD_DIM + eps)
        x = x * factor[:, None] * tl.load(norm + dims, mask=inside, other=0.0)
        y = y * factor[:, None] * tl.load(norm + swapped, mask=inside, other=0.0)
    cosines = tl.load(angles + dims, mask=inside, other=0.0)
    return x * cosines + y * tl.load(angles + HEAD_DIM + dims, mask=inside, other=0.0)


@triton.jit
def stored(x, scale, cache, FP8: tl.constexpr):
    """float32 as the cache holds it; with FP8 what `scale` divides, as bits."""
    if FP8:
        return to_e4m3(x / scale)
    return x.to(cache.dtype.element_ty)


@triton.jit
def widened(values, like, FP8: tl.constexpr):
    """Cached values as numbers of the format of the tensor `like` points to; scales come later."""
    if FP8:
        return from_e4m3(values).to(like.dtype.element_ty)
    return values.to(like.dtype.element_ty)


@triton.jit
def rotate_and_store_kernel(
    qkv,  # [T, Q_HEADS + 2 x KV_HEADS, HEAD_DIM], queries and keys rotated in place
    cache,  # one page of the cache
    slots,  # [T] int32: block x BLOCK_SIZE + offset; negative: nothing is stored
    positions,  # [T] int32
    angles,
    q_norm,
    k_norm,
    eps,
    k_scale,
    v_scale,
    qkv_stride,  # numbers from one token to the next
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_ROTARY: tl.constexpr,  # without it keys and values are stored as they are
    HAS_Q_NORM: tl.constexpr,
    HAS_K_NORM: tl.constexpr,
    FP8: tl.constexpr,
):
    """One program per token and head: queries first (with HAS_ROTARY), then keys, then values."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    if not HAS_ROTARY:
        head += Q_HEADS
    dims = tl.arange(0, DIM_PAD)[None, :]
    inside = within(dims, HEAD_DIM, DIM_PAD)
    heads = qkv + token * qkv_stride + head * HEAD_DIM + tl.zeros((1, 1), tl.int32)
    is_head = tl.full((1, 1), 1, tl.int1)
    slot = tl.load(slots + token).to(tl.int64)
    block = slot // BLOCK_SIZE
    offset = slot % BLOCK_SIZE
    if head < Q_HEADS:
        if HAS_ROTARY:
            angle = angles + tl.load(positions + token).to(tl.int64) * 2 * HEAD_DIM
            query = rotated(heads, is_head, q_norm, angle, eps, HEAD_DIM, DIM_PAD, HAS_Q_NORM)
            tl.debug_barrier()
            tl.store(heads + dims, query.to(qkv.dtype.element_ty), mask=inside)
    elif head < Q_HEADS + KV_HEADS:
        if HAS_ROTARY:
            angle = angles + tl.load(positions + token).to(tl.int64) * 2 * HEAD_DIM
            key = rotated(heads, is_head, k_norm, angle, eps, HEAD_DIM, DIM_PAD, HAS_K_NORM)
            tl.debug_barrier()
            tl.store(heads + dims, key.to(qkv.dtype.element_ty), mask=inside)
            key = key.to(qkv.dtype.element_ty).to(tl.float32)
        else:
            key = tl.load(heads + dims, mask=inside, other=0.0).to(tl.float32)
        if slot >= 0:
            row = (block * 2 * BLOCK_SIZE + offset) * KV_HEADS + head - Q_HEADS
            place = cache + row * HEAD_DIM + dims
            tl.store(place, stored(key, k_scale, cache, FP8), mask=inside)
    else:
        if slot >= 0:
            value = tl.load(heads + dims, mask=inside, other=0.0).to(tl.float32)
            row = ((block * 2 + 1) * BLOCK_SIZE + offset) * KV_HEADS + head - Q_HEADS - KV_HEADS
            place = cache + row * HEAD_DIM + dims
            tl.store(place, stored(value, v_scale, cache, FP8), mask=inside)


def rotate_and_store(
    launch: Launch,
    qkv: Tensor,
    page: Tensor,
    slots: Tensor,
    positions: Tensor,
    rotation: Rotation | None,
    scales: tuple[float, float] = (1.0, 1.0),
) -> None:
    """Rotate queries and keys of `qkv` [T, heads, head_dim] in place, write keys and values.

    Without a rotation they are only written. `scales` divide keys and values of an fp8 cache.
    """
    block_size, kv_heads, head_dim = page.shape[2:]
    q_heads = qkv.shape[1] - 2 * kv_heads
    nothing = qkv  # for what is not read
    q_norm = rotation.q_norm if rotation else None
    k_norm = rotation.k_norm if rotation else None
    launch(
        rotate_and_store_kernel,
        (len(qkv), (q_heads if rotation else 0) + 2 * kv_heads),
        qkv,
        page,
        slots,
        positions,
        rotation.angles if rotation else nothing,
        nothing if q_norm is None else q_norm,
        nothing if k_norm is None else k_norm,
        rotation.eps if rotation else 0.0,
        *scales,
        qkv.stride(0),
        Q_HEADS=q_heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        DIM_PAD=triton.next_power_of_2(head_dim),
        BLOCK_SIZE=block_size,
        HAS_ROTARY=rotation is not None,
        HAS_Q_NORM=q_norm is not None,
        HAS_K_NORM=k_norm is not None,
        FP8=page.element_size() == 1,
        num_warps=1,
    )
