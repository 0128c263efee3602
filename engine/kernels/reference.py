"""ReferenceKernels: the plain-torch set, for CPU and CUDA. Every later set is tested against it.

KV layout of a layer: [block, key or value, offset in block, kv head, head_dim]. One `index_select`
over (block, key or value) rows gathers a context; the fused attention reads it with strides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels.attention_plan import (
    DecodeGroup,
    Plan,
    PrefillSequence,
    build_plans,
    storage_dtype,
)
from engine.kernels.kernel_set import PLAIN_SCORES, KVCache, PackedLinear, ScoreRule
from engine.kernels.step_batch import StepBatch
from engine.kv_sizing import KVCacheSpec

_CLAMP = 7.0  # of gates and ups that are clamped
_FP8_MAX = torch.finfo(torch.float8_e4m3fn).max


class ReferenceKernels:
    """Plain torch operations; CPU linears in 16 bit go through oneDNN with weights packed once."""

    name = "reference"

    def pack_linear(self, weight: Tensor, bias: Tensor | None) -> PackedLinear:
        """Pack for oneDNN where the CPU computes this dtype natively; else keep the weight."""
        num_bytes = weight.nbytes + (bias.nbytes if bias is not None else 0)
        dtype = weight.dtype
        if not _onednn_packs(weight):

            def plain(x: Tensor) -> Tensor:
                return F.linear(x.to(dtype), weight, bias)

            return PackedLinear(plain, num_bytes, is_copy=False)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        run = torch.ops.mkldnn._linear_pointwise.default
        out_features = weight.shape[0]

        def linear(x: Tensor) -> Tensor:
            if not x.shape[0]:  # oneDNN refuses empty batches
                return x.new_empty(0, out_features, dtype=dtype)
            result: Tensor = run(x.to(dtype), packed, bias, "none", [], "")
            return result

        return PackedLinear(linear, num_bytes, is_copy=True)

    def pack_head(self, weight: Tensor) -> PackedLinear:
        """The output projection is packed like any other linear, without a bias."""
        return self.pack_linear(weight, None)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """All in float32; the next linear rounds."""
        return F.rms_norm(x, weight.shape, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Update the residual in place, then norm it."""
        return F.rms_norm(residual.add_(x), weight.shape, weight, eps)

    def rotary(self, heads: Tensor, cos: Tensor, sin: Tensor) -> None:
        """Rolling by half a head swaps its halves; the sign is folded into `sin`."""
        swapped = heads.roll(heads.shape[-1] // 2, -1)
        heads.mul_(cos).addcmul_(swapped, sin)

    def activate_and_mul(self, gate_up: Tensor, activation: str) -> Tensor:
        """One pass for the activation, one for the product."""
        gate, up = gate_up.chunk(2, -1)
        if activation == "gelu_pytorch_tanh":
            return F.gelu(gate, approximate="tanh").mul_(up)
        if activation == "clamped_swiglu":
            gate, up = gate.clamp(max=_CLAMP), up.clamp(-_CLAMP, _CLAMP)
            return (gate * 1.702).sigmoid_().mul_(gate).mul_(up + 1)
        return F.silu(gate).mul_(up)

    def create_kv_cache(
        self, spec: KVCacheSpec, num_blocks: int, dtype: torch.dtype, device: torch.device
    ) -> KVCache:
        """Zeroed tensors; on a CPU the pages come from the system on first use."""
        shape = (num_blocks, 2, spec.block_size, spec.num_kv_heads, spec.head_dim)
        stored = storage_dtype(spec, dtype)
        return [_zeros(shape, stored, device) for _ in range(spec.layers_per_block)]

    def plan_attention(
        self, batch: StepBatch, spec: KVCacheSpec, dtype: torch.dtype, device: torch.device
    ) -> list[Plan]:
        """Split the batch into padded decode groups and single prefill sequences."""
        return build_plans(batch, spec, dtype, device)

    def store_kv(self, kv: Tensor, layer_cache: Tensor, plan: Plan) -> None:
        """One row of kv_heads x head_dim values per (token, key or value)."""
        row_values = kv.shape[1] // 2 * kv.shape[2]
        rows = _to_storage(kv.reshape(-1, row_values), layer_cache.dtype)
        layer_cache.view(-1, row_values).index_copy_(0, plan.store_rows, rows)

    def attention(
        self,
        qkv: Tensor,
        layer_cache: Tensor,
        plan: Plan,
        scale: float,
        rule: ScoreRule = PLAIN_SCORES,
    ) -> Tensor:
        """Decode groups in one padded call each, prefill sequences one by one: the fused attention
        of torch for plain scores, single operations for others.
        """
        weigh = _Weigh(scale, rule)
        kv_heads, head_dim = layer_cache.shape[3:]
        q_heads = qkv.shape[1] - 2 * kv_heads
        queries = qkv[:, :q_heads]
        rows = layer_cache.view(layer_cache.shape[0] * 2, -1)
        if plan.is_one_decode_group:  # the hot path: nothing to reorder
            return _decode(queries, rows, plan, plan.decode_groups[0], kv_heads, weigh)
        out = queries.new_empty(len(queries), q_heads * head_dim)
        for group in plan.decode_groups:
            decoded = _decode(queries[group.tokens], rows, plan, group, kv_heads, weigh)
            out.index_copy_(0, group.tokens, decoded)
        for sequence in plan.prefills:
            span = slice(sequence.start, sequence.end)
            out[span] = _prefill(queries[span], rows, plan, sequence, kv_heads, weigh)
        return out


@dataclass(frozen=True, slots=True)
class _Weigh:
    """Attention of [..., kv heads, group, T, d] or [B, kv heads, group, d] over keys and values."""

    scale: float
    rule: ScoreRule

    def __call__(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, sinks_at: int
    ) -> Tensor:
        """No `mask` is plain causal. `sinks_at` is the dimension of the heads in a group."""
        if self.rule is PLAIN_SCORES:
            return F.scaled_dot_product_attention(
                queries, keys, values, attn_mask=mask, is_causal=mask is None, scale=self.scale
            )
        scores = (queries @ keys.mT).float() * self.scale
        if self.rule.softcap is not None:
            scores = torch.tanh(scores / self.rule.softcap) * self.rule.softcap
        if mask is None:
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(hidden, -torch.inf)
        else:
            scores = scores + mask
        if self.rule.sinks is None:
            return scores.softmax(-1).to(values.dtype) @ values
        kv_heads, group = queries.shape[sinks_at - 1], queries.shape[sinks_at]
        sinks = self.rule.sinks.float().view(kv_heads, group, *[1] * (-2 - sinks_at))
        sinks = sinks.expand(*scores.shape[:-1]).unsqueeze(-1)
        weights = torch.cat((scores, sinks), -1).softmax(-1)[..., :-1]
        return weights.to(values.dtype) @ values


def _decode(
    queries: Tensor, rows: Tensor, plan: Plan, group: DecodeGroup, kv_heads: int, weigh: _Weigh
) -> Tensor:
    """[B, q_heads, d]: the query heads of a group are the query rows of its kv head."""
    batch, q_heads, head_dim = queries.shape
    torch.index_select(rows, 0, group.cache_rows, out=group.gathered)
    gathered = _from_storage(group.gathered, plan)
    keys, values = gathered.view(2, batch, -1, kv_heads, head_dim).transpose(2, 3)
    grouped = queries.reshape(batch, kv_heads, q_heads // kv_heads, head_dim)
    out = weigh(grouped, keys, values, group.mask, sinks_at=-2)
    return out.reshape(batch, q_heads * head_dim)


def _prefill(
    queries: Tensor,
    rows: Tensor,
    plan: Plan,
    sequence: PrefillSequence,
    kv_heads: int,
    weigh: _Weigh,
) -> Tensor:
    """[T, q_heads, d] of one sequence over what it sees."""
    tokens, q_heads, head_dim = queries.shape
    group = q_heads // kv_heads
    gathered = _from_storage(rows.index_select(0, sequence.cache_rows), plan)
    paged = gathered.view(2, -1, kv_heads, 1, head_dim)
    context = paged[:, : sequence.num_keys].permute(0, 2, 3, 1, 4)
    keys, values = context.expand(2, kv_heads, group, -1, head_dim)
    grouped = queries.view(tokens, kv_heads, group, head_dim).permute(1, 2, 0, 3)
    out = weigh(grouped, keys, values, sequence.mask, sinks_at=-3)
    return out.permute(2, 0, 1, 3).reshape(tokens, q_heads * head_dim)


def _to_storage(values: Tensor, stored: torch.dtype) -> Tensor:
    """Rounded to float8 e4m3 where the cache holds its bits; what is too large is clamped."""
    if stored != torch.uint8:
        return values
    return values.clamp(-_FP8_MAX, _FP8_MAX).to(torch.float8_e4m3fn).view(torch.uint8)


def _from_storage(stored: Tensor, plan: Plan) -> Tensor:
    if plan.fp8_values is None:
        return stored
    # By a table: torch's own conversion is five times slower on a CPU.
    return plan.fp8_values.index_select(0, stored.reshape(-1).int()).view(stored.shape)


def _onednn_packs(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if weight.dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return False


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # torch.zeros writes every page (a second per gigabyte); numpy's calloc leaves them untouched.
    num_bytes = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(num_bytes, dtype=np.uint8)).view(dtype).view(shape)
