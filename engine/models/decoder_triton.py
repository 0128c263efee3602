"""The decoder over Triton's fused kernels, in pieces that graphs can record.

A step is `start`, then for every layer `attend` and `proceed`. Between two calls of `attend`
nothing depends on where sequences begin and end, so those pieces are the same for every batch.
Of a step with images the attention is the reference set's, whose cache has the same layout.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.kernels.kernel_set import KernelSet, KVCache
from engine.kernels.reference import ReferenceKernels
from engine.kernels.step_batch import IntArray, StepBatch
from engine.kernels.triton.decode_attention import AttentionShape
from engine.kernels.triton.heads import Rotation
from engine.kernels.triton.kernels import TritonKernels
from engine.kernels.triton.step_inputs import (
    Packed,
    StepInputs,
    StepSize,
    is_uniform_decode,
    pack,
    unpack,
)
from engine.kv_sizing import KVCacheSpec
from engine.layers.parallel import RankGroup
from engine.layers.rotary import RotaryTable
from engine.model_config import ModelConfig
from engine.models.decoder import DecoderModel
from engine.models.weights import DecoderWeights
from engine.rank_layout import WHOLE, RankPlace


class TritonDecoder(DecoderModel):
    """Runs any batch; whoever records graphs uses the pieces."""

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
        assert isinstance(kernels, TritonKernels), kernels.name
        super().__init__(config, weights, kernels, num_positions, spec, place, ranks)
        self._triton = kernels
        self._q_heads = self._config.num_attention_heads
        self._tile_tokens = kernels.tile_tokens(self._q_heads, spec)
        self._rotations = self._pack_rotations(num_positions)
        self._sampled: Tensor | None = None

    @property
    def num_layers(self) -> int:
        """How often `attend` and `proceed` are called in a step."""
        return len(self._layers)

    @property
    def num_groups(self) -> int:
        """Of layers that share a block table."""
        return len(self._spec.groups)

    @property
    def device(self) -> torch.device:
        return self._device

    @torch.inference_mode()
    def greedy_tokens(self, batch: StepBatch, kv_cache: KVCache) -> IntArray:
        """The most likely token [R] of the rows that ask for logits."""
        return self.most_likely(self._run(batch, kv_cache))

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 [R, vocabulary] of float32 [R, hidden] after the final norm."""
        return self._logits(hidden)

    @torch.inference_mode()
    def most_likely(self, hidden: Tensor) -> IntArray:
        """Token [R] with the largest logit, on the host."""
        return self._to_host(self._triton.most_likely(self._logits(hidden)))

    def keep_sampled(self, max_rows: int) -> Tensor:
        """Where the tokens of a step stay on the device, [max_rows] int64, for the next one to
        read. Comes before any step that names them, and before graphs are recorded.
        """
        self._sampled = torch.zeros(max_rows, dtype=torch.int64, device=self._device)
        return self._sampled

    @torch.inference_mode()
    def choose(self, logits: Tensor, tokens: Tensor, packed: Tensor | None) -> None:
        """A token for each row into `tokens`: by settings that lie packed on the device, or the
        most likely one.
        """
        if packed is None:
            self._triton.most_likely(logits, tokens)
        else:
            self._triton.draw_packed(logits, packed, tokens)

    def is_uniform_decode(self, batch: StepBatch) -> bool:
        """Whether `batch` may run as a step of nothing but decodes."""
        return is_uniform_decode(batch, self._spec.block_size)

    def pack(self, batch: StepBatch, size: StepSize) -> Packed:
        """The arrays of `batch`, padded to `size`, as one buffer of int32."""
        return pack(batch, size, self._tile_tokens)

    def unpack(self, packed: Packed, buffer: Tensor, size: StepSize) -> StepInputs:
        """Views of the buffer's copy on the device."""
        return unpack(packed, buffer, size, len(self._spec.groups))

    def new_residual(self, num_tokens: int) -> Tensor:
        """Room for the residual stream, float32 [T, hidden]."""
        shape = num_tokens, self._config.hidden_size
        return torch.empty(shape, dtype=torch.float32, device=self._device)

    def new_qkv(self, num_tokens: int) -> Tensor:
        """Room for what `start` and `proceed` return, [T, (q + 2 kv heads) x head_dim]."""
        width = (self._q_heads + 2 * self._spec.num_kv_heads) * self._spec.head_dim
        return torch.empty((num_tokens, width), dtype=self._dtype, device=self._device)

    def new_attended(self, num_tokens: int) -> Tensor:
        """Room for what attention returns, [T, q heads x head_dim]."""
        shape = num_tokens, self._q_heads * self._spec.head_dim
        return torch.empty(shape, dtype=self._dtype, device=self._device)

    @torch.inference_mode()
    def start(self, token_ids: Tensor, residual: Tensor) -> Tensor:
        """Fill `residual` with embeddings; queries, keys and values of the first layer."""
        self._embed(token_ids, residual)
        return self._first_products(residual)

    def _embed(self, token_ids: Tensor, residual: Tensor) -> None:
        self._triton.embed(
            residual, token_ids, self._embedding, self._embedding_scale, self._sampled
        )

    def _first_products(self, residual: Tensor) -> Tensor:
        """Queries, keys and values of the first layer here, of a residual that is there already."""
        first, eps = self._layers[0], self._config.rms_norm_eps
        x = self._triton.add_normed(None, residual, first.input_norm, eps, None, self._dtype)
        return first.attention.qkv.run(x)

    @torch.inference_mode()
    def attend(
        self, number: int, qkv: Tensor, attended: Tensor, step: StepInputs, kv_cache: KVCache
    ) -> None:
        """Attention of layer `number` into `attended`; keys and values go to the cache."""
        layer = self._layers[number]
        heads = qkv.view(len(qkv), -1, self._spec.head_dim)
        page, group, rotation = kv_cache[layer.page], layer.group, self._rotations[number]
        window = self._spec.groups[group].sliding_window
        rule = layer.attention.rule
        shape = AttentionShape(
            self._q_heads, layer.attention.scale, window, rule.softcap, sinks=rule.sinks
        )
        if step.size.is_uniform:
            self._triton.uniform_attention(attended, heads, page, step, group, shape, rotation)
            return
        self._triton.rotate_and_store(heads, page, step, group, rotation)
        self._triton.mixed_attention(attended, heads, page, step, group, shape)

    @torch.inference_mode()
    def proceed(self, number: int, attended: Tensor, residual: Tensor) -> Tensor:
        """The rest of layer `number`, then queries, keys and values of the next one.

        After the last layer the final norm instead, float32 [T, hidden].
        """
        layer, kernels, eps = self._layers[number], self._triton, self._config.rms_norm_eps
        x = self._ranks.sum(layer.attention.output.run(attended))
        x = kernels.add_normed(x, residual, layer.post_norm, eps, layer.attention_norm, self._dtype)
        x = self._ranks.sum(layer.mlp.forward(x))
        is_last = number + 1 == len(self._layers)
        dtype = torch.float32 if is_last else self._dtype
        following = self._norm_after(number)
        x = kernels.add_normed(x, residual, following, eps, layer.mlp_norm, dtype)
        return x if is_last else self._layers[number + 1].attention.qkv.run(x)

    def run_layers(
        self, step: StepInputs, kv_cache: KVCache, residual: Tensor, attended: Tensor
    ) -> Tensor:
        """A whole step: float32 [T, hidden] after the final norm."""
        x = self.start(step.token_ids, residual)
        return self._run_from(x, step, kv_cache, residual, attended)

    def _run_from(
        self, x: Tensor, step: StepInputs, kv_cache: KVCache, residual: Tensor, attended: Tensor
    ) -> Tensor:
        """From the products of the first layer to the norm behind the last one."""
        for number in range(self.num_layers):
            self.attend(number, x, attended, step, kv_cache)
            x = self.proceed(number, attended, residual)
        return x

    def chosen_rows(self, hidden: Tensor, step: StepInputs) -> Tensor:
        """The rows of `hidden` that need logits."""
        if len(step.rows) == len(hidden):
            return hidden
        return hidden.index_select(0, step.rows)

    def _run(self, batch: StepBatch, kv_cache: KVCache) -> Tensor:
        step = self._inputs_of(batch)
        return self.chosen_rows(self._run_stage(batch, step, kv_cache)[1], step)

    def _layers_of_stage(self, batch: StepBatch, kv_cache: KVCache) -> tuple[Tensor, Tensor]:
        return self._run_stage(batch, self._inputs_of(batch), kv_cache)

    def _run_stage(
        self, batch: StepBatch, step: StepInputs, kv_cache: KVCache
    ) -> tuple[Tensor, Tensor]:
        """The residual behind the layers that are here, and its norm."""
        self._lora.begin_step(batch.adapters, self._device)
        attended = self.new_attended(step.size.tokens)
        if batch.residual is None and self._place.tensor_size == 1:
            residual = self.new_residual(step.size.tokens)
            self._embed(step.token_ids, residual)
            if batch.images is not None:
                self._place_images(residual, batch.images)
        else:  # from the stage before, or summed over the ranks' parts of the embedding
            residual = self._residual_before(batch)
        x = self._first_products(residual)
        if batch.images is None:
            return residual, self._run_from(x, step, kv_cache, residual, attended)
        return residual, self._run_seeing(x, batch, step, kv_cache, residual, attended)

    def _run_seeing(
        self,
        x: Tensor,
        batch: StepBatch,
        step: StepInputs,
        kv_cache: KVCache,
        residual: Tensor,
        attended: Tensor,
    ) -> Tensor:
        """`_run_from` with tokens that see to the end of their image."""
        reference = ReferenceKernels()
        plans = reference.plan_attention(batch, self._spec, self._dtype, self._device)
        for number, layer in enumerate(self._layers):
            heads, page = x.view(len(x), -1, self._spec.head_dim), kv_cache[layer.page]
            rotation = self._rotations[number]
            self._triton.rotate_and_store(heads, page, step, layer.group, rotation)
            plan, rule = plans[layer.group], layer.attention.rule
            attended.copy_(reference.attention(heads, page, plan, layer.attention.scale, rule))
            x = self.proceed(number, attended, residual)
        return x

    def _inputs_of(self, batch: StepBatch) -> StepInputs:
        size = StepSize(
            len(batch.token_ids), len(batch.num_computed), self.is_uniform_decode(batch)
        )
        packed = self.pack(batch, size)
        return self.unpack(packed, torch.from_numpy(packed).to(self._device), size)

    def _rotary_tables(self, num_positions: int) -> list[RotaryTable]:
        """None for the steps of the base class; `_pack_rotations` makes those of the kernels."""
        return []

    def _pack_rotations(self, num_positions: int) -> list[Rotation]:
        """One per layer; those of a kind share their table of angles, which is float32."""
        angles = [table.angles for table in self._tables_of_angles(num_positions, torch.float32)]
        eps = self._config.rms_norm_eps
        return [
            Rotation(
                angles[-1 if self._spec.groups[layer.group].sliding_window else 0],
                layer.attention.q_norm,
                layer.attention.k_norm,
                eps,
            )
            for layer in self._layers
        ]

    @staticmethod
    def _to_host(tokens: Tensor) -> IntArray:
        result: IntArray = tokens.cpu().numpy()
        return result
