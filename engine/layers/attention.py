"""Self-attention of one decoder layer: project, norm, rotate, store, attend, project back."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.kernels.kernel_set import (
    PLAIN_SCORES,
    AttentionPlan,
    KernelSet,
    PackedLinear,
    ScoreRule,
)


@dataclass(frozen=True, slots=True)
class StepContext:
    """What all layers of one KV group share in one step."""

    cos: Tensor  # [T, 1, head_dim]
    sin: Tensor
    plan: AttentionPlan


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention; `qkv` yields queries, keys and values side by side.

    `scale` multiplies the scores, and `rule` says what else becomes of them. Queries and keys are
    normed per head where the family does so.
    """

    kernels: KernelSet
    qkv: PackedLinear
    output: PackedLinear
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    q_norm: Tensor | None
    k_norm: Tensor | None
    eps: float
    rule: ScoreRule = PLAIN_SCORES

    def forward(self, x: Tensor, layer_cache: Tensor, context: StepContext) -> Tensor:
        """[T, hidden] -> [T, hidden]; writes the KV of the T tokens on the way."""
        qkv = self.qkv.run(x).view(len(x), -1, self.head_dim)
        rotated = self.num_heads + self.num_kv_heads
        self._norm_heads(qkv[:, : self.num_heads], self.q_norm)
        self._norm_heads(qkv[:, self.num_heads : rotated], self.k_norm)
        self.kernels.rotary(qkv[:, :rotated], context.cos, context.sin)
        self.kernels.store_kv(qkv[:, self.num_heads :], layer_cache, context.plan)
        plan, rule = context.plan, self.rule
        return self.output.run(self.kernels.attention(qkv, layer_cache, plan, self.scale, rule))

    def _norm_heads(self, heads: Tensor, weight: Tensor | None) -> None:
        if weight is not None:
            heads.copy_(self.kernels.rms_norm(heads.float(), weight, self.eps))
