"""TritonKernels: the set of operations, and fused ones for `engine.models.decoder_triton`.

Matrix products are torch's, but for weights of 8 bits. The layout of the cache is the reference
set's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels.kernel_set import (
    PLAIN_SCORES,
    DrawSettings,
    KVCache,
    PackedLinear,
    ScoreRule,
)
from engine.kernels.reference import ReferenceKernels
from engine.kernels.scaled_weights import ScaledWeight, scaled_weight
from engine.kernels.step_batch import StepBatch
from engine.kernels.triton import activation, argmax, embedding, norm, sampling, weight_products
from engine.kernels.triton.decode_attention import (
    AttentionShape,
    DecodeRows,
    DecodeScratch,
    decode_attention,
)
from engine.kernels.triton.heads import Rotation, rotate_and_store
from engine.kernels.triton.prefill_attention import (
    PrefillTiles,
    prefill_attention,
    tokens_per_tile,
)
from engine.kernels.triton.runtime import Launch, launch
from engine.kernels.triton.step_inputs import Packed, StepInputs, StepSize, pack, unpack
from engine.kernels.triton.targets import Target
from engine.kernels.weight_formats import BF16, WeightFormats
from engine.kv_sizing import KVCacheSpec

_MOST_SPLITS = 32
_MOST_COUNTED = 2**31 - 1
_PROGRAMS_PER_PROCESSOR = 2  # that decode attention wants at least
_AS_THEY_ARE = WeightFormats()


@dataclass(frozen=True, slots=True)
class TritonPlan:
    """One KV group of a step whose model calls single operations."""

    batch: StepBatch
    spec: KVCacheSpec
    group: int
    device: torch.device
    inputs: list[StepInputs]  # made when the number of query heads is known


class TritonKernels:
    """Kernels for one `target`; `launch` starts them, and may be one that records.

    `formats` are those that linears are rounded to when they are packed.
    """

    name = "triton"

    def __init__(
        self, target: Target, launch: Launch = launch, formats: WeightFormats = _AS_THEY_ARE
    ) -> None:
        self.target = target
        self._launch = launch
        self._formats = formats
        self._scratch: list[DecodeScratch] = []  # recorded graphs go on using the older ones
        self._argmax_scratch: tuple[Tensor, Tensor, Tensor] | None = None

    def pack_linear(self, weight: Tensor, bias: Tensor | None) -> PackedLinear:
        """The weight as it is, or rounded to 8 bits."""
        if self._formats.layers != BF16:
            return self._pack_scaled(weight, bias, self._formats.layers, weight.dtype)
        num_bytes = weight.nbytes + (bias.nbytes if bias is not None else 0)
        dtype = weight.dtype
        return PackedLinear(lambda x: F.linear(x.to(dtype), weight, bias), num_bytes, is_copy=False)

    def pack_head(self, weight: Tensor) -> PackedLinear:
        """Float32 results of products in the weight's format: logits are not rounded to 16 bit."""
        if self._formats.head != BF16:
            return self._pack_scaled(weight, None, self._formats.head, torch.float32)
        dtype = weight.dtype

        def run(x: Tensor) -> Tensor:
            rounded = x.to(dtype)
            if dtype == torch.float32:
                return F.linear(rounded, weight)
            if weight.device.type == "cpu":
                return F.linear(rounded.float(), weight.float())
            if torch.version.hip is not None:
                return F.linear(rounded, weight)  # the model looks at the leading logits again
            return torch.mm(rounded, weight.t(), out_dtype=torch.float32)

        return PackedLinear(run, weight.nbytes, is_copy=False)

    def _pack_scaled(
        self, weight: Tensor, bias: Tensor | None, number_format: str, out_dtype: torch.dtype
    ) -> PackedLinear:
        scaled = scaled_weight(weight, number_format)
        num_bytes = scaled.num_bytes + (bias.nbytes if bias is not None else 0)
        width, dtype = len(weight), weight.dtype
        run = self._int8_product if scaled.is_int8 else self._fp8_product

        def linear(x: Tensor) -> Tensor:
            out = torch.empty((len(x), width), dtype=out_dtype, device=x.device)
            return run(out, x.to(dtype).contiguous(), scaled, bias)

        return PackedLinear(linear, num_bytes, is_copy=True)

    def _int8_product(
        self, out: Tensor, x: Tensor, weight: ScaledWeight, bias: Tensor | None
    ) -> Tensor:
        tiles = self.target.tiles
        numbers = torch.empty_like(x, dtype=torch.int8)
        scales = torch.empty(len(x), dtype=torch.float32, device=x.device)
        weight_products.quantize_rows(self._launch, numbers, scales, x, tiles.row, tiles.row_warps)
        return weight_products.int8_product(
            self._launch, out, numbers, scales, weight, bias, self.target
        )

    def _fp8_product(
        self, out: Tensor, x: Tensor, weight: ScaledWeight, bias: Tensor | None
    ) -> Tensor:
        return weight_products.fp8_product(self._launch, out, x, weight, bias, self.target)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        rows = x.float().contiguous()
        return norm.add_rms_norm(self._launch, torch.empty_like(rows), None, rows, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        out = torch.empty_like(residual)
        return norm.add_rms_norm(self._launch, out, x.contiguous(), residual, weight, eps)

    def add_normed(
        self,
        x: Tensor | None,
        residual: Tensor,
        weight: Tensor,
        eps: float,
        x_weight: Tensor | None,
        dtype: torch.dtype,
    ) -> Tensor:
        """Both norms around an addition in one launch, rounded to what the next product takes."""
        out = torch.empty_like(residual, dtype=dtype)
        return norm.add_rms_norm(self._launch, out, x, residual, weight, eps, x_weight)

    def rotary(self, heads: Tensor, cos: Tensor, sin: Tensor) -> None:
        """By torch: a decoder of ours rotates inside of other kernels."""
        ReferenceKernels().rotary(heads, cos, sin)

    def activate_and_mul(self, gate_up: Tensor, activation_name: str) -> Tensor:
        if activation_name == "clamped_swiglu":
            return ReferenceKernels().activate_and_mul(gate_up, activation_name)
        out = gate_up.new_empty(len(gate_up), gate_up.shape[-1] // 2)
        tiles = self.target.tiles
        return activation.activate_and_mul(
            self._launch, out, gate_up, activation_name, tiles.row, tiles.row_warps
        )

    def embed(
        self,
        residual: Tensor,
        token_ids: Tensor,
        table: Tensor,
        scale: float,
        sampled: Tensor | None = None,
    ) -> Tensor:
        """Fill `residual` [T, hidden] float32 with scaled rows of the table."""
        tiles = self.target.tiles
        return embedding.embed(
            self._launch, residual, token_ids, table, scale, tiles.row, tiles.row_warps, sampled
        )

    def most_likely(self, logits: Tensor, tokens: Tensor | None = None) -> Tensor:
        """As `kernel_set.most_likely`, but one launch for all rows and parts of the vocabulary;
        into `tokens` [R] int64 where it is given.
        """
        rows, vocabulary = logits.shape
        tiles = self.target.tiles
        splits = min(self._splits(rows), -(-vocabulary // tiles.row))
        scratch = self._argmax_scratch
        if scratch is None or len(scratch[2]) < rows:
            count, device = rows * _MOST_SPLITS, logits.device
            scratch = self._argmax_scratch = (
                torch.empty(count, dtype=torch.float32, device=device),
                torch.empty(count, dtype=torch.int32, device=device),
                torch.zeros(rows, dtype=torch.int32, device=device),
            )
        if tokens is None:
            tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
        return argmax.argmax(
            self._launch, tokens, logits, scratch, splits, tiles.row, tiles.row_warps
        )

    def draw(self, logits: Tensor, settings: DrawSettings) -> Tensor:
        """A `kernel_set.Draw` in one launch, its settings in one copy."""
        tokens = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
        packed = torch.from_numpy(packed_settings(settings)).to(logits.device)
        return self.draw_packed(logits, packed, tokens)

    def draw_packed(self, logits: Tensor, packed: Tensor, tokens: Tensor) -> Tensor:
        """The same with `packed_settings` that are on the device, into `tokens` [R] int64."""
        heat, share, floor, numbers = packed[: 4 * len(logits)].view(torch.float32).chunk(4)
        kept = packed[4 * len(logits) :]
        tiles = self.target.tiles
        return sampling.sample(
            self._launch,
            tokens,
            logits,
            heat,
            kept,
            share,
            floor,
            numbers,
            tiles.row,
            tiles.row_warps,
        )

    def create_kv_cache(
        self, spec: KVCacheSpec, num_blocks: int, dtype: torch.dtype, device: torch.device
    ) -> KVCache:
        """Zeroed tensors in the layout of the reference set."""
        return ReferenceKernels().create_kv_cache(spec, num_blocks, dtype, device)

    def plan_attention(
        self, batch: StepBatch, spec: KVCacheSpec, dtype: torch.dtype, device: torch.device
    ) -> list[TritonPlan]:
        """The same arrays for all groups."""
        inputs: list[StepInputs] = []
        return [TritonPlan(batch, spec, group, device, inputs) for group in range(len(spec.groups))]

    def store_kv(self, kv: Tensor, layer_cache: Tensor, plan: TritonPlan) -> None:
        slots = torch.from_numpy(plan.batch.slot_mapping[plan.group]).to(plan.device, torch.int32)
        rotate_and_store(self._launch, kv, layer_cache, slots, slots, None)

    def attention(
        self,
        qkv: Tensor,
        layer_cache: Tensor,
        plan: TritonPlan,
        scale: float,
        rule: ScoreRule = PLAIN_SCORES,
    ) -> Tensor:
        spec = plan.spec
        q_heads = qkv.shape[1] - 2 * spec.num_kv_heads
        if not plan.inputs:
            size = StepSize(len(plan.batch.token_ids), len(plan.batch.num_computed))
            packed = pack(plan.batch, size, self.tile_tokens(q_heads, spec))
            buffer = torch.from_numpy(packed).to(plan.device)
            plan.inputs.append(unpack(packed, buffer, size, len(spec.groups)))
        window = spec.groups[plan.group].sliding_window
        out = qkv.new_empty(len(qkv), q_heads * spec.head_dim)
        shape = AttentionShape(q_heads, scale, window, rule.softcap, sinks=rule.sinks)
        self.mixed_attention(out, qkv, layer_cache, plan.inputs[0], plan.group, shape)
        return out

    def tile_tokens(self, q_heads: int, spec: KVCacheSpec) -> int:
        """Tokens of a chunk that one program of the prefill kernel computes."""
        return tokens_per_tile(self.target.tiles, q_heads // spec.num_kv_heads, spec.head_dim)

    def uniform_attention(
        self,
        out: Tensor,
        qkv: Tensor,
        page: Tensor,
        step: StepInputs,
        group: int,
        shape: AttentionShape,
        rotation: Rotation,
    ) -> None:
        """One launch for a step of decodes: norms, rotation, write, attention."""
        rows = DecodeRows(
            step.size.sequences,
            None,
            None,
            step.contexts,
            step.tables,
            step.table_width,
            group * step.size.sequences,
        )
        self._decode(out, qkv, page, rows, shape, step.slots[group], rotation)

    def rotate_and_store(
        self, qkv: Tensor, page: Tensor, step: StepInputs, group: int, rotation: Rotation
    ) -> None:
        """Before `mixed_attention`: all keys and values of the step are in the cache then."""
        tokens = qkv[: step.num_tokens]
        rotate_and_store(self._launch, tokens, page, step.slots[group], step.positions, rotation)

    def mixed_attention(
        self,
        out: Tensor,
        qkv: Tensor,
        page: Tensor,
        step: StepInputs,
        group: int,
        shape: AttentionShape,
    ) -> None:
        """Attention of any step whose keys and values are stored: decodes, then chunks."""
        if len(step.decodes):
            rows = DecodeRows(
                len(step.decodes),
                step.decodes,
                step.query_start,
                step.contexts,
                step.tables,
                step.table_width,
                group * step.size.sequences,
            )
            self._decode(out, qkv, page, rows, shape)
        if len(step.tile_starts):
            chunks = PrefillTiles(
                step.tile_sequences,
                step.tile_starts,
                step.query_start,
                step.contexts,
                step.tables[group],
                step.table_width,
            )
            tiles = self.target.tiles
            prefill_attention(self._launch, out, qkv, page, chunks, shape, tiles)

    def _decode(
        self,
        out: Tensor,
        qkv: Tensor,
        page: Tensor,
        rows: DecodeRows,
        shape: AttentionShape,
        slots: Tensor | None = None,
        rotation: Rotation | None = None,
    ) -> None:
        kv_heads, head_dim = page.shape[3:]
        splits = self._splits(rows.count * kv_heads)
        sizes = rows.count, shape.q_heads, kv_heads, head_dim, splits
        if not self._scratch or not self._scratch[-1].has_room(*sizes):
            self._scratch.append(DecodeScratch.allocate(*sizes, qkv.device))
        scratch = self._scratch[-1]
        tiles = self.target.tiles
        decode_attention(
            self._launch, out, qkv, page, rows, shape, scratch, tiles, splits, slots, rotation
        )

    def _splits(self, programs: int) -> int:
        """So many parts that `programs` of them keep every multiprocessor busy."""
        wanted = _PROGRAMS_PER_PROCESSOR * self.target.processors
        return max(1, min(_MOST_SPLITS, wanted // programs))


def packed_settings(settings: DrawSettings) -> Packed:
    """Five arrays [R] behind each other: temperature, top-p, min-p, uniforms, all four as the bits
    of float32, and top-k.
    """
    temperature, top_k, top_p, min_p, uniforms = settings
    floats = np.concatenate((temperature, top_p, min_p, uniforms), dtype=np.float32)
    counts = np.minimum(top_k, _MOST_COUNTED).astype(np.int32)
    return np.concatenate((floats.view(np.int32), counts))
