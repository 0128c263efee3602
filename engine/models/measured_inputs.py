"""How large the inputs of a decoder's linears are, by which int4 weighs the errors of its rounding.

A few channels of a trained model carry inputs that are many times larger than all others, and an
error in a weight that meets one of them counts as much more.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.env import cpu_has_bf16
from engine.kernels.kernel_set import PackedLinear
from engine.kernels.reference import ReferenceKernels
from engine.kernels.step_batch import StepBatch
from engine.kv_sizing import KVCacheSpec
from engine.logger import get_logger
from engine.model_config import ModelConfig
from engine.models.decoder import DecoderModel
from engine.models.decoder_native import MEASURED_TOKENS, LayerInputs
from engine.models.weights import DecoderWeights

logger = get_logger(__name__)

_LEAST = 1e-3  # of the mean: no input counts for nothing
_LINEARS = ("qkv_inputs", "output_inputs", "gate_up_inputs", "down_inputs")


def measure_inputs(
    config: ModelConfig, weights: DecoderWeights, spec: KVCacheSpec
) -> list[LayerInputs]:
    """Of all layers of a dense decoder, over MEASURED_TOKENS tokens that are drawn by chance.

    Which channels are large depends little on the text, and EngineCore has no tokenizer. The plain
    torch decoder computes, in the weights' own memory.
    """
    start = time.monotonic()
    kernels = _MeasuringKernels()
    kept = dataclasses.replace(weights, layers=list(weights.layers))
    model = DecoderModel(config, kept, kernels, MEASURED_TOKENS, spec)
    batch = _batch(config.vocab_size, spec)
    model.hidden_states(batch, model.create_kv_cache(1 + batch.block_table.shape[2]))
    found = [_importance(squares) for squares in kernels.squares]
    size = len(_LINEARS)
    layers = [
        dict(zip(_LINEARS, found[first : first + size], strict=True))
        for first in range(0, len(found), size)
    ]
    logger.info("Measuring inputs for int4 took %.2f seconds", time.monotonic() - start)
    return layers


@dataclass(frozen=True, slots=True)
class _MeasuringKernels(ReferenceKernels):
    """ReferenceKernels that add up the squares of each linear's inputs, in packing order."""

    squares: list[Tensor] = field(default_factory=list)

    def pack_linear(self, weight: Tensor, bias: Tensor | None) -> PackedLinear:
        """Nothing is packed: one step runs, and a second copy of all weights may not fit."""
        squares = torch.zeros(weight.shape[1])
        self.squares.append(squares)
        dtype = weight.dtype if cpu_has_bf16() else torch.float32  # torch's bf16 is slow without

        def run(x: Tensor) -> Tensor:
            squares.add_(x.float().square().sum(0))
            added = None if bias is None else bias.to(dtype)
            return F.linear(x.to(dtype), weight.to(dtype), added).to(weight.dtype)

        return PackedLinear(run, weight.nbytes, is_copy=False)

    def pack_head(self, weight: Tensor) -> PackedLinear:
        """Hidden states are all that is computed here."""

        def run(x: Tensor) -> Tensor:
            raise AssertionError("no row of the measured step asks for logits")

        return PackedLinear(run, weight.nbytes, is_copy=False)


def _batch(vocab_size: int, spec: KVCacheSpec) -> StepBatch:
    """One sequence, alone in the cache's blocks from 1."""
    positions, groups = np.arange(MEASURED_TOKENS), len(spec.groups)
    table = 1 + np.arange(-(-MEASURED_TOKENS // spec.block_size))
    slots = table[positions // spec.block_size] * spec.block_size + positions % spec.block_size
    return StepBatch(
        token_ids=np.random.default_rng(0).integers(0, vocab_size, MEASURED_TOKENS),
        positions=positions,
        slot_mapping=np.tile(slots, (groups, 1)),
        query_start_loc=np.array([0, MEASURED_TOKENS]),
        num_computed=np.zeros(1, dtype=np.int64),
        block_table=np.tile(table, (groups, 1, 1)),
        logits_rows=np.zeros(0, dtype=np.int64),
    )


def _importance(squares: Tensor) -> Tensor:
    mean = squares.mean().clamp(min=1e-30)
    return (squares / mean).clamp(min=_LEAST).bfloat16()
