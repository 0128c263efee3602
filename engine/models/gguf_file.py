"""GGUFFile: metadata and tensors of one GGUF file. A thin, typed face of gguf.GGUFReader."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import CorruptModelError, ModelError
from engine.model_files.gguf_header import GGUFHeader, read_gguf_header


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """An opened file. Values are read on demand; tensors stay memory-mapped until dequantised."""

    path: Path
    header: GGUFHeader
    _fields: dict[str, Any]
    _tensors: dict[str, Any]

    @classmethod
    def open(cls, path: Path) -> GGUFFile:
        """Read the header. Raises ModelNotFoundError or CorruptModelError."""
        header = read_gguf_header(path)  # the library believes every length it reads
        from gguf import GGUFReader

        try:
            reader = GGUFReader(path)
        except (ValueError, LookupError, OverflowError) as error:
            raise CorruptModelError(f"{path} is damaged or cut off ({error}).") from error
        return cls(
            path, header, dict(reader.fields), {tensor.name: tensor for tensor in reader.tensors}
        )

    def get(self, key: str, default: Any = None) -> Any:
        """A metadata value as plain Python, or `default`."""
        field = self._fields.get(key)
        return default if field is None else field.contents()

    def require(self, key: str) -> Any:
        """A metadata value that must be there."""
        if key not in self._fields:
            raise CorruptModelError(f"{self.path} lacks the metadata field {key}.")
        return self._fields[key].contents()

    @property
    def architecture(self) -> str:
        """llama.cpp's name of the model family, the first part of its metadata keys."""
        return self.header.architecture

    def setting(self, key: str, default: Any = None) -> Any:
        """The architecture's own metadata value `key`, or `default`."""
        return self.get(f"{self.architecture}.{key}", default)

    def require_setting(self, key: str) -> Any:
        """The same, which must be there."""
        return self.require(f"{self.architecture}.{key}")

    @property
    def tensor_names(self) -> list[str]:
        """Names of all tensors, in the file's order."""
        return list(self._tensors)

    def has_tensor(self, name: str) -> bool:
        """True when the file holds `name`."""
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """Rows first, as in a checkpoint (GGUF itself counts the other way round)."""
        return tuple(int(n) for n in reversed(self._tensors[name].shape))

    def dequantise(self, name: str, rows: slice = slice(None)) -> NDArray[np.float32]:
        """The tensor's `rows` in float32."""
        from gguf.quants import dequantize

        tensor = self._tensors[name]
        try:
            values = dequantize(tensor.data[rows], tensor.tensor_type)
        except NotImplementedError as error:
            raise ModelError(
                f"{self.path}: tensor {name} is stored as {tensor.tensor_type.name}, which the "
                "gguf library cannot dequantise. Use a file in F16, Q8_0, Q4_K_M or Q6_K."
            ) from error
        floats: NDArray[np.float32] = values.astype(np.float32, copy=False)
        return floats.reshape(-1, *self.shape(name)[1:])
