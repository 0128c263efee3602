"""ctypes view of the built library: the structs of step.cpp, field by field, and its functions."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_double, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path

_PAGE = 4096
_FLOAT_BYTES = 4
_RANK_HEAD_BYTES = 128  # RankHead in ranks.h
_WAITED_OFFSET = 24  # in it


class Shape(Structure):
    """Sizes and kind of the model, or of one rank's part of it.

    Biases, norms and sinks are 0 or 1; silu is 0, gelu_tanh 1 and clamped_swiglu 2. Formats of
    weights are 0 for bf16, 1 for int8, 2 for int4. The cache is fp8 (1) or bf16 (0).
    """

    _fields_ = (
        ("num_layers", c_int64),
        ("hidden", c_int64),
        ("inner", c_int64),
        ("q_heads", c_int64),
        ("kv_heads", c_int64),
        ("head_dim", c_int64),
        ("vocab", c_int64),
        ("num_positions", c_int64),
        ("block_size", c_int64),
        ("num_threads", c_int64),
        ("num_groups", c_int64),
        ("num_pages", c_int64),
        ("qkv_bias", c_int64),
        ("output_bias", c_int64),
        ("mlp_bias", c_int64),
        ("qk_norm", c_int64),
        ("sandwich_norms", c_int64),
        ("sinks", c_int64),
        ("activation", c_int64),
        ("layer_format", c_int64),
        ("head_format", c_int64),
        ("fp8_cache", c_int64),
        ("rank", c_int64),
        ("num_ranks", c_int64),
        ("vocab_first", c_int64),
        ("vocab_rows", c_int64),
        ("head_rows", c_int64),
        ("num_experts", c_int64),
        ("experts_per_token", c_int64),
        ("normalized_experts", c_int64),
        ("router_bias", c_int64),
        ("eps", c_double),
        ("norm_offset", c_double),
        ("embedding_scale", c_double),
        ("score_scale", c_double),
        ("score_cap", c_double),
        ("logit_cap", c_double),
    )


class LayerTensors(Structure):
    """Addresses of one layer's bf16 parameters, null for absent ones, and where its KV lies.

    `.._inputs` are the mean squares of what each linear was measured to read.
    """

    _fields_ = (
        ("input_norm", c_void_p),
        ("qkv", c_void_p),
        ("qkv_bias", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("sinks", c_void_p),
        ("output", c_void_p),
        ("output_bias", c_void_p),
        ("attention_norm", c_void_p),
        ("post_norm", c_void_p),
        ("router", c_void_p),
        ("router_bias", c_void_p),
        ("gate_up", c_void_p),
        ("gate_up_bias", c_void_p),
        ("down", c_void_p),
        ("down_bias", c_void_p),
        ("mlp_norm", c_void_p),
        ("qkv_inputs", c_void_p),
        ("output_inputs", c_void_p),
        ("gate_up_inputs", c_void_p),
        ("down_inputs", c_void_p),
        ("group", c_int64),
        ("page", c_int64),
    )


class ModelTensors(Structure):
    """Everything outside the layers. The embedding and the tables must outlive the model."""

    _fields_ = (
        ("embedding", c_void_p),
        ("final_norm", c_void_p),
        ("lm_head", c_void_p),
        ("cosines", c_void_p),
        ("sines", c_void_p),
        ("local_cosines", c_void_p),
        ("local_sines", c_void_p),
    )


class Batch(Structure):
    """Addresses of a StepBatch's arrays and of the cache's pages."""

    _fields_ = (
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("slot_mapping", c_void_p),
        ("query_start", c_void_p),
        ("num_computed", c_void_p),
        ("block_table", c_void_p),
        ("logits_rows", c_void_p),
        ("num_tokens", c_int64),
        ("num_sequences", c_int64),
        ("table_width", c_int64),
        ("num_logits", c_int64),
        ("cache", c_void_p),
        ("num_blocks", c_int64),
        ("residual", c_void_p),
        ("adapters", c_void_p),
        ("key_ends", c_void_p),
        ("embedded", c_void_p),
        ("embeddings", c_void_p),
        ("num_embeddings", c_int64),
    )


class LoraTensors(Structure):
    """Addresses of one linear's adapter: bf16 A and B, float32 scales; rank 0 for none."""

    _fields_ = (
        ("a", c_void_p),
        ("b", c_void_p),
        ("scale", c_void_p),
        ("rank", c_int64),
    )


