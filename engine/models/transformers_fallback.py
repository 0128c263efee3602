"""A decoder as a ModelStep that runs transformers' own modelling code over our paged cache.

Slower than a model of ours, since its linears and norms are transformers'. A loaded model has to
give the same logits through the paged cache as through transformers' own attention, or is refused.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.errors import ModelError
from engine.kernels.kernel_set import KernelSet, KVCache, most_likely
from engine.kernels.low_rank import Adapter, LowRank
from engine.kernels.step_batch import IntArray, StepBatch
from engine.kv_sizing import KVCacheSpec
from engine.layers.lora import LoraTable
from engine.lora_adapters import AdapterModule
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
from engine.models.transformers_weights import from_pretrained, held_bytes


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
        self._lora = LoraTable()
        self._adapted: set[Hashable] = set()  # modules with a hook for adapters

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
        return held_bytes(self._model)

    def require_fitting(self, modules: Sequence[AdapterModule], folder: Path) -> None:
        """Raise ModelError for an adapter that was made for another model."""
        from transformers.pytorch_utils import Conv1D

        known = dict(self._model.named_modules())
        # The head computes only rows that are asked for, an expert those that come to it: what
        # says which row has which adapter is of all tokens. A router gives more than its linear's.
        ends = {self._model.get_input_embeddings(), self._model.get_output_embeddings()}
        for module in modules:
            found = known.get(module.name)
            is_linear = isinstance(found, torch.nn.Linear | Conv1D) and found not in ends
            if found is None or not is_linear or ".experts." in module.name:
                raise ModelError(
                    f"The adapter in {folder} changes {module.name}, which is no linear of "
                    f"{self.architecture} that can be adapted; it was made for another model."
                )
            weight = found.weight
            if sorted(weight.shape) != sorted((module.outputs, module.inputs)):
                raise ModelError(
                    f"The adapter in {folder} was made for another model: its {module.name} maps "
                    f"{module.inputs} to {module.outputs} values, and the weight is "
                    f"{list(weight.shape)}."
                )

    def adapter_of(self, found: Iterable[tuple[AdapterModule, LowRank]]) -> Adapter:
        """The factors by the name that the module has in transformers' model."""
        return {module.name: low_rank for module, low_rank in found}

    def load_adapter(self, slot: int, adapter: Adapter) -> None:
        """Rows whose batch names `slot` have it from now on."""
        modules = dict(self._model.named_modules())
        for key in adapter.keys() - self._adapted:
            modules[key].register_forward_hook(self._hook(key))
            self._adapted.add(key)
        self._lora.load(slot, adapter)

    def remove_adapter(self, slot: int) -> None:
        """Free the slot for another adapter; no row may name it any more."""
        self._lora.remove(slot)

    def _hook(self, key: Hashable) -> Callable[[Any, tuple[Tensor, ...], Tensor], Tensor]:
        def add(_module: Any, inputs: tuple[Tensor, ...], out: Tensor) -> Tensor:
            x = inputs[0].flatten(0, -2)  # all tokens of the step, one behind the other
            return self._lora.add(key, x, out.flatten(0, -2)).view(out.shape)

        return add

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
        self._lora.begin_step(batch.adapters, self._device)
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
