"""NativeModelStep: a decoder whose whole step is one C++ call.

KV layout of a page: for each (block, kv head) the keys as [dim pairs][block_size][2], then the
values as [block_size][head_dim]; bfloat16, or the bits of float8 e4m3. step.cpp owns the details.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import weakref
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from engine.kernels.attention_plan import storage_dtype
from engine.kernels.kernel_set import KVCache
from engine.kernels.low_rank import Adapter, LowRank
from engine.kernels.native.library import (
    Batch,
    LayerTensors,
    LoraTensors,
    ModelTensors,
    RankMemory,
    Shape,
)
from engine.kernels.native.packed_cache import PackedFile
from engine.kernels.step_batch import ImageTokens, IntArray, StepBatch
from engine.kernels.weight_formats import WeightFormats
from engine.kv_sizing import KVCacheSpec

_LOGITS, _HIDDEN_STATES, _TOKENS, _RESIDUAL = 0, 1, 2, 3  # Output in step.cpp
_OUT_OF_MEMORY = 1
_REFUSALS = {  # the other values of Status in step.cpp
    2: "a token id is outside the vocabulary of {vocab}",
    3: "a position is outside the {num_positions} positions of the model",
    4: "a slot is outside the cache of {num_blocks} blocks",
    5: "query_start_loc does not ascend from 0 to the number of tokens",
    6: "a block table is too short or names a block outside the cache of {num_blocks} blocks",
    7: "a logits row is outside the batch",
    8: "it has more tokens than the ranks have shared memory for",
    9: "the ranks of a layer do not agree about how many tokens it has",
    10: "a token has an adapter in a slot that is empty",
    11: "a token of an image sees keys that the step does not have",
    12: "a token has an embedding that the step does not bring",
}
_LORA_PLACES = ("qkv", "output", "gate_up", "down")  # LoraPlace in step.cpp


RotaryTensors: TypeAlias = tuple[Tensor, Tensor]
"""float32 cosines and sines, each [positions, head_dim / 2]."""


@dataclass(frozen=True, slots=True)
class NativeKernels:
    """The loaded library and how many threads its models use."""

    library: ctypes.CDLL
    num_threads: int
    name: str = "native"
    formats: WeightFormats = field(default_factory=WeightFormats)
    instructions: str = ""  # what the library was built for
    build: str = ""  # from which sources, by which compiler: packed weights belong to it
    max_joint_prefill_tokens: int = 256
    """Of several prompts in one step: from here on a step takes as much longer as it has rows."""


class NativeModelStep:
    """Owns the C++ model. Load each layer, then the ends; after that it runs steps."""

    def __init__(
        self,
        kernels: NativeKernels,
        shape: Shape,
        spec: KVCacheSpec,
        ranks: RankMemory | None = None,
    ) -> None:
        """`ranks` is the memory of several that share each layer."""
        self._library = kernels.library
        self._shape = shape
        self._spec = spec
        self._kept: tuple[Tensor, ...] = ()
        self._cache: KVCache = []
        self._pages: ctypes.Array[ctypes.c_void_p] = (ctypes.c_void_p * 0)()
        windows = [group.sliding_window or 0 for group in spec.groups]
        self._handle = self._library.stoker_model_create(
            ctypes.byref(shape), (ctypes.c_int64 * len(windows))(*windows)
        )
        if not self._handle:
            raise MemoryError("no memory or no threads for the packed weights")
        if ranks is not None:
            self._library.stoker_model_join(self._handle, ctypes.byref(ranks))
        self._finalizer = weakref.finalize(
            self, self._library.stoker_model_destroy, ctypes.c_void_p(self._handle)
        )

    def close(self) -> None:
        """Free the weights and end the threads; no step may follow."""
        self._finalizer()
        self._kept = ()

    def load_layer(self, number: int, *, group: int, page: int, **tensors: Tensor | None) -> None:
        """Pack one layer; the names are the fields of LayerTensors. The tensors may go then."""
        addresses = {name: _bf16_address(tensor) for name, tensor in tensors.items()}
        layer = LayerTensors(group=group, page=page, **addresses)
        self._library.stoker_model_load_layer(self._open_handle(), number, ctypes.byref(layer))

    def load_ends(
        self,
        embedding: Tensor,
        final_norm: Tensor | None,
        lm_head: Tensor | None,
        rotary: RotaryTensors,
        local_rotary: RotaryTensors,
    ) -> None:
        """Pack norm and head, keep the rest; `local_rotary` is for layers with a window.

        After `read_packed`, norm and head are there already.
        """
        self._kept = (embedding, *rotary, *local_rotary)
        ends = ModelTensors(
            embedding=_bf16_address(embedding),
            final_norm=_bf16_address(final_norm),
            lm_head=_bf16_address(lm_head),
            cosines=rotary[0].data_ptr(),
            sines=rotary[1].data_ptr(),
            local_cosines=local_rotary[0].data_ptr(),
            local_sines=local_rotary[1].data_ptr(),
        )
        if self._library.stoker_model_load_ends(self._open_handle(), ctypes.byref(ends)):
            raise MemoryError("no memory for the model")

    def load_adapter(self, slot: int, adapter: Adapter) -> None:
        """Copy the matrices of all layers; bf16, on this machine's memory."""
        found = [
            _lora_tensors(adapter.get((layer, place)))
            for layer in range(self._shape.num_layers)
            for place in _LORA_PLACES
        ]
        tensors = (LoraTensors * len(found))(*found)
        if self._library.stoker_model_load_adapter(self._open_handle(), slot, tensors):
            raise MemoryError("no memory for the adapter")

    def remove_adapter(self, slot: int) -> None:
        """Free what the slot holds."""
        self._library.stoker_model_remove_adapter(self._open_handle(), slot)

    def read_packed(self, file: PackedFile) -> None:
        """Take the packed weights from a file; layers and ends then come without tensors."""
        with file.path.open("rb") as source:
            status = self._library.stoker_model_read_packed(
                self._open_handle(), source.fileno(), file.offsets[0]
            )
        if status or file.parts[0].nbytes != self._packed_bytes():
            raise OSError(f"{file.path} ends too early")

    def packed_parts(self) -> list[memoryview]:
        """What `read_packed` takes, and the embedding; views that the model must outlive."""
        address = self._library.stoker_model_packed_weights(self._open_handle())
        packed = (ctypes.c_char * self._packed_bytes()).from_address(address)
        embedding = self._kept[0].view(torch.uint8).numpy()
        rows = embedding.data.cast("B") if embedding.size else memoryview(b"")
        return [memoryview(packed).cast("B"), rows]

    def _packed_bytes(self) -> int:
        return int(self._library.stoker_model_weight_bytes(self._open_handle()))

    @property
    def weight_bytes(self) -> int:
        """Packed weights and the embedding, which is read row by row."""
        return self._packed_bytes() + self._kept[0].nbytes

    def create_kv_cache(self, num_blocks: int) -> KVCache:
        """Zeroed tensors whose pages come from the system on first use."""
        spec = self._spec
        shape = (num_blocks, spec.num_kv_heads, 2, spec.block_size * spec.head_dim)
        stored = storage_dtype(spec, torch.bfloat16)
        num_bytes = math.prod(shape) * stored.itemsize
        return [
            torch.from_numpy(np.zeros(num_bytes, dtype=np.uint8)).view(stored).view(shape)
            for _ in range(spec.layers_per_block)
        ]

    def residual(self, batch: StepBatch, kv_cache: KVCache) -> Tensor:
        """Float32 [T, hidden] behind the layers of a stage that is not the last."""
        states = torch.empty(len(batch.token_ids), self._shape.hidden)
        self._run(batch, kv_cache, _RESIDUAL, states.data_ptr())
        return states

    def forward(self, batch: StepBatch, kv_cache: KVCache) -> Tensor:
        """Float32 logits [R, vocabulary] of the rows that ask for them, on the first rank."""
        logits = torch.empty(len(batch.logits_rows), self._shape.vocab)
        self._run(batch, kv_cache, _LOGITS, logits.data_ptr())
        return logits

    def hidden_states(self, batch: StepBatch, kv_cache: KVCache) -> Tensor:
        """Float32 [R, hidden] after the final norm, of the rows that would ask for logits."""
        hidden = torch.empty(len(batch.logits_rows), self._shape.hidden)
        self._run(batch, kv_cache, _HIDDEN_STATES, hidden.data_ptr())
        return hidden

    def greedy_tokens(self, batch: StepBatch, kv_cache: KVCache) -> IntArray:
        """The most likely token [R] of the rows; their logits are never written."""
        tokens = np.empty(len(batch.logits_rows), dtype=np.int64)
        self._run(batch, kv_cache, _TOKENS, tokens.ctypes.data)
        return tokens

    def _run(self, batch: StepBatch, kv_cache: KVCache, output: int, target: int) -> None:
        arrays = (
            batch.token_ids,
            batch.positions,
            batch.slot_mapping,
            batch.query_start_loc,
            batch.num_computed,
            batch.block_table,
            batch.logits_rows,
        )
        # One copy of them all: to ask seven arrays for their addresses takes longer.
        flat = np.concatenate([array.ravel() for array in arrays], dtype=np.int64)
        addresses = itertools.accumulate(
            (array.size * flat.itemsize for array in arrays[:-1]), initial=flat.ctypes.data
        )
        step = Batch(
            *addresses,
            num_tokens=len(batch.token_ids),
            num_sequences=len(batch.num_computed),
            table_width=batch.block_table.shape[2],
            num_logits=len(batch.logits_rows),
            cache=ctypes.addressof(self._addresses_of(kv_cache)),
            num_blocks=len(kv_cache[0]),
            residual=None if batch.residual is None else batch.residual.ctypes.data,
            adapters=None if batch.adapters is None else batch.adapters.ctypes.data,
            **_image_addresses(batch.images),
        )
        status = self._library.stoker_model_forward(
            self._open_handle(), ctypes.byref(step), output, target
        )
        if status:
            raise self._error(status, step.num_blocks)

    def _addresses_of(self, kv_cache: KVCache) -> ctypes.Array[ctypes.c_void_p]:
        """Of its pages; the cache is the same in all steps but those of the warm-up."""
        if self._cache is not kv_cache:
            self._cache = kv_cache
            pointers = [page.data_ptr() for page in kv_cache]
            self._pages = (ctypes.c_void_p * len(pointers))(*pointers)
        return self._pages

    def _open_handle(self) -> int:
        assert self._finalizer.alive, "the model is closed"
        return int(self._handle)

    def _error(self, status: int, num_blocks: int) -> Exception:
        if status == _OUT_OF_MEMORY:
            return MemoryError("no memory for the activations of a step")
        shape = self._shape
        reason = _REFUSALS[status].format(
            vocab=shape.vocab, num_positions=shape.num_positions, num_blocks=num_blocks
        )
        return IndexError(f"Step refused: {reason}.")


def _image_addresses(images: ImageTokens | None) -> dict[str, int]:
    """Fields of Batch; the arrays must outlive the step."""
    if images is None:
        return {}
    return {
        "key_ends": images.key_ends.ctypes.data,
        "embedded": images.rows.ctypes.data,
        "embeddings": images.embeddings.ctypes.data,
        "num_embeddings": len(images.embeddings),
    }


def _lora_tensors(low_rank: LowRank | None) -> LoraTensors:
    if low_rank is None:
        return LoraTensors()
    return LoraTensors(
        a=_bf16_address(low_rank.a),
        b=_bf16_address(low_rank.b),
        scale=low_rank.scale.data_ptr(),
        rank=len(low_rank.scale),
    )


def _bf16_address(tensor: Tensor | None) -> int | None:
    if tensor is None:
        return None
    assert tensor.dtype == torch.bfloat16, tensor.dtype
    assert tensor.is_contiguous()
    return tensor.data_ptr()
