"""Products with weights of 8 bits, which torch has for some GPUs and some shapes only.

int8 numbers are multiplied as such; fp8 weights become the inputs' format on the way from memory,
so that they need no GPU that multiplies fp8. Twins: `engine.kernels.scaled_weights`.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.scaled_weights import BLOCK, ScaledWeight
from engine.kernels.triton.decode_attention import dot_dtype
from engine.kernels.triton.fp8 import from_e4m3
from engine.kernels.triton.runtime import Launch, is_interpreted
from engine.kernels.triton.targets import Target

_NOTHING = tl.constexpr(1e-30)
_ROUNDER = tl.constexpr(12582912.0)  # 1.5 x 2**23: beside it a float32 has no digits behind the dot


@triton.jit
def quantize_rows_kernel(
    numbers,  # [T, depth] int8
    scales,  # [T] float32
    x,  # [T, depth], any float format
    depth,
    SIZE: tl.constexpr,
):
    """One program per token: its largest value becomes 127, the rest is rounded, ties to even."""
    row = tl.program_id(0).to(tl.int64) * depth
    largest = tl.full((), 0.0, tl.float32)
    for first in range(0, depth, SIZE):
        columns = first + tl.arange(0, SIZE)
        values = tl.load(x + row + columns, mask=columns < depth, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.max(tl.abs(values), axis=0))
    scale = tl.where(largest > _NOTHING, largest / 127.0, 0.0)
    divisor = tl.where(scale > 0.0, scale, 1.0)
    for first in range(0, depth, SIZE):
        columns = first + tl.arange(0, SIZE)
        values = tl.load(x + row + columns, mask=columns < depth, other=0.0).to(tl.float32)
        values = tl.where(scale > 0.0, tl.div_rn(values, divisor), 0.0)
        rounded = (values + _ROUNDER) - _ROUNDER
        tl.store(numbers + row + columns, rounded.to(tl.int8), mask=columns < depth)
    tl.store(scales + tl.program_id(0), scale)


@triton.jit
def int8_product_kernel(
    out,  # [T, width]
    x,  # [T, depth] int8
    x_scales,  # [T] float32
    weight,  # [width, depth] int8
    scales,  # [width] float32
    bias,  # [width] (HAS_BIAS)
    tokens,
    width,
    depth,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    DOT: tl.constexpr,  # int8, or a float format, whose sums are float32
):
    """One program per ROWS tokens and COLUMNS outputs; whole numbers until the last step."""
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    lines = tl.arange(0, DEPTH)
    x_places = x + rows.to(tl.int64)[:, None] * depth + lines[None, :]
    weight_places = weight + columns.to(tl.int64)[None, :] * depth + lines[:, None]
    is_row, is_column = rows < tokens, columns < width
    total = tl.zeros((ROWS, COLUMNS), tl.int32 if tl.int8 == DOT else tl.float32)
    for first in range(0, depth, DEPTH):
        inside = first + lines < depth
        a = tl.load(x_places + first, mask=is_row[:, None] & inside[None, :], other=0)
        b = tl.load(weight_places + first, mask=is_column[None, :] & inside[:, None], other=0)
        total += tl.dot(a.to(DOT), b.to(DOT), out_dtype=total.dtype)
    x_scale = tl.load(x_scales + rows, mask=is_row, other=0.0)
    scale = tl.load(scales + columns, mask=is_column, other=0.0)
    result = total.to(tl.float32) * x_scale[:, None] * scale[None, :]
    if HAS_BIAS:
        result += tl.load(bias + columns, mask=is_column, other=0.0).to(tl.float32)[None, :]
    target = out + rows.to(tl.int64)[:, None] * width + columns[None, :]
    tl.store(target, result.to(out.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


@triton.jit
def fp8_product_kernel(
    out,  # [T, width]
    x,  # [T, depth], a float format
    weight,  # [width, depth] uint8, the bits of e4m3
    scales,  # float32: [width], or [blocks of width, scale_columns]
    bias,  # [width] (HAS_BIAS)
    tokens,
    width,
    depth,
    scale_columns,  # blocks of depth (SCALE_BLOCK > 0)
    HAS_BIAS: tl.constexpr,
    SCALE_BLOCK: tl.constexpr,  # rows and columns that share a scale; 0: a scale per output
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,  # divides SCALE_BLOCK
    DOT: tl.constexpr,
):
    """One program per ROWS tokens and COLUMNS outputs; sums in float32."""
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    lines = tl.arange(0, DEPTH)
    x_places = x + rows.to(tl.int64)[:, None] * depth + lines[None, :]
    weight_places = weight + columns.to(tl.int64)[None, :] * depth + lines[:, None]
    is_row, is_column = rows < tokens, columns < width
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, depth, DEPTH):
        inside = first + lines < depth
        a = tl.load(x_places + first, mask=is_row[:, None] & inside[None, :], other=0.0)
        bits = tl.load(weight_places + first, mask=is_column[None, :] & inside[:, None], other=0)
        b = from_e4m3(bits).to(x.dtype.element_ty)
        part = tl.dot(a.to(DOT), b.to(DOT), input_precision="ieee")
        if SCALE_BLOCK:
            places = scales + columns // SCALE_BLOCK * scale_columns + first // SCALE_BLOCK
            part = part * tl.load(places, mask=is_column, other=0.0)[None, :]
        total += part
    if not SCALE_BLOCK:
        total = total * tl.load(scales + columns, mask=is_column, other=0.0)[None, :]
    if HAS_BIAS:
        total += tl.load(bias + columns, mask=is_column, other=0.0).to(tl.float32)[None, :]
    target = out + rows.to(tl.int64)[:, None] * width + columns[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


def quantize_rows(
    launch: Launch, numbers: Tensor, scales: Tensor, x: Tensor, size: int, warps: int
) -> None:
    """[T, depth] `x` as int8 `numbers` and float32 `scales` [T]."""
    tokens, depth = x.shape
    launch(quantize_rows_kernel, (tokens,), numbers, scales, x, depth, SIZE=size, num_warps=warps)


def int8_product(
    launch: Launch,
    out: Tensor,
    x: Tensor,
    x_scales: Tensor,
    weight: ScaledWeight,
    bias: Tensor | None,
    target: Target,
) -> Tensor:
    """Int8 [T, depth] and its scales times the weight into `out` [T, width]."""
    tokens, depth = x.shape
    width, tiles = len(weight.numbers), target.tiles.product(tokens)
    launch(
        int8_product_kernel,
        (triton.cdiv(width, tiles.columns), triton.cdiv(tokens, tiles.rows)),
        out,
        x,
        x_scales,
        weight.numbers,
        weight.scales,
        weight.scales if bias is None else bias,
        tokens,
        width,
        depth,
        HAS_BIAS=bias is not None,
        ROWS=tiles.rows,
        COLUMNS=tiles.columns,
        DEPTH=tiles.depth,
        DOT=_integer_dot(target),
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )
    return out


def fp8_product(
    launch: Launch,
    out: Tensor,
    x: Tensor,
    weight: ScaledWeight,
    bias: Tensor | None,
    target: Target,
) -> Tensor:
    """[T, depth] of a float format times the weight into `out` [T, width]."""
    tokens, depth = x.shape
    width, tiles = len(weight.numbers), target.tiles.product(tokens)
    assert BLOCK % tiles.depth == 0, "a step of the loop has one scale"
    launch(
        fp8_product_kernel,
        (triton.cdiv(width, tiles.columns), triton.cdiv(tokens, tiles.rows)),
        out,
        x,
        weight.numbers,
        weight.scales,
        weight.scales if bias is None else bias,
        tokens,
        width,
        depth,
        weight.scales.shape[1] if weight.has_blocks else 1,
        HAS_BIAS=bias is not None,
        SCALE_BLOCK=BLOCK if weight.has_blocks else 0,
        ROWS=tiles.rows,
        COLUMNS=tiles.columns,
        DEPTH=tiles.depth,
        DOT=dot_dtype(x.dtype),
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )
    return out


def _integer_dot(target: Target) -> Any:
    """What int8 numbers are multiplied as."""
    if is_interpreted():
        return tl.float32  # numpy's integer products are slow
    # Triton has no such instruction for the GPUs that do not multiply bfloat16 either.
    return tl.int8 if target.half_dtype == "bf16" else tl.float16
