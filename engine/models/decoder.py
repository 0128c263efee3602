"""The decoder of the Llama family and its relatives as a ModelStep over a KernelSet's operations.

One class for all of them: what differs (norms, windows, scales) is in ModelConfig.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels.kernel_set import (
    PLAIN_SCORES,
    KernelSet,
    KVCache,
    PackedLinear,
    ScoreRule,
    most_likely,
)
from engine.kernels.low_rank import Adapter
from engine.kernels.step_batch import ImageTokens, IntArray, StepBatch
from engine.kv_sizing import KVCacheSpec
from engine.layers.attention import Attention, StepContext
from engine.layers.experts import ExpertMLP
from engine.layers.lora import LoraTable
from engine.layers.mlp import GatedMLP
from engine.layers.parallel import OneRank, RankGroup
from engine.layers.rotary import RotaryTable, inverse_frequencies
from engine.model_config import ModelConfig
from engine.models.weights import DecoderWeights, LayerWeights, LinearWeight
from engine.rank_layout import WHOLE, RankPlace, model_of_rank

_NUM_LEADERS = 16


@dataclass(frozen=True, slots=True)
class _Layer:
    """`group` and `page` say where the layer's KV lies: which block table, which cache tensor."""

    input_norm: Tensor
    attention: Attention
    attention_norm: Tensor | None
    post_norm: Tensor
    mlp: GatedMLP | ExpertMLP
    mlp_norm: Tensor | None
    group: int
    page: int


