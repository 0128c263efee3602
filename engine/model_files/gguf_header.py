"""The header of a GGUF file: metadata and where its tensors lie. No tensor is read.

Lengths are compared with what is left of the file before anything is read or made, since a few
bytes can promise billions of values. The format is described in ggml's docs/gguf.md.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from engine.errors import CorruptModelError, ModelNotFoundError
from engine.model_files.bounds import shown, whole_number, word
from engine.model_files.config_values import COUNTS

_MAGIC = b"GGUF"
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}
_SCALARS[12] = "d"
_STRING, _ARRAY = 8, 9
_LIMIT_BYTES = 256 << 20  # of a header; those of the largest vocabularies have 30 MB
_MOST_VALUES = 8 << 20  # of all lists; a vocabulary and its merges are below two million
_MOST_TENSORS, _MOST_FIELDS = 1 << 18, 1 << 16
_DEEPEST_LIST = 3
_MOST_DIMENSIONS = 4  # of ggml
_LARGEST = 1 << 62
_DEFAULT_ALIGNMENT = 32

TYPES: Mapping[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    30: ("BF16", 1, 2),
    28: ("F64", 1, 8),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    29: ("IQ1_M", 256, 56),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}
"""ggml's number of a type -> (name, values in a block, bytes of a block)."""

