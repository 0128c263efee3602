"""Rows of the embedding table as the start of the residual stream. Twin: F.embedding, scaled."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.runtime import Launch


@triton.jit
def embed_kernel(
    residual,  # [T, hidden] float32
    token_ids,  # [T] int32
    table,  # [vocabulary, hidden]
    sampled,  # [rows] int64: what the step before was given (HAS_SAMPLED)
    scale,
    hidden,
    HAS_SAMPLED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program per token and BLOCK columns: residual = scale * table[token]."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < hidden
    row = tl.load(token_ids + token).to(tl.int64)
    if HAS_SAMPLED:
        # -1 - r stands for the token of row r, which may be none: then any row will do.
        drawn = tl.load(sampled + tl.maximum(-1 - row, 0), mask=row < 0, other=0)
        row = tl.where(row < 0, tl.maximum(drawn, 0), row)
    values = tl.load(table + row * hidden + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(residual + token * hidden + columns, values * scale, mask=inside)


def embed(
    launch: Launch,
    residual: Tensor,
    token_ids: Tensor,
    table: Tensor,
    scale: float,
    block: int,
    warps: int,
    sampled: Tensor | None = None,
) -> Tensor:
    """Fill `residual` [T, hidden] with the scaled rows of `token_ids` [T].

    With `sampled` a negative id -1 - r is that of its row r.
    """
    tokens, hidden = residual.shape
    launch(
        embed_kernel,
        (tokens, triton.cdiv(hidden, block)),
        residual,
        token_ids,
        table,
        token_ids if sampled is None else sampled,
        scale,
        hidden,
        HAS_SAMPLED=sampled is not None,
        BLOCK=block,
        num_warps=warps,
    )
    return residual
