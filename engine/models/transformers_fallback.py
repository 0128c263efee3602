"""A decoder as a ModelStep that runs transformers' own modelling code over our paged cache.

Slower than a model of ours, since its linears and norms are transformers'. A loaded model has to
give the same logits through the paged cache as through transformers' own attention, or is refused.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.kernels.kernel_set import KernelSet, KVCache, most_likely
from engine.kernels.step_batch import IntArray, StepBatch
from engine.kv_sizing import KVCacheSpec
from engine.model_config import ModelConfig
from engine.model_files.checkpoint import checkpoint_files
from engine.models.transformers_attention import (
    ATTENTION_NAME,
    LayerContext,
    PagedAttention,
    register_paged_attention,
)
from engine.models.transformers_check import require_equal_logits
from engine.models.transformers_config import find_decoder
from engine.models.transformers_weights import from_pretrained


class TransformersModel:
    """`model` is a loaded ...ForCausalLM of transformers that looks for our attention function."""

    def __init__(
        self, config: ModelConfig, model: Any, kernels: KernelSet, spec: KVCacheSpec
    ) -> None:
        self._model = model
        self._kernels = kernels
        self._spec = spec
        self._dtype, self._device = model.dtype, model.device
        self._can_choose_rows = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._attention = PagedAttention(
            config.architecture,
            kernels,
            self._dtype,
            config.layer_windows,
            config.max_position_embeddings,
            config.kv_sources,
        )
        self._attention.attach(model)

    @property
    def architecture(self) -> str:
        """The name that transformers' class has."""
        return self._attention.architecture

    @property
    def num_layers(self) -> int:
        """All layers, those that read the keys and values of others among them."""
        return len(self._attention.sources)

    @property
    def num_attention_calls(self) -> int:
        """How often the last step called our attention: once per layer, if all is well."""
        return self._attention.num_calls

    @property
    def weight_bytes(self) -> int:
        """Parameters and constant tables; what is tied counts once."""
        tensors = [*self._model.parameters(), *self._model.buffers()]
        return sum(tensor.nbytes for tensor in tensors)

    def create_kv_cache(self, num_blocks: int) -> KVCache:
        """One tensor per page of a block in the kernel set's layout."""
        return self._kernels.create_kv_cache(self._spec, num_blocks, self._dtype, self._device)

    @torch.inference_mode()
    def forward(self, batch: StepBatch, kv_cache: KVCache) -> Tensor:
        """Float32 logits [R, vocabulary] of the rows that ask for them."""
        rows = self._tensor(batch.logits_rows)
        if self._can_choose_rows:
            logits = self._run(self._model, batch, kv_cache, logits_to_keep=rows).logits[0]
        else:
            logits = self._run(self._model, batch, kv_cache).logits[0].index_select(0, rows)
        result: Tensor = logits.float()
        return result

    @torch.inference_mode()
    def hidden_states(self, batch: StepBatch, kv_cache: KVCache) -> Tensor:
        """Float32 [R, hidden] of the model below the head."""
        hidden = self._run(self._model.base_model, batch, kv_cache).last_hidden_state[0]
        result: Tensor = hidden.index_select(0, self._tensor(batch.logits_rows)).float()
        return result

    def greedy_tokens(self, batch: StepBatch, kv_cache: KVCache) -> IntArray:
        """The most likely token [R] of the rows that ask for logits."""
        tokens: IntArray = most_likely(self.forward(batch, kv_cache)).cpu().numpy()
        return tokens

    def _run(self, part: Any, batch: StepBatch, kv_cache: KVCache, **wanted: Tensor) -> Any:
        """All sequences as one row of tokens: only the attention keeps them apart."""
        plans = self._kernels.plan_attention(batch, self._spec, self._dtype, self._device)
        own = {
            layer: LayerContext(kv_cache[page], plan)
            for group, plan in zip(self._spec.groups, plans, strict=True)
            for page, layer in enumerate(group.layers)
        }
        sources = self._attention.sources
        self._attention.layers = {layer: own[source] for layer, source in enumerate(sources)}
        self._attention.num_calls = 0
        return part(
            input_ids=self._tensor(batch.token_ids)[None],
            position_ids=self._tensor(batch.positions)[None],
            use_cache=False,
            **wanted,
        )

    def _tensor(self, array: IntArray) -> Tensor:
        return torch.from_numpy(array).to(self._device)


def load_transformers_model(
    config: ModelConfig,
    kernels: KernelSet,
    spec: KVCacheSpec,
    device: torch.device,
    dtype: torch.dtype,
    on_shard: Callable[[int, int], None],
) -> TransformersModel:
    """Load the checkpoint in `config.path`, check it, and put it on `device`."""
    files = checkpoint_files(Path(config.path))
    on_shard(0, len(files))
    register_paged_attention()
    decoder = find_decoder(config)
    model = from_pretrained(
        decoder.model_class,
        config,
        decoder.config,
        dtype,
        attn_implementation=ATTENTION_NAME,
        key_mapping=decoder.key_mapping,
    ).to(device)
    on_shard(len(files), len(files))
    # Not over an fp8 cache: its rounding would hide smaller faults.
    exact = dataclasses.replace(spec, dtype_bytes=dtype.itemsize)
    require_equal_logits(TransformersModel(config, model, kernels, exact), model, exact)
    return TransformersModel(config, model, kernels, spec)