SETTINGS: Mapping[str, tuple[int, int]] = {
    "block_count": COUNTS["num_hidden_layers"],
    "embedding_length": COUNTS["hidden_size"],
    "feed_forward_length": COUNTS["intermediate_size"],
    "context_length": COUNTS["max_position_embeddings"],
    "vocab_size": COUNTS["vocab_size"],
    "attention.head_count": COUNTS["num_attention_heads"],
    "attention.head_count_kv": COUNTS["num_key_value_heads"],
    "attention.key_length": COUNTS["head_dim"],
    "attention.sliding_window": COUNTS["sliding_window"],
    "attention.sliding_window_pattern": COUNTS["sliding_window_pattern"],
    "rope.dimension_count": COUNTS["head_dim"],
    "expert_count": COUNTS["num_experts"],
    "expert_used_count": COUNTS["num_experts_per_tok"],
    "expert_feed_forward_length": COUNTS["moe_intermediate_size"],
}
"""Whole numbers of an architecture's metadata, by the end of their key, with their limits."""


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """A tensor as it lies in the file; `sizes` are ggml's, the fastest first."""

    name: str
    kind: int
    sizes: tuple[int, ...]
    offset: int

    @property
    def num_values(self) -> int:
        return math.prod(self.sizes)

    @property
    def num_bytes(self) -> int | None:
        """Of the tensor in the file; None for a type that is not known."""
        if self.kind not in TYPES:
            return None
        _, values, size = TYPES[self.kind]
        return self.num_values // values * size


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """Metadata as plain Python, lists as lists or tuples; tensors in the file's order."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: tuple[GGUFTensor, ...]

    @property
    def architecture(self) -> str:
        """llama.cpp's name of the model family, the first part of its metadata keys."""
        what = f"{self.path}: general.architecture"
        return word(self.metadata.get("general.architecture"), what)

    def count(self, key: str, default: int | None = None) -> int:
        """The architecture's whole number `key`, one of SETTINGS, within its limits.

        Without a default CorruptModelError when the file lacks it.
        """
        name = f"{self.architecture}.{key}"
        value = self.metadata.get(name, default)
        if value is None:
            raise CorruptModelError(f"{self.path} lacks the metadata field {name}.")
        return whole_number(value, f"{self.path}: {name}", *SETTINGS[key])

    def decoder_sizes(self) -> dict[str, int]:
        """The sizes that every decoder has, by their names in config.json."""
        heads, hidden = self.count("attention.head_count"), self.count("embedding_length")
        if hidden < heads:
            raise CorruptModelError(
                f"{self.path}: {heads:,} heads do not fit into {hidden:,} values."
            )
        return {
            "hidden_size": hidden,
            "intermediate_size": self.count("feed_forward_length"),
            "num_hidden_layers": self.count("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self.count("attention.head_count_kv", heads),
            "head_dim": self.count("attention.key_length", hidden // heads),
            "max_position_embeddings": self.count("context_length"),
        }


def read_gguf_header(path: Path) -> GGUFHeader:
    """The checked header. Raises ModelNotFoundError or CorruptModelError."""
    if not path.is_file():
        raise ModelNotFoundError(f"No such GGUF file: {path}.")
    with path.open("rb") as file:
        return _Reader(file, path).read()


class _Reader:
    """Reads from the front; no more than the file can hold."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file = file
        self._path = path
        self._size = path.stat().st_size
        self._left = min(self._size, _LIMIT_BYTES)
        self._values_left = _MOST_VALUES

    def read(self) -> GGUFHeader:
        if self._size < len(_MAGIC) or self._bytes(len(_MAGIC)) != _MAGIC:
            raise CorruptModelError(
                f"{self._path} is no GGUF file, or is damaged or cut off: it does not begin with "
                "`GGUF`."
            )
        version, num_tensors, num_fields = self._unpack("IQQ")
        if not 2 <= version <= 3:
            raise self._damaged(f"it has version {version}, and 2 and 3 are known")
        if num_tensors > _MOST_TENSORS or num_fields > _MOST_FIELDS:
            raise self._damaged(f"it promises {num_tensors:,} tensors and {num_fields:,} fields")
        metadata: dict[str, Any] = {}
        for _ in range(num_fields):
            key = self._string()
            if key in metadata:
                raise self._damaged(f"the field {shown(key)} comes twice")
            metadata[key] = self._value(self._unpack("I")[0], 0)
        tensors = tuple(self._tensors(num_tensors))
        self._check_tensors(tensors, metadata)
        return GGUFHeader(self._path, metadata, tensors)

    def _tensors(self, number: int) -> Iterator[GGUFTensor]:
        for _ in range(number):
            name = self._string()
            (dimensions,) = self._unpack("I")
            if dimensions > _MOST_DIMENSIONS:
                raise self._damaged(f"its tensor {shown(name)} has {dimensions:,} dimensions")
            sizes = self._unpack("Q" * dimensions)
            kind, offset = self._unpack("IQ")
            yield GGUFTensor(name, kind, sizes, offset)

    def _check_tensors(self, tensors: Sequence[GGUFTensor], metadata: Mapping[str, Any]) -> None:
        what = f"{self._path}: general.alignment"
        wanted = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        alignment = whole_number(wanted, what, 1, 1 << 20)
        start = -(-self._file.tell() // alignment) * alignment
        names: set[str] = set()
        end = 0
        for one in sorted(tensors, key=lambda tensor: tensor.offset):
            name = shown(one.name)
            if one.name in names:
                raise self._damaged(f"its tensor {name} comes twice")
            names.add(one.name)
            if 0 in one.sizes or one.num_values > _LARGEST or one.offset < end:
                raise self._damaged(
                    f"its tensor {name} of the sizes {shown(list(one.sizes))} at byte "
                    f"{one.offset:,} cannot be, where the one before it ends at {end:,}"
                )
            end = one.offset + (one.num_bytes or 0)
            if start + end > self._size:
                raise self._damaged(
                    f"its tensor {name} ends at byte {start + end:,}, the file at {self._size:,}"
                )

    def _value(self, kind: int, depth: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._list(depth)
        if kind not in _SCALARS:
            raise self._damaged(f"a field has the type {kind}, which is not known")
        return self._unpack(_SCALARS[kind])[0]

    def _list(self, depth: int) -> Any:
        kind, length = self._unpack("IQ")
        self._values_left -= length
        least_bytes = struct.calcsize(_SCALARS[kind]) if kind in _SCALARS else 8
        if depth == _DEEPEST_LIST or self._values_left < 0 or length * least_bytes > self._left:
            raise self._damaged(f"a list of {length:,} values does not fit into it")
        if kind in _SCALARS:
            return self._unpack(f"{length}{_SCALARS[kind]}")
        return [self._value(kind, depth + 1) for _ in range(length)]

    def _string(self) -> str:
        (length,) = self._unpack("Q")
        return self._bytes(length).decode("utf-8", errors="replace")

    def _unpack(self, form: str) -> tuple[Any, ...]:
        form = f"<{form}"
        return struct.unpack(form, self._bytes(struct.calcsize(form)))

    def _bytes(self, number: int) -> bytes:
        self._left -= number
        if self._left < 0:
            raise self._damaged("its header goes beyond its end")
        read = self._file.read(number)
        if len(read) < number:
            raise self._damaged("its header goes beyond its end")
        return read

    def _damaged(self, what: str) -> CorruptModelError:
        return CorruptModelError(f"{self._path} is damaged or cut off: {what}.")
