"""Feed-forward block of experts: each token goes through those that its router chooses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.layers.mlp import GatedMLP
from engine.model_families import ExpertLayers


@dataclass(frozen=True, slots=True)
class ExpertMLP:
    """The blocks' outputs, weighed by the softmax of the router's scores [T, experts]."""

    router: Tensor  # [experts, hidden]
    router_bias: Tensor | None
    experts: Sequence[GatedMLP]
    kind: ExpertLayers

    def forward(self, x: Tensor) -> Tensor:
        """[T, hidden] -> float32 [T, hidden]."""
        weights, chosen = self._choose(x)
        out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for number in sorted(set(chosen.flatten().tolist())):
            rows, places = torch.where(chosen == number)
            found = self.experts[number].forward(x[rows]).float()
            out.index_add_(0, rows, found * weights[rows, places].unsqueeze(1))
        return out

    def _choose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and numbers of the experts, [T, per_token] each."""
        scores = F.linear(x.to(self.router.dtype), self.router, self.router_bias).float()
        weights, chosen = scores.softmax(-1).topk(self.kind.per_token, -1)
        if self.kind.is_normalized:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights, chosen
