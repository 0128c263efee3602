"""KernelSet and ModelStep: what a model needs from the kernels below it.

A set either supplies the single operations of KernelSet, from which `engine.models` builds a
ModelStep, or (`native`) it brings a ModelStep of its own that runs the whole step in one call. The
layout of the KV cache is the set's business. Which set runs: `engine.kernels.selection`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.errors import ConfigError
from engine.kernels.step_batch import NO_TOKEN, IntArray, StepBatch
from engine.kv_sizing import KVCacheSpec

_KERNEL_SETS = {"reference": "engine.kernels.reference:ReferenceKernels"}

KVCache: TypeAlias = list[Tensor]
"""One tensor per page of a block, laid out as the kernel set likes it.

Layers of different KV groups share a tensor; the blocks in it belong to one group each.
"""

FloatArray: TypeAlias = NDArray[np.float32]

DrawSettings: TypeAlias = tuple[FloatArray, IntArray, FloatArray, FloatArray, FloatArray]
"""Arrays [R]: temperature (0: the most likely token), top-k (0: off), top-p, min-p, and a uniform
number in [0, 1).
"""

Draw: TypeAlias = Callable[[Tensor, DrawSettings], Tensor]
"""One token [R] per row of float32 logits [R, vocabulary], which it leaves as they are.

A row with a NaN gets NO_TOKEN.
"""

AttentionPlan: TypeAlias = Any
"""What a set derives once per step from a StepBatch and uses in every layer; private to the set."""


@dataclass(frozen=True, slots=True)
class ScoreRule:
    """What becomes of attention scores beside their scale.

    `softcap` c makes c tanh(score / c) of each. `sinks` [q heads] are scores of one more key for
    each head, whose value is zero.
    """

    softcap: float | None = None
    sinks: Tensor | None = None


PLAIN_SCORES = ScoreRule()


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A linear layer packed once at load time.

    `run` maps [T, in], rounded to the weights' dtype, to [T, out] in that dtype.
    """

    run: Callable[[Tensor], Tensor]
    num_bytes: int
    is_copy: bool  # False: it uses the tensor that it was given


class ModelStep(Protocol):
    """A loaded model that can run one step."""

    @property
    def weight_bytes(self) -> int:
        """Bytes held by parameters, packed copies included."""

    def create_kv_cache(self, num_blocks: int) -> KVCache:
        """Allocate the cache; block 0 is the null block and reads as zeros."""

    def forward(self, batch: StepBatch, kv_cache: KVCache) -> Tensor:
        """Write the KV of all tokens and return float32 logits [R, vocabulary] on the device."""

    def hidden_states(self, batch: StepBatch, kv_cache: KVCache) -> Tensor:
        """The same step, but float32 [R, hidden] after the final norm instead of logits."""

    def greedy_tokens(self, batch: StepBatch, kv_cache: KVCache) -> IntArray:
        """The same step, but of each row [R] only the token with the largest logit; NO_TOKEN where
        the logits are no numbers.
        """


class PendingTokens(Protocol):
    """Tokens on their way from the device."""

    def wait(self) -> IntArray:
        """Token [R] of each row, once they are here."""


class AheadStep(Protocol):
    """A model whose steps can be started before the tokens of the step before are known.

    Nothing waits for the device but the tokens that `download` returns.
    """

    def start(self, batch: StepBatch, kv_cache: KVCache) -> Tensor:
        """Start a step; float32 logits [R, vocabulary], to be changed in place as one likes."""

    def choose_tokens(self, logits: Tensor, settings: DrawSettings | None) -> Tensor:
        """Tokens [R] on the device, by `settings` or the most likely ones; before the next step is
        started, which may name them by their rows (`StepBatch.token_ids`).
        """

    def send(self, tensor: Tensor) -> Tensor:
        """A copy on the host, whole once tokens whose download began later are here."""

    def download(self, tokens: Tensor) -> PendingTokens:
        """Start to bring them to the host."""


