"""Which safetensors files make up a checkpoint, and whether they are whole. No torch."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import CorruptModelError, ModelError, RefusedFormatError

INDEX_NAME = "model.safetensors.index.json"
_MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a file header."""

    dtype: str
    shape: tuple[int, ...]


def checkpoint_files(folder: Path) -> list[Path]:
    """The shards in name order, each checked to be complete.

    Raises RefusedFormatError when there are only pickles, else CorruptModelError.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise _no_weights(folder)
    index = folder / INDEX_NAME
    if index.is_file():
        names = set(_weight_map(index).values())
        missing = sorted(names - {path.name for path in files})
        if missing:
            raise CorruptModelError(
                f"{folder} lacks {len(missing)} of the {len(names)} files that {INDEX_NAME} names: "
                f"{', '.join(missing[:5])}. Download the model again."
            )
        files = [path for path in files if path.name in names]
    for path in files:
        read_header(path)
    return files


def read_header(path: Path) -> dict[str, TensorEntry]:
    """Tensors of one file; CorruptModelError when the header or the file's size is wrong."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else size
        if length > min(size - 8, _MAX_HEADER_BYTES):
            raise CorruptModelError(_damaged(path, f"its header does not fit into {size} bytes"))
        text = file.read(length)
    try:
        entries = json.loads(text)
        entries.pop("__metadata__", None)
        end = max((int(entry["data_offsets"][1]) for entry in entries.values()), default=0)
        header = {name: _entry(value) for name, value in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise CorruptModelError(_damaged(path, f"its header is unreadable ({error})")) from error
    if size != 8 + length + end:
        raise CorruptModelError(
            _damaged(path, f"it has {size} bytes where its header promises {8 + length + end}")
        )
    return header


def _entry(value: dict[str, Any]) -> TensorEntry:
    return TensorEntry(str(value["dtype"]), tuple(int(n) for n in value["shape"]))


def _weight_map(index: Path) -> dict[str, str]:
    try:
        return {str(k): str(v) for k, v in json.loads(index.read_text())["weight_map"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptModelError(_damaged(index, f"it is unreadable ({error})")) from error


def _damaged(path: Path, what: str) -> str:
    return f"{path} is damaged: {what}. Delete it and download or convert the model again."


def _no_weights(folder: Path) -> ModelError:
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if not pickles:
        return CorruptModelError(
            f"{folder} holds no *.safetensors file, so there are no weights to load."
        )
    return RefusedFormatError(
        f"{folder} holds weights only as pickle files ({', '.join(pickles[:3])}). They are "
        "refused, because loading a pickle can run any code that is inside it. Use the model's "
        "safetensors version or a .gguf file, or convert it with transformers' save_pretrained on "
        "a machine that you can spare."
    )