class DecoderModel:
    """Runs flat batches of up to `num_positions` positions; as one rank of several, its part.

    `ranks` are those that share its layers. The weights are packed here; `weights.layers` is
    emptied on the way, so that plain and packed copies of at most one layer exist at once.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: DecoderWeights,
        kernels: KernelSet,
        num_positions: int,
        spec: KVCacheSpec,
        place: RankPlace = WHOLE,
        ranks: RankGroup | None = None,
    ) -> None:
        self._config = config = model_of_rank(config, place)
        self._place = place
        self._ranks = ranks or OneRank()
        self._kernels = kernels
        self._spec = spec
        self._embedding = weights.embedding
        self._dtype, self._device = weights.embedding.dtype, weights.embedding.device
        # As trained: the factor is rounded to the weights' format before it is applied.
        self._embedding_scale = float(torch.tensor(config.embedding_scale, dtype=self._dtype))
        self._weight_bytes = weights.embedding.nbytes
        self._vocab_widths = place.span_lengths(config.vocab_size)
        # Only the last stage has read it from the checkpoint; elsewhere it is memory as it was.
        has_norm = place.is_last_stage
        final_norm = weights.final_norm if has_norm else torch.zeros_like(weights.final_norm)
        self._final_norm = self._norm(final_norm)
        self._lora = LoraTable()
        self._layers = self._pack_layers(weights)
        if place.is_last_stage:
            self._lm_head = self._pack_head(weights)
        self._rotaries = self._rotary_tables(num_positions)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all parameters as they are held now."""
        return self._weight_bytes

    def load_adapter(self, slot: int, adapter: Adapter) -> None:
        """Rows whose batch names `slot` have it from now on."""
        self._lora.load(slot, adapter)

    def remove_adapter(self, slot: int) -> None:
        """Free the slot for another adapter; no row may name it any more."""
        self._lora.remove(slot)

    def create_kv_cache(self, num_blocks: int) -> KVCache:
        """One tensor per page of a block in the kernel set's layout."""
        return self._kernels.create_kv_cache(self._spec, num_blocks, self._dtype, self._device)

    @torch.inference_mode()
    def forward(self, batch: StepBatch, kv_cache: KVCache) -> Tensor:
        """Float32 logits [R, vocabulary] of the rows that ask for them; on a tensor rank that does
        not sample, of its part of the vocabulary.
        """
        return self._logits(self._run(batch, kv_cache))

    @torch.inference_mode()
    def hidden_states(self, batch: StepBatch, kv_cache: KVCache) -> Tensor:
        """Float32 [R, hidden] after the final norm, of the rows that would ask for logits."""
        return self._run(batch, kv_cache)

    def greedy_tokens(self, batch: StepBatch, kv_cache: KVCache) -> IntArray:
        """The most likely token [R] of the rows that ask for logits."""
        tokens: IntArray = most_likely(self.forward(batch, kv_cache)).cpu().numpy()
        return tokens

    @torch.inference_mode()
    def residual(self, batch: StepBatch, kv_cache: KVCache) -> Tensor:
        """Float32 [T, hidden] behind the layers of a stage that is not the last."""
        return self._layers_of_stage(batch, kv_cache)[0]

    def _run(self, batch: StepBatch, kv_cache: KVCache) -> Tensor:
        _, x = self._layers_of_stage(batch, kv_cache)
        if len(batch.logits_rows) != len(x):
            x = x.index_select(0, self._tensor(batch.logits_rows))
        return x

    def _layers_of_stage(self, batch: StepBatch, kv_cache: KVCache) -> tuple[Tensor, Tensor]:
        """The residual, and its norm."""
        kernels, ranks, eps = self._kernels, self._ranks, self._config.rms_norm_eps
        self._lora.begin_step(batch.adapters, self._device)
        contexts = self._contexts(batch)
        residual = self._residual_before(batch)
        x = kernels.rms_norm(residual, self._layers[0].input_norm, eps)
        for number, layer in enumerate(self._layers):
            x = layer.attention.forward(x, kv_cache[layer.page], contexts[layer.group])
            x = self._normed(ranks.sum(x), layer.attention_norm)
            x = kernels.add_rms_norm(x, residual, layer.post_norm, eps)
            x = self._normed(ranks.sum(layer.mlp.forward(x)), layer.mlp_norm)
            x = kernels.add_rms_norm(x, residual, self._norm_after(number), eps)
        return residual, x

    def _residual_before(self, batch: StepBatch) -> Tensor:
        """What the stage before left, or the tokens' embeddings: each rank has a part of them."""
        if batch.residual is not None:
            return torch.from_numpy(batch.residual).to(self._device)
        tokens = self._tensor(batch.token_ids)
        if self._place.tensor_size == 1:
            residual = F.embedding(tokens, self._embedding).float()
        else:
            here = tokens - self._place.span(self._config.vocab_size).start
            is_elsewhere = (here < 0) | (here >= len(self._embedding))
            rows = F.embedding(here.masked_fill(is_elsewhere, 0), self._embedding).float()
            residual = self._ranks.sum(rows.masked_fill_(is_elsewhere.unsqueeze(1), 0.0))
        if self._embedding_scale != 1:
            residual *= self._embedding_scale
        if batch.images is not None:
            self._place_images(residual, batch.images)
        return residual

    def _place_images(self, residual: Tensor, images: ImageTokens) -> None:
        rows = np.flatnonzero(images.rows >= 0)
        given = torch.from_numpy(images.embeddings[images.rows[rows]])
        residual.index_copy_(0, self._tensor(rows), given.to(self._device))

    def _contexts(self, batch: StepBatch) -> list[StepContext]:
        """What the layers of each KV group share in this step."""
        positions = self._tensor(batch.positions)
        angles = [table.lookup(positions) for table in self._rotaries]
        plans = self._kernels.plan_attention(batch, self._spec, self._dtype, self._device)
        return [
            StepContext(*angles[-1 if group.sliding_window else 0], plan)
            for group, plan in zip(self._spec.groups, plans, strict=True)
        ]

    def _normed(self, x: Tensor, weight: Tensor | None) -> Tensor:
        if weight is None:
            return x
        return self._kernels.rms_norm(x.float(), weight, self._config.rms_norm_eps)

    def _norm_after(self, number: int) -> Tensor:
        following = number + 1
        if following == len(self._layers):
            return self._final_norm
        return self._layers[following].input_norm

    def _logits(self, x: Tensor) -> Tensor:
        logits = self._lm_head.run(x)
        if logits.dtype != torch.float32 and self._head_rows is not None:
            logits = _with_exact_leaders(logits.float(), x, self._head_rows)
        if (cap := self._config.logit_cap) is not None:
            logits = (logits.float() / cap).tanh_().mul_(cap)
        return self._ranks.gather_columns(logits.float(), self._vocab_widths)

    def _tensor(self, array: IntArray) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    def _rotary_tables(self, num_positions: int) -> list[RotaryTable]:
        return self._tables_of_angles(num_positions, self._dtype)

    def _tables_of_angles(self, num_positions: int, dtype: torch.dtype) -> list[RotaryTable]:
        """One, or a second one for layers with a sliding window."""
        config = self._config
        frequencies = [inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)]
        if config.local_rope_theta is not None:
            frequencies.append(inverse_frequencies(config.head_dim, config.local_rope_theta, None))
        scaling = config.rope_scaling
        lengths = (1.0 if scaling is None else scaling.length, 1.0)
        return [
            RotaryTable(each, num_positions, dtype, self._device, length)
            for each, length in zip(frequencies, lengths, strict=False)
        ]

    def _pack_layers(self, weights: DecoderWeights) -> list[_Layer]:
        places = {
            layer: (group_number, page)
            for group_number, group in enumerate(self._spec.groups)
            for page, layer in enumerate(group.layers)
        }
        numbers = range(len(weights.layers))
        return [
            self._pack_layer(number, weights.layers.pop(0), *places[number]) for number in numbers
        ]

    def _pack_layer(self, number: int, layer: LayerWeights, group: int, page: int) -> _Layer:
        config = self._config
        return _Layer(
            input_norm=self._norm(layer.input_norm),
            attention=Attention(
                kernels=self._kernels,
                qkv=self._pack(layer.qkv, (number, "qkv")),
                output=self._pack(layer.output, (number, "output")),
                num_heads=config.num_attention_heads,
                num_kv_heads=config.num_key_value_heads,
                head_dim=config.head_dim,
                scale=config.query_scale or config.head_dim**-0.5,
                q_norm=self._optional_norm(layer.q_norm),
                k_norm=self._optional_norm(layer.k_norm),
                eps=config.rms_norm_eps,
                rule=self._score_rule(layer.sinks),
            ),
            attention_norm=self._optional_norm(layer.attention_norm),
            post_norm=self._norm(layer.post_norm),
            mlp=self._feed_forward(number, layer),
            mlp_norm=self._optional_norm(layer.mlp_norm),
            group=group,
            page=page,
        )

    def _score_rule(self, sinks: Tensor | None) -> ScoreRule:
        if sinks is None and self._config.score_cap is None:
            return PLAIN_SCORES
        self._weight_bytes += 0 if sinks is None else sinks.nbytes
        return ScoreRule(self._config.score_cap, sinks)

    def _feed_forward(self, number: int, layer: LayerWeights) -> GatedMLP | ExpertMLP:
        kernels, activation = self._kernels, self._config.hidden_act
        if layer.router is None or self._config.experts is None:
            gate_up = self._pack(layer.gate_up, (number, "gate_up"))
            return GatedMLP(kernels, gate_up, self._pack(layer.down, (number, "down")), activation)
        router, bias = layer.router.weight, layer.router.bias
        self._weight_bytes += router.nbytes + (0 if bias is None else bias.nbytes)
        blocks = [
            GatedMLP(kernels, self._pack_alone(gate_up), self._pack_alone(down), activation)
            for gate_up, down in zip(
                layer.gate_up.of_experts(), layer.down.of_experts(), strict=True
            )
        ]
        return ExpertMLP(router, bias, blocks, self._config.experts)

    def _norm(self, weight: Tensor) -> Tensor:
        factors = weight.float() + self._config.norm_offset
        self._weight_bytes += factors.nbytes
        return factors

    def _optional_norm(self, weight: Tensor | None) -> Tensor | None:
        return None if weight is None else self._norm(weight)

    def _pack(self, linear: LinearWeight, key: tuple[int, str]) -> PackedLinear:
        return self._lora.beside(key, self._pack_alone(linear))

    def _pack_alone(self, linear: LinearWeight) -> PackedLinear:
        packed = self._kernels.pack_linear(linear.weight, linear.bias)
        self._weight_bytes += packed.num_bytes
        return packed

    def _pack_head(self, weights: DecoderWeights) -> PackedLinear:
        packed = self._kernels.pack_head(weights.lm_head)
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
