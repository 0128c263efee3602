"""LowRank: what a LoRA adapter adds to one linear, and what a model that takes adapters can do."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from torch import Tensor

from engine.kernels.kernel_set import ModelStep


@dataclass(frozen=True, slots=True)
class LowRank:
    """B (scale * (A x)), added to the linear's output: A [rank, in], B [out, rank], scale [rank].

    Several adapters of linears that are fused along their outputs become one: their ranks lie one
    behind the other, and B is zero where a rank is not the output's.
    """

    a: Tensor
    b: Tensor
    scale: Tensor  # float32

    @property
    def num_bytes(self) -> int:
        return int(self.a.nbytes + self.b.nbytes + self.scale.nbytes)


Adapter: TypeAlias = Mapping[Hashable, LowRank]
"""By linear: of a decoder of ours (number of the layer in this stage, name of the fused linear) as
in LayerWeights, of one that transformers runs the module's name.
"""


class AdaptedStep(ModelStep, Protocol):
    """A model whose rows may each have an adapter: StepBatch.adapters names its slot."""

    def load_adapter(self, slot: int, adapter: Adapter) -> None:
        """Keep an adapter in `slot`, a small number, in place of what was there."""

    def remove_adapter(self, slot: int) -> None:
        """Free a slot that no row of a later step names."""