@runtime_checkable
class KeepingStep(ModelStep, Protocol):
    """A model that keeps what requests need, by their rows in the batch."""

    def forget(self, rows: IntArray) -> None:
        """These requests have ended, or are computed anew if they come back."""


class StageStep(ModelStep, Protocol):
    """A model that can be a pipeline stage before the last."""

    def residual(self, batch: StepBatch, kv_cache: KVCache) -> Tensor:
        """The same step, but float32 [T, hidden], what the stage leaves for the next one."""


class KernelSet(Protocol):
    """Operations of a decoder layer. Tensors are [T, features] on one device.

    Linears, attention and activations work in the model's dtype, the residual stream and the norms
    in float32: rounding the residual to 16 bit in every layer is what costs most accuracy.
    """

    name: str

    def pack_linear(self, weight: Tensor, bias: Tensor | None) -> PackedLinear:
        """Pack [out, in] into whatever form this set multiplies fastest."""

    def pack_head(self, weight: Tensor) -> PackedLinear:
        """The same for the head, whose result may also be float32."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Root-mean-square norm over the last dimension; float32 in and out."""

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Add x, of any dtype, to the float32 `residual` in place; return the norm of the sum."""

    def rotary(self, heads: Tensor, cos: Tensor, sin: Tensor) -> None:
        """Rotate [T, heads, head_dim] in place; cos and sin are [T, 1, head_dim], the first half of
        sin is negated.
        """

    def activate_and_mul(self, gate_up: Tensor, activation: str) -> Tensor:
        """activation(first half) * second half, over the last dimension.

        `clamped_swiglu` is gate * sigmoid(1.702 gate) * (up + 1), of values that are at most 7.
        """

    def create_kv_cache(
        self, spec: KVCacheSpec, num_blocks: int, dtype: torch.dtype, device: torch.device
    ) -> KVCache:
        """Allocate one page tensor after the other."""

    def plan_attention(
        self, batch: StepBatch, spec: KVCacheSpec, dtype: torch.dtype, device: torch.device
    ) -> list[AttentionPlan]:
        """Whatever all layers of a KV group share in this step: indices, masks, splits."""

    def store_kv(self, kv: Tensor, layer_cache: Tensor, plan: AttentionPlan) -> None:
        """Write [T, 2 x kv_heads, head_dim] (keys, then values) to the slots of the batch."""

    def attention(
        self,
        qkv: Tensor,
        layer_cache: Tensor,
        plan: AttentionPlan,
        scale: float,
        rule: ScoreRule = PLAIN_SCORES,
    ) -> Tensor:
        """Causal attention: [T, q + 2 kv heads, head_dim] -> [T, q heads x head_dim].

        The keys and values of the step itself have been stored. `scale` multiplies the scores.
        """


def most_likely(logits: Tensor) -> Tensor:
    """Token with the largest logit of each row, the first of equals; NO_TOKEN where one is NaN."""
    if logits.device.type != "cpu":
        tokens = logits.argmax(-1)  # of a NaN, where there is one
        largest = logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        return tokens.masked_fill_(largest.isnan(), NO_TOKEN)
    # On one thread numpy's is 14 times faster (32 rows of 49152: 0.09 against 1.3 ms).
    rows = logits.numpy()
    found = rows.argmax(-1)
    found[np.isnan(rows[np.arange(len(rows)), found])] = NO_TOKEN
    return torch.from_numpy(found)


def create_kernel_set(name: str) -> KernelSet:
    """Import and construct the set of single operations called `name`."""
    if name not in _KERNEL_SETS:
        raise ConfigError(f"Unknown kernel set {name!r}; known: {', '.join(_KERNEL_SETS)}.")
    module_name, _, class_name = _KERNEL_SETS[name].partition(":")
    return cast(KernelSet, getattr(importlib.import_module(module_name), class_name)())
