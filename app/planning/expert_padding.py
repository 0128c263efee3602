"""How much larger experts in MXFP4 are on a GPU than in their file: kernels pad both dimensions.

vLLM's model_executor/layers/quantization/mxfp4.py: which kernels run depends on the GPU, and each
wants other multiples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.planning.gpu_catalogue import PlannedGpu
from app.planning.model_shapes import Experts, ModelShape
from app.planning.vllm_versions import VersionRules
from app.planning.weight_sizes import Weights

_WIDE = 256


@dataclass(frozen=True, slots=True)
class _Kernels:
    """`inner` and `hidden` are what the two dimensions of an expert are rounded up to."""

    name: str
    inner: int
    hidden: int
    pads_down: bool = True  # the product back to the hidden size, along that size


_MARLIN = _Kernels("Marlin", 128, _WIDE)
_TRITON = _Kernels("Triton", 128, _WIDE, pads_down=False)
_FLASHINFER = _Kernels("FlashInfer", _WIDE, _WIDE)
_AITER = _Kernels("AITER", _WIDE, _WIDE)


def padded_experts(
    weights: Weights,
    shape: ModelShape,
    gpu: PlannedGpu,
    tensor_parallel_size: int,
    rules: VersionRules,
) -> Weights:
    """`weights` as the kernels of `gpu` hold them; unchanged where nothing is padded."""
    if shape.quantization != "mxfp4" or shape.experts is None or not rules.pads_experts:
        return weights
    kernels = _kernels_of(gpu, rules)
    factor = _factor(kernels, shape.experts, shape.hidden_size, tensor_parallel_size)
    parts = tuple(
        replace(part, num_bytes=part.num_bytes * factor) if part.is_expert else part
        for part in weights.parts
    )
    basis = f"{weights.basis}, experts padded for {kernels.name} kernels"
    return replace(weights, parts=parts, basis=basis)


def _kernels_of(gpu: PlannedGpu, rules: VersionRules) -> _Kernels:
    if gpu.is_rocm:
        return _AITER
    major = (gpu.compute_capability or (0, 0))[0]
    hopper = _TRITON if rules.has_triton_experts else _MARLIN
    return {9: hopper, 10: _FLASHINFER}.get(major, _MARLIN)


def _factor(kernels: _Kernels, experts: Experts, hidden: int, ranks: int) -> float:
    inner = experts.size / ranks
    tall = _rounded(inner, kernels.inner) / inner
    wide = _rounded(hidden, kernels.hidden) / hidden
    down = wide if kernels.pads_down else 1.0
    return tall * (2 * wide + down) / 3  # gate and up, then down


def _rounded(value: float, multiple: int) -> float:
    return -(-value // multiple) * multiple
