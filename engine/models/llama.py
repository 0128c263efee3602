"""The Llama decoder (Llama, SmolLM2) as a ModelStep built from the operations of a KernelSet."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels.kernel_set import KernelSet, KVCache, PackedLinear
from engine.kernels.step_batch import IntArray, StepBatch
from engine.kv_sizing import KVCacheSpec
from engine.layers.attention import Attention, StepContext
from engine.layers.mlp import GatedMLP
from engine.layers.rotary import RotaryTable
from engine.model_config import ModelConfig
from engine.models.weights import DecoderWeights, LayerWeights, LinearWeight

_NUM_LEADERS = 16


@dataclass(frozen=True, slots=True)
class _Layer:
    input_norm: Tensor
    attention: Attention
    post_norm: Tensor
    mlp: GatedMLP


class LlamaModel:
    """Runs flat batches of up to `num_positions` positions.

    The weights are packed here; `weights.layers` is emptied on the way, so that plain and packed
    copies of at most one layer exist at once.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: DecoderWeights,
        kernels: KernelSet,
        num_positions: int,
        spec: KVCacheSpec,
    ) -> None:
        self._config = config
        self._kernels = kernels
        self._spec = spec
        self._embedding = weights.embedding
        self._dtype, self._device = weights.embedding.dtype, weights.embedding.device
        self._final_norm = weights.final_norm.float()
        self._weight_bytes = weights.embedding.nbytes + self._final_norm.nbytes
        self._layers = [self._pack_layer(weights.layers.pop(0)) for _ in list(weights.layers)]
        self._lm_head = self._pack_head(weights)
        self._rotary = RotaryTable(config, num_positions, self._dtype, self._device)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all parameters as they are held now."""
        return self._weight_bytes

    def create_kv_cache(self, num_blocks: int) -> KVCache:
        """One tensor per layer in the kernel set's layout."""
        return self._kernels.create_kv_cache(self._spec, num_blocks, self._dtype, self._device)

    @torch.inference_mode()
    def forward(self, batch: StepBatch, kv_cache: KVCache) -> Tensor:
        """Float32 logits [R, vocabulary] of the rows that ask for them."""
        kernels, eps = self._kernels, self._config.rms_norm_eps
        context = self._context(batch)
        residual = F.embedding(self._tensor(batch.token_ids), self._embedding).float()
        x = kernels.rms_norm(residual, self._layers[0].input_norm, eps)
        for number, layer in enumerate(self._layers):
            x = layer.attention.forward(x, kv_cache[number], context)
            x = kernels.add_rms_norm(x, residual, layer.post_norm, eps)
            x = layer.mlp.forward(x)
            x = kernels.add_rms_norm(x, residual, self._norm_after(number), eps)
        return self._logits(x, batch)

    def _context(self, batch: StepBatch) -> StepContext:
        cos, sin = self._rotary.lookup(self._tensor(batch.positions))
        plan = self._kernels.plan_attention(batch, self._spec, self._dtype, self._device)
        return StepContext(cos, sin, plan)

    def _norm_after(self, number: int) -> Tensor:
        following = number + 1
        if following == len(self._layers):
            return self._final_norm
        return self._layers[following].input_norm

    def _logits(self, x: Tensor, batch: StepBatch) -> Tensor:
        if len(batch.logits_rows) != len(x):
            x = x.index_select(0, self._tensor(batch.logits_rows))
        logits = self._lm_head.run(x)
        if logits.dtype == torch.float32 or self._head_rows is None:
            return logits.float()
        return _with_exact_leaders(logits.float(), x, self._head_rows)

    def _tensor(self, array: IntArray) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    def _pack_layer(self, layer: LayerWeights) -> _Layer:
        config = self._config
        input_norm, post_norm = layer.input_norm.float(), layer.post_norm.float()
        self._weight_bytes += input_norm.nbytes + post_norm.nbytes
        return _Layer(
            input_norm=input_norm,
            attention=Attention(
                kernels=self._kernels,
                qkv=self._pack(layer.qkv),
                output=self._pack(layer.output),
                num_heads=config.num_attention_heads,
                num_kv_heads=config.num_key_value_heads,
                head_dim=config.head_dim,
            ),
            post_norm=post_norm,
            mlp=GatedMLP(self._kernels, self._pack(layer.gate_up), self._pack(layer.down)),
        )

    def _pack(self, linear: LinearWeight) -> PackedLinear:
        packed = self._kernels.pack_linear(linear.weight, linear.bias)
        self._weight_bytes += packed.num_bytes
        return packed

    def _pack_head(self, weights: DecoderWeights) -> PackedLinear:
        packed = self._kernels.pack_linear(weights.lm_head, None)
        is_tied = weights.lm_head is weights.embedding
        if packed.is_copy or not is_tied:
            self._weight_bytes += packed.num_bytes
        # An untied head that was packed has no plain rows left; keeping them would double it.
        self._head_rows = weights.lm_head if is_tied or not packed.is_copy else None
        return packed


def _with_exact_leaders(logits: Tensor, x: Tensor, head_rows: Tensor) -> Tensor:
    """Compute the leading logits again in float32.

    A 16-bit product leaves logits near 25 an eighth apart in bfloat16, so the best tokens tie
    often.
    """
    leaders = logits.topk(min(_NUM_LEADERS, logits.shape[-1]), dim=-1, sorted=False).indices
    rows = head_rows[leaders].float()
    exact = torch.bmm(rows, x.unsqueeze(-1)).squeeze(-1)
    return logits.scatter_(1, leaders, exact)
