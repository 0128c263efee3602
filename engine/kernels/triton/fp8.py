"""float8 e4m3 as bits, by integer operations: the same bytes on every GPU, also where it has none.

The twin is torch's conversion of values clamped to 448 (`engine.kernels.reference`).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def to_e4m3(x):
    """float32 of any shape -> uint8: to the nearest, ties to even, 448 at most; NaN is 0x7f."""
    magnitude = tl.minimum(tl.abs(x), 448.0)
    bits = magnitude.to(tl.uint32, bitcast=True)
    normal = (bits + 0x7FFFF + ((bits >> 20) & 1) - (120 << 23)) >> 20
    # Beside 2**14 the last digit of a float32 is worth 2**-9, as that of the smallest e4m3 numbers.
    small = (magnitude + 16384.0).to(tl.uint32, bitcast=True) & 0xFF
    code = tl.where(magnitude < 0.015625, small, normal)
    code = tl.where(x != x, 0x7F, code)
    sign = (x.to(tl.uint32, bitcast=True) >> 24) & 0x80
    return (code | sign).to(tl.uint8)


@triton.jit
def from_e4m3(code):
    """uint8 of any shape -> float16, exactly: the exponent's bias differs by 8."""
    wide = code.to(tl.uint16)
    half = (((wide & 0x7F) << 7) | ((wide & 0x80) << 8)).to(tl.float16, bitcast=True)
    return tl.where((wide & 0x7F) == 0x7F, float("nan"), half * 256.0).to(tl.float16)