class RankMemory(Structure):
    """Where in this process the memory of the ranks that share each layer lies."""

    _fields_ = (
        ("heads", c_void_p),
        ("parts", c_void_p),
        ("outputs", c_void_p),
        ("part_floats", c_int64),
        ("output_bytes", c_int64),
        ("max_tokens", c_int64),
    )

    @classmethod
    def at(cls, address: int, sizes: RankSizes) -> RankMemory:
        """In memory of `sizes.num_bytes` zeros."""
        parts = address + sizes.head_bytes
        return cls(
            heads=address,
            parts=parts,
            outputs=parts + 2 * sizes.num_ranks * sizes.part_bytes,
            part_floats=sizes.part_bytes // _FLOAT_BYTES,
            output_bytes=sizes.output_bytes,
            max_tokens=sizes.max_tokens,
        )

    def waited_ns(self, rank: int) -> int:
        """What that rank has waited for the others, in all."""
        place = self.heads + rank * _RANK_HEAD_BYTES + _WAITED_OFFSET
        return c_int64.from_address(place).value


@dataclass(frozen=True, slots=True)
class RankSizes:
    """How much memory ranks share: what they add up in a step, and their logits.

    Only what is used is taken from the system.
    """

    num_ranks: int
    max_tokens: int
    hidden: int
    vocab: int

    @property
    def head_bytes(self) -> int:
        return _padded(self.num_ranks * _RANK_HEAD_BYTES)

    @property
    def part_bytes(self) -> int:
        return _padded(self.max_tokens * self.hidden * _FLOAT_BYTES)

    @property
    def output_bytes(self) -> int:
        """A row of logits may be asked for each token."""
        width = -(-self.vocab // self.num_ranks)
        return _padded(self.max_tokens * width * _FLOAT_BYTES)

    @property
    def num_bytes(self) -> int:
        each = 2 * self.part_bytes + self.output_bytes
        return self.head_bytes + self.num_ranks * each


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // _PAGE) * _PAGE


def open_library(path: Path) -> ctypes.CDLL:
    """Load the library and declare its functions; calls release the interpreter lock."""
    library = ctypes.CDLL(str(path))
    library.stoker_instructions.restype = ctypes.c_char_p
    _declare(library, "create", c_void_p, POINTER(Shape), POINTER(c_int64))
    _declare(library, "destroy", None, c_void_p)
    _declare(library, "load_layer", None, c_void_p, c_int64, POINTER(LayerTensors))
    _declare(library, "load_ends", c_int32, c_void_p, POINTER(ModelTensors))
    _declare(library, "weight_bytes", c_int64, c_void_p)
    _declare(library, "packed_weights", c_void_p, c_void_p)
    _declare(library, "read_packed", c_int32, c_void_p, c_int32, c_int64)
    tensors = POINTER(LoraTensors)
    _declare(library, "load_adapter", c_int32, c_void_p, c_int64, tensors)
    _declare(library, "remove_adapter", None, c_void_p, c_int64)
    _declare(library, "join", None, c_void_p, POINTER(RankMemory))
    _declare(library, "forward", c_int32, c_void_p, POINTER(Batch), c_int32, c_void_p)
    return library


def _declare(library: ctypes.CDLL, name: str, result: object, *arguments: object) -> None:
    function = getattr(library, f"stoker_model_{name}")
    function.restype = result
    function.argtypes = arguments
