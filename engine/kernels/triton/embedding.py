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
    scale,
    hidden,
    BLOCK: tl.constexpr,
):
    """One program per token and BLOCK columns: residual = scale * table[token]."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < hidden
    row = tl.load(token_ids + token).to(tl.int64)
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
) -> Tensor:
    """Fill `residual` [T, hidden] with the scaled rows of `token_ids` [T]."""
    tokens, hidden = residual.shape
    launch(
        embed_kernel,
        (tokens, triton.cdiv(hidden, block)),
        residual,
        token_ids,
        table,
        scale,
        hidden,
        BLOCK=block,
        num_warps=warps,
    )
    return residual
