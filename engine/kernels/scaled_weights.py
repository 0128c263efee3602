"""Weights of 8 bits with scales beside them, as GPUs multiply them, and the plain-torch products.

int8: a scale per output channel, and the inputs become int8 with a scale per token. fp8 (e4m3): a
scale per output channel or per block of BLOCK x BLOCK weights; inputs stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels.weight_formats import FP8, FP8_BLOCKS, INT8

BLOCK = 128  # rows and columns of weights that share a scale, as fp8 checkpoints have them
_LARGEST = {INT8: 127.0, FP8: 448.0, FP8_BLOCKS: 448.0}
_NOTHING = 1e-30  # what has no larger value counts as zeros


@dataclass(frozen=True, slots=True)
class ScaledWeight:
    """A linear's weight [out, in]; the real one is `numbers` times `scales`."""

    numbers: Tensor  # [out, in]: int8, or uint8 with the bits of e4m3
    scales: Tensor  # float32: [out] of channels, or [out blocks, in blocks]

    @property
    def is_int8(self) -> bool:
        return self.numbers.dtype == torch.int8

    @property
    def has_blocks(self) -> bool:
        return self.scales.dim() == 2

    @property
    def num_bytes(self) -> int:
        return self.numbers.nbytes + self.scales.nbytes


def scaled_weight(weight: Tensor, number_format: str) -> ScaledWeight:
    """Round [out, in] of any float format to INT8, FP8 or FP8_BLOCKS of `weight_formats`."""
    values = weight.float()
    if number_format == FP8_BLOCKS:
        scales = _scales(_blocks(values).abs().amax((1, 3)), number_format)
        spread = _spread(scales, values.shape)
    else:
        scales = _scales(values.abs().amax(1), number_format)
        spread = scales[:, None]
    numbers = torch.where(spread > 0, values / spread, 0.0)
    if number_format == INT8:
        return ScaledWeight(numbers.round().to(torch.int8), scales)
    largest = _LARGEST[number_format]  # which a division may exceed by its rounding
    bits = numbers.clamp(-largest, largest).to(torch.float8_e4m3fn).view(torch.uint8)
    return ScaledWeight(bits, scales)


def scaled_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """[T, in] as int8 and a float32 scale [T] per token; the twin of `quantize_rows`."""
    values = x.float()
    scales = _scales(values.abs().amax(1), INT8)
    numbers = torch.where(scales[:, None] > 0, values / scales[:, None], 0.0)
    return numbers.round().to(torch.int8), scales


def plain_weight(weight: ScaledWeight) -> Tensor:
    """Float32 [out, in] of what the numbers stand for."""
    if weight.is_int8:
        values = weight.numbers.float()
    else:
        values = weight.numbers.view(torch.float8_e4m3fn).float()
    if weight.has_blocks:
        return values * _spread(weight.scales, values.shape)
    return values * weight.scales[:, None]


def product(x: Tensor, weight: ScaledWeight, bias: Tensor | None = None) -> Tensor:
    """Float32 [T, out] of [T, in]: the twin of the kernels' products."""
    values = x.float()
    if weight.is_int8:
        numbers, scales = scaled_rows(x)
        values = numbers.float() * scales[:, None]
    return F.linear(values, plain_weight(weight), None if bias is None else bias.float())


def _scales(largest: Tensor, number_format: str) -> Tensor:
    return torch.where(largest > _NOTHING, largest / _LARGEST[number_format], 0.0)


def _blocks(values: Tensor) -> Tensor:
    """[out blocks, BLOCK, in blocks, BLOCK], filled up with zeros."""
    rows, columns = values.shape
    padded = F.pad(values, (0, -columns % BLOCK, 0, -rows % BLOCK))
    return padded.view(padded.shape[0] // BLOCK, BLOCK, padded.shape[1] // BLOCK, BLOCK)


def _spread(scales: Tensor, shape: torch.Size) -> Tensor:
    """The scale of each weight, of one per block."""
    rows, columns = shape
    wide = scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    return wide[:rows, :columns]
