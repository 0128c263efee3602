"""Gated feed-forward block of one decoder layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.kernels.kernel_set import KernelSet, PackedLinear


@dataclass(frozen=True, slots=True)
class GatedMLP:
    """down(activation(gate(x)) * up(x)); `gate_up` yields both side by side."""

    kernels: KernelSet
    gate_up: PackedLinear
    down: PackedLinear
    activation: str

    def forward(self, x: Tensor) -> Tensor:
        """[T, hidden] -> [T, hidden]."""
        return self.down.run(self.kernels.activate_and_mul(self.gate_up.run(x), self.activation))
