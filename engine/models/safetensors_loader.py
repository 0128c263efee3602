"""Yields the tensors of a checkpoint, memory-mapped, shard by shard. Only safetensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.errors import CorruptModelError
from engine.model_files.checkpoint import checkpoint_files


class CheckpointTensor(Protocol):
    """A parameter of a checkpoint that is read when it is asked for."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...

    def read(self, part: tuple[slice, ...] = ()) -> Tensor:
        """All of it, or only `part`."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor that is read when it is asked for; valid until the next one is taken."""

    name: str
    shape: tuple[int, ...]
    path: Path
    shard: Any  # what safe_open gives

    def read(self, part: tuple[slice, ...] = ()) -> Tensor:
        """All of it, or only the bytes of `part`."""
        try:
            tensor: Tensor = (
                self.shard.get_slice(self.name)[part] if part else self.shard.get_tensor(self.name)
            )
        except SafetensorError as error:
            raise unreadable(self.path, error) from error
        return tensor


def iterate_tensors(folder: Path, on_shard: Callable[[int, int], None]) -> Iterator[StoredTensor]:
    """The tensors of every shard; `on_shard(done, total)` before the first and after each."""
    files = checkpoint_files(folder)
    on_shard(0, len(files))
    for done, path in enumerate(files, 1):
        try:
            with safe_open(path, framework="pt") as shard:
                for name in shard.keys():  # noqa: SIM118 - safe_open objects are not iterable
                    shape = tuple(shard.get_slice(name).get_shape())
                    yield StoredTensor(name, shape, path, shard)
        except SafetensorError as error:
            raise unreadable(path, error) from error
        on_shard(done, len(files))


def unreadable(path: Path, error: SafetensorError) -> CorruptModelError:
    """The error for a file that the library refuses."""
    return CorruptModelError(f"{path} cannot be read: {error}.")
