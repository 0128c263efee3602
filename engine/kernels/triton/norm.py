"""Root-mean-square norms; the kernel adds to the residual stream and norms it in one pass.

Twin: `ReferenceKernels.rms_norm` and `add_rms_norm`.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.runtime import Launch


@triton.jit
def add_rms_norm_kernel(
    out,  # [T, hidden], any float format
    x,  # [T, hidden]: what is added; not read without HAS_X
    residual,  # [T, hidden] float32, updated in place where HAS_X
    weight,  # [hidden] float32
    x_weight,  # [hidden] float32: the norm of x before it is added (HAS_X_NORM)
    eps,
    hidden,
    HAS_X: tl.constexpr,
    HAS_X_NORM: tl.constexpr,
    BLOCK: tl.constexpr,  # the power of two from `hidden` on
):
    """One program per token; sums and factors in float32, rounded once when they are stored."""
    row = tl.program_id(0).to(tl.int64) * hidden
    columns = tl.arange(0, BLOCK)
    inside = columns < hidden
    total = tl.load(residual + row + columns, mask=inside, other=0.0)
    if HAS_X:
        added = tl.load(x + row + columns, mask=inside, other=0.0).to(tl.float32)
        if HAS_X_NORM:
            mean = tl.sum(added * added, axis=0) / hidden
            factors = tl.load(x_weight + columns, mask=inside, other=0.0)
            added = added * (1.0 / tl.sqrt(mean + eps)) * factors
        total += added
        tl.store(residual + row + columns, total, mask=inside)
    mean = tl.sum(total * total, axis=0) / hidden
    factors = tl.load(weight + columns, mask=inside, other=0.0)
    normed = total * (1.0 / tl.sqrt(mean + eps)) * factors
    tl.store(out + row + columns, normed.to(out.dtype.element_ty), mask=inside)


def add_rms_norm(
    launch: Launch,
    out: Tensor,
    x: Tensor | None,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    x_weight: Tensor | None = None,
) -> Tensor:
    """Norm of residual (+ x, itself normed by `x_weight`) into `out`; the sum stays in `residual`.

    All are [T, hidden] and contiguous.
    """
    hidden = residual.shape[-1]
    block = triton.next_power_of_2(hidden)
    launch(
        add_rms_norm_kernel,
        (residual.numel() // hidden,),
        out,
        residual if x is None else x,
        residual,
        weight,
        weight if x_weight is None else x_weight,
        eps,
        hidden,
        HAS_X=x is not None,
        HAS_X_NORM=x_weight is not None,
        BLOCK=block,
        num_warps=norm_warps(block),
    )
    return out


def norm_warps(block: int) -> int:
    """Warps for a row of `block` numbers: up to 16 numbers per thread stay in registers."""
    return max(1, min(16, block // 512))
