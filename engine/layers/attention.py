"""Self-attention of one decoder layer: project, rotate, store, attend, project back."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.kernels.kernel_set import AttentionPlan, KernelSet, PackedLinear


@dataclass(frozen=True, slots=True)
class StepContext:
    """What all layers of one step share."""

    cos: Tensor  # [T, 1, head_dim]
    sin: Tensor
    plan: AttentionPlan


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention; `qkv` yields queries, keys and values side by side."""

    kernels: KernelSet
    qkv: PackedLinear
    output: PackedLinear
    num_heads: int
    num_kv_heads: int
    head_dim: int

    def forward(self, x: Tensor, layer_cache: Tensor, context: StepContext) -> Tensor:
        """[T, hidden] -> [T, hidden]; writes the KV of the T tokens on the way."""
        qkv = self.qkv.run(x).view(len(x), -1, self.head_dim)
        rotated = self.num_heads + self.num_kv_heads
        self.kernels.rotary(qkv[:, :rotated], context.cos, context.sin)
        self.kernels.store_kv(qkv[:, self.num_heads :], layer_cache, context.plan)
        return self.output.run(self.kernels.attention(qkv, layer_cache, context.plan))
