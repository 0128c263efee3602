"""Headers of safetensors files: 8 bytes with the length of the JSON that follows them.

What the safetensors library demands of one: offsets in order, without gap or overlap, from the end
of the header to the end of the file, and as many bytes as shape and dtype make.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import CorruptModelError
from engine.model_files.bounds import of_type, shown, whole_number
from engine.model_files.json_objects import LIMIT_BYTES, parse_json

LENGTH_BYTES = 8
"""Of what stands before the JSON."""

_MOST_DIMENSIONS = 16
_LARGEST = 1 << 62
_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a header; `begin` and `end` count bytes from the header's end."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def num_values(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Of the tensor in the file."""
        return self.end - self.begin


Header = dict[str, TensorEntry]


def read_header(path: Path) -> Header:
    """Tensors of one file; CorruptModelError when the header or the file's size is wrong."""
    size = path.stat().st_size
    with path.open("rb") as file:
        first = file.read(LENGTH_BYTES)
        length = header_length(first, str(path), size)
        text = file.read(length)
    return parse_header(text, str(path), size - LENGTH_BYTES - length)


def header_length(first_bytes: bytes, source: str, file_bytes: int | None = None) -> int:
    """Length of the JSON after the first 8 bytes; `file_bytes` None: the file's size is unknown."""
    if len(first_bytes) < LENGTH_BYTES:
        raise _damaged(source, f"it has {len(first_bytes)} bytes")
    length = int.from_bytes(first_bytes[:LENGTH_BYTES], "little")
    if file_bytes is not None and length > file_bytes - LENGTH_BYTES:
        raise _damaged(source, f"its header does not fit into {file_bytes} bytes")
    if not 0 < length <= LIMIT_BYTES:
        raise _damaged(source, f"its header would have {length:,} bytes")
    return length


def parse_header(text: bytes, source: str, data_bytes: int | None = None) -> Header:
    """The checked tensors without the text's `__metadata__`; `data_bytes` is what lies behind the
    header, None where it is unknown.
    """
    document = parse_json(text, f"the header of {source}")
    document.pop("__metadata__", None)
    header = {name: _entry(value, name, source) for name, value in document.items()}
    _check_offsets(header.items(), source, data_bytes)
    return header


def _entry(value: Any, name: str, source: str) -> TensorEntry:
    what = f"{source} is damaged: its tensor {shown(name)}"
    of_type(value, what, dict, "an object")
    dtype = of_type(value.get("dtype"), f"{what}: dtype", str, "a word")
    sizes = of_type(value.get("shape"), f"{what}: shape", list, "a list")
    offsets = of_type(value.get("data_offsets"), f"{what}: data_offsets", list, "a list")
    if len(sizes) > _MOST_DIMENSIONS or len(offsets) != 2:
        raise CorruptModelError(
            f"{what} has {len(sizes)} dimensions and {len(offsets)} data_offsets; at most "
            f"{_MOST_DIMENSIONS} and exactly 2 are possible."
        )
    shape = tuple(whole_number(size, f"{what}: shape", 0, _LARGEST) for size in sizes)
    begin, end = (whole_number(one, f"{what}: data_offsets", 0, _LARGEST) for one in offsets)
    entry = TensorEntry(dtype, shape, begin, end)
    bits = _BITS.get(dtype)
    if bits is not None and 8 * entry.num_bytes != bits * entry.num_values:
        raise CorruptModelError(
            f"{what} takes {entry.num_bytes:,} bytes, but {shown(list(shape))} values of {dtype} "
            f"take {bits * entry.num_values // 8:,}."
        )
    return entry


def _check_offsets(
    tensors: Iterable[tuple[str, TensorEntry]], source: str, data_bytes: int | None
) -> None:
    end = 0
    for name, entry in sorted(tensors, key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != end or entry.end < entry.begin:
            raise _damaged(
                source,
                f"its tensor {shown(name)} lies from byte {entry.begin:,} to {entry.end:,}, where "
                f"the one before it ends at {end:,}",
            )
        end = entry.end
    if data_bytes is not None and end != data_bytes:
        raise _damaged(
            source, f"it has {data_bytes:,} bytes of tensors where its header promises {end:,}"
        )


def _damaged(source: str, what: str) -> CorruptModelError:
    return CorruptModelError(
        f"{source} is damaged: {what}. Delete it and download or convert the model again."
    )
