"""The plain-torch twin of the native quantized products: the same integers, multiplied as floats.

With dtype float32 its results are those of native/quantize.h up to rounding. It saves neither
memory nor time.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels.kernel_set import KernelSet, PackedLinear
from engine.kernels.native.model_step import NativeKernels
from engine.kernels.reference import ReferenceKernels
from engine.kernels.weight_formats import INT8, WeightFormats, weight_formats
from engine.logger import get_logger

logger = get_logger(__name__)

_INWARD, _REFITS, _LEAST_SPREAD = 0.04, 2, 1e-9  # as in native/quantize.h
_NOTHING = 1e-30  # a group without larger values counts as zeros


@dataclass(frozen=True, slots=True)
class QuantizedReferenceKernels(ReferenceKernels):
    """ReferenceKernels whose linears round weights and inputs to integers by groups."""

    formats: WeightFormats

    def pack_linear(self, weight: Tensor, bias: Tensor | None) -> PackedLinear:
        """Pack the rounded weights as the plain set does; inputs are rounded in every call."""
        return self._pack(weight, bias, self.formats.layers)

    def pack_head(self, weight: Tensor) -> PackedLinear:
        """In float32: a second look at the best logits would need plain weights."""
        return self._pack(weight.float(), None, self.formats.head)

    def _pack(self, weight: Tensor, bias: Tensor | None, number_format: str) -> PackedLinear:
        size = group_size(number_format, weight.shape[1])
        # Not super(): a dataclass with slots is a new class, which its functions do not know.
        packed = ReferenceKernels.pack_linear(
            self, rounded_weight(weight, number_format).to(weight.dtype), bias
        )

        def run(x: Tensor) -> Tensor:
            return packed.run(rounded_inputs(x.float(), size))

        return PackedLinear(run, packed.num_bytes, is_copy=True)


def quantized(kernels: KernelSet | NativeKernels, quantization: str) -> KernelSet | NativeKernels:
    """The same set with weights in the formats that `quantization` names.

    Triton's was made with them.
    """
    if quantization == "none" or kernels.name == "triton":
        return kernels
    formats = weight_formats(quantization)
    if isinstance(kernels, NativeKernels):
        return dataclasses.replace(kernels, formats=formats)
    logger.warning(
        "Reference kernels follow --quantization %s in their results only; it saves neither memory "
        "nor time.",
        quantization,
    )
    return QuantizedReferenceKernels(formats)


def group_size(number_format: str, num_inputs: int) -> int:
    """Inputs that share a factor."""
    return 64 if number_format == INT8 and num_inputs % 64 == 0 else 32


def rounded_inputs(x: Tensor, size: int) -> Tensor:
    """[rows, inputs] to the nearest multiples of each group's largest value / 127."""
    groups = _in_groups(x, size)
    largest = groups.abs().amax(-1, keepdim=True)
    has_values = largest > _NOTHING
    factors = torch.where(has_values, 127 / largest, 0.0)
    numbers = (groups * factors).round()
    return _flat(numbers * torch.where(has_values, largest / 127, 0.0), x.shape[1])


def rounded_weight(weight: Tensor, number_format: str, importance: Tensor | None = None) -> Tensor:
    """Float32 [out, in] of what the integers of a weight stand for.

    In int4 an error counts by `importance` [in], in bf16, where that was measured.
    """
    size = group_size(number_format, weight.shape[1])
    groups = _in_groups(weight.float(), size)
    if number_format == INT8:
        return _flat(_to_int8(groups), weight.shape[1])
    errors_count = (
        torch.ones_like(groups[:1])
        if importance is None
        else _in_groups(importance.float()[None], size)
    )
    return _flat(_to_int4(groups, errors_count.double()), weight.shape[1])


def _to_int8(groups: Tensor) -> Tensor:
    scales = _factors(groups.abs().amax(-1, keepdim=True), 127)
    return _numbers(groups, scales).clamp(-127, 127) * scales


def _to_int4(groups: Tensor, importance: Tensor) -> Tensor:
    """`importance` is double, [1, groups, size]."""
    minima = groups.amin(-1, keepdim=True)
    ranges = groups.amax(-1, keepdim=True) - minima
    ranges, minima = torch.where(ranges > _NOTHING, ranges, 0.0).double(), minima.double()
    search = _Int4Search(groups, importance)
    best = search.nearest(ranges / 15, minima)
    for below, above in ((_INWARD, 0.0), (0.0, _INWARD), (_INWARD, _INWARD)):
        scales = ranges * (1.0 - below - above) / 15
        best = best.or_nearer(search.nearest(scales, minima + ranges * below))
    for _ in range(_REFITS):
        best = best.or_nearer(search.refitted(best))
    return best.values


@dataclass(frozen=True, slots=True)
class _Int4Groups:
    """Numbers, what they stand for, and each group's weighted squared error, a double."""

    numbers: Tensor
    values: Tensor
    errors: Tensor

    def or_nearer(self, other: _Int4Groups) -> _Int4Groups:
        """Of each group the one with the smaller error."""
        is_nearer = other.errors < self.errors
        return _Int4Groups(
            torch.where(is_nearer, other.numbers, self.numbers),
            torch.where(is_nearer, other.values, self.values),
            torch.where(is_nearer, other.errors, self.errors),
        )


@dataclass(frozen=True, slots=True)
class _Int4Search:
    """As Int4Search in native/quantize.h, for all groups at once."""

    groups: Tensor
    importance: Tensor

    def nearest(self, scales: Tensor, minima: Tensor) -> _Int4Groups:
        """The numbers for factors, which are rounded first."""
        scales, minima = _bf16(scales.float()), _bf16(minima.float())
        numbers = _numbers(self.groups - minima, scales).clamp(0, 15)
        values = numbers * scales + minima
        return _Int4Groups(numbers, values, self._sum((values - self.groups).double().square()))

    def refitted(self, found: _Int4Groups) -> _Int4Groups:
        """Least squares for the numbers, then the numbers for the new factors."""
        numbers, weights = found.numbers.double(), self.groups.double()
        count, total = self._sum(torch.ones_like(weights[:1])), self._sum(weights)
        sums, squares = self._sum(numbers), self._sum(numbers.square())
        spreads = count * squares - sums.square()
        products = count * self._sum(numbers * weights) - sums * total
        is_known = spreads > _LEAST_SPREAD * count * squares
        scales = torch.where(is_known, products / spreads, 0.0)
        return self.nearest(scales, (total - scales * sums) / count)

    def _sum(self, values: Tensor) -> Tensor:
        return (self.importance * values).sum(-1, keepdim=True)


def _factors(ranges: Tensor, steps: int) -> Tensor:
    return _bf16(torch.where(ranges > _NOTHING, ranges / steps, 0.0))


def _numbers(values: Tensor, scales: Tensor) -> Tensor:
    return torch.where(scales > 0, values / scales, 0.0).round()


def _bf16(factors: Tensor) -> Tensor:
    return factors.to(torch.bfloat16).float()


def _in_groups(x: Tensor, size: int) -> Tensor:
    """[rows, groups, size]; the last group is filled up with zeros."""
    padded = F.pad(x, (0, -x.shape[1] % size))
    return padded.view(len(x), padded.shape[1] // size, size)  # -1 is refused where x has no rows


def _flat(groups: Tensor, num_inputs: int) -> Tensor:
    return groups.flatten(1)[:, :num_inputs]
