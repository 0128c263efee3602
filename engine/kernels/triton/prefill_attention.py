"""Causal attention of chunks of any length over the paged cache, many sequences in one launch.

Queries are rotated and the chunk's keys and values stored before. Twin:
`ReferenceKernels.attention`.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.decode_attention import (
    AttentionShape,
    capped,
    divided,
    dot_dtype,
    keys_per_tile,
    weighed,
    with_sinks,
)
from engine.kernels.triton.heads import widened, within
from engine.kernels.triton.runtime import Launch
from engine.kernels.triton.targets import Tiles


@triton.jit
def prefill_attention_kernel(
    out,  # [T, Q heads x HEAD_DIM]
    qkv,  # [T, Q heads + 2 x KV_HEADS, HEAD_DIM]
    cache,  # one page; its layout is in `heads`
    tables,  # [S, table_width[0]] int32
    table_width,
    contexts,  # [S] int32: tokens of the sequence, the chunk included
    query_start,  # [S + 1] int32: the first token of each chunk
    tile_sequences,  # [tiles] int32: the sequence of each tile of queries
    tile_starts,  # [tiles] int32: its first token, counted from the chunk's
    sinks,  # [Q heads] (HAS_SINKS)
    scale,  # of the scores, that of fp8 keys included
    cap,
    v_scale,
    window,  # keys that are seen, the token's own included; 0: all
    qkv_stride,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PAD: tl.constexpr,  # the power of two from GROUP on
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,  # query rows of a tile: tokens x GROUP_PAD
    KEYS: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    FP8: tl.constexpr,
    DOT: tl.constexpr,
):
    """One program per tile of queries and kv head; all query heads of a group read a key once."""
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    sequence = tl.load(tile_sequences + tile).to(tl.int64)
    first = tl.load(tile_starts + tile)
    chunk_start = tl.load(query_start + sequence)
    chunk = tl.load(query_start + sequence + 1) - chunk_start
    computed = tl.load(contexts + sequence) - chunk

    rows = tl.arange(0, ROWS)
    places = first + rows // GROUP_PAD
    lanes = rows % GROUP_PAD
    is_row = (places < chunk) & (lanes < GROUP)
    positions = computed + places
    dims = tl.arange(0, DIM_PAD)[None, :]
    inside = within(dims, HEAD_DIM, DIM_PAD)
    tokens = (chunk_start + places).to(tl.int64)
    heads = kv_head * GROUP + lanes
    starts = qkv + tokens * qkv_stride + heads * HEAD_DIM
    mask = is_row[:, None] & inside
    query = tl.load(starts[:, None] + dims, mask=mask, other=0.0).to(DOT)

    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    sum_of_values = tl.zeros((ROWS, DIM_PAD), tl.float32)
    last_place = tl.minimum(first + ROWS // GROUP_PAD, chunk)
    end_key = computed + last_place
    first_key = tl.where(window > 0, tl.maximum(computed + first - window + 1, 0), 0)
    reach = tl.where(window > 0, window, 0x7FFFFFFF).to(tl.uint32)
    width = tl.load(table_width).to(tl.int64)
    table = tables + sequence * width
    for number in range(first_key // KEYS, tl.cdiv(end_key, KEYS)):
        keys = number * KEYS + tl.arange(0, KEYS)
        is_key = (keys >= first_key) & (keys < end_key)
        blocks = tl.load(table + keys // BLOCK_SIZE, mask=is_key, other=0).to(tl.int64)
        cached = (blocks * 2 * BLOCK_SIZE + keys % BLOCK_SIZE) * KV_HEADS + kv_head
        pointers = cache + cached[:, None] * HEAD_DIM + dims
        is_read = is_key[:, None] & inside
        key = widened(tl.load(pointers, mask=is_read, other=0), qkv, FP8)
        scores = tl.dot(query, tl.trans(key.to(DOT)), input_precision="ieee")
        scores = capped(scores * scale, cap, HAS_CAP)
        # One comparison for both ends, for a key ahead is very far behind without its sign.
        behind = (positions[:, None] - keys[None, :]).to(tl.uint32, bitcast=True)
        scores = tl.where(behind < reach, scores, float("-inf"))
        largest, weights, shrink = weighed(scores, largest)
        values = pointers + BLOCK_SIZE * KV_HEADS * HEAD_DIM
        value = widened(tl.load(values, mask=is_read, other=0), qkv, FP8)
        weights_in = weights.to(qkv.dtype.element_ty).to(DOT)
        product = tl.dot(weights_in, value.to(DOT), input_precision="ieee")
        sum_of_values = sum_of_values * shrink[:, None] + product
        total = total * shrink + tl.sum(weights, axis=1)

    total = with_sinks(total, largest, sinks, heads, is_row, HAS_SINKS)
    result = divided(sum_of_values, total) * v_scale
    target = out + tokens * (KV_HEADS * GROUP * HEAD_DIM) + heads * HEAD_DIM
    tl.store(target[:, None] + dims, result.to(out.dtype.element_ty), mask=mask)


@dataclass(frozen=True, slots=True)
class PrefillTiles:
    """The chunks of a step, cut into tiles of queries."""

    sequences: Tensor  # [tiles] int32
    starts: Tensor  # [tiles] int32
    query_start: Tensor  # [S + 1] int32
    contexts: Tensor
    tables: Tensor
    table_width: Tensor


def prefill_attention(
    launch: Launch,
    out: Tensor,
    qkv: Tensor,
    page: Tensor,
    chunks: PrefillTiles,
    shape: AttentionShape,
    tiles: Tiles,
) -> Tensor:
    """Attention of the chunks' tokens of `qkv` [T, heads, head_dim] into their rows of `out`."""
    block_size, kv_heads, head_dim = page.shape[2:]
    group = shape.q_heads // kv_heads
    launch(
        prefill_attention_kernel,
        (len(chunks.sequences), kv_heads),
        out,
        qkv,
        page,
        chunks.tables,
        chunks.table_width,
        chunks.contexts,
        chunks.query_start,
        chunks.sequences,
        chunks.starts,
        qkv if shape.sinks is None else shape.sinks,
        shape.scale * shape.kv_scales[0],
        shape.soft_cap or 0.0,
        shape.kv_scales[1],
        shape.window or 0,
        qkv.stride(0),
        KV_HEADS=kv_heads,
        GROUP=group,
        GROUP_PAD=triton.next_power_of_2(group),
        HEAD_DIM=head_dim,
        DIM_PAD=max(16, triton.next_power_of_2(head_dim)),
        BLOCK_SIZE=block_size,
        ROWS=rows_per_tile(tiles, group, head_dim),
        KEYS=keys_per_tile(tiles.prefill_keys, head_dim),
        HAS_CAP=shape.soft_cap is not None,
        HAS_SINKS=shape.sinks is not None,
        FP8=page.element_size() == 1,
        DOT=dot_dtype(qkv.dtype),
        num_warps=tiles.prefill_warps,
        num_stages=tiles.stages,
    )
    return out


def rows_per_tile(tiles: Tiles, group: int, head_dim: int) -> int:
    """Query rows of a tile: tokens x the group's heads, padded to a power of two."""
    padded: int = triton.next_power_of_2(group)
    return max(keys_per_tile(tiles.prefill_rows, head_dim), padded)


def tokens_per_tile(tiles: Tiles, group: int, head_dim: int) -> int:
    """Tokens of a chunk that one program computes."""
    return rows_per_tile(tiles, group, head_dim) // int(triton.next_power_of_2(group))
