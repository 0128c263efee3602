"""Gated activations of the feed-forward block. Twin: `ReferenceKernels.activate_and_mul`."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.runtime import Launch


@triton.jit
def tanh(x):
    """Hyperbolic tangent of float32, which overflows nowhere."""
    shrunk = tl.exp(-2.0 * tl.abs(x))
    size = (1.0 - shrunk) / (1.0 + shrunk)
    return tl.where(x < 0.0, -size, size)


@triton.jit
def sigmoid(x):
    """Logistic function of float32, which overflows nowhere."""
    shrunk = tl.exp(-tl.abs(x))
    return tl.where(x < 0.0, shrunk, 1.0) / (1.0 + shrunk)


@triton.jit
def activate_and_mul_kernel(
    out,  # [T, width]
    gate_up,  # [T, 2 x width], gates first
    width,
    IS_GELU: tl.constexpr,  # gelu by tanh, else silu
    BLOCK: tl.constexpr,
):
    """One program per token and BLOCK columns; computed in float32, rounded once."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    start = gate_up + row * 2 * width
    gate = tl.load(start + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(start + width + columns, mask=inside, other=0.0).to(tl.float32)
    if IS_GELU:
        cubic = gate + 0.044715 * gate * gate * gate
        active = 0.5 * gate * (1.0 + tanh(0.7978845608028654 * cubic))
    else:
        active = gate * sigmoid(gate)
    tl.store(out + row * width + columns, (active * up).to(out.dtype.element_ty), mask=inside)


def activate_and_mul(
    launch: Launch, out: Tensor, gate_up: Tensor, activation: str, block: int, warps: int
) -> Tensor:
    """activation(first half) * second half of [T, 2 x width] into `out` [T, width]."""
    tokens, width = out.shape
    launch(
        activate_and_mul_kernel,
        (tokens, triton.cdiv(width, block)),
        out,
        gate_up,
        width,
        IS_GELU=activation == "gelu_pytorch_tanh",
        BLOCK=block,
        num_warps=warps,
    )
    return out
