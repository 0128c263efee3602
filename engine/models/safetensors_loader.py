"""Yields the tensors of a checkpoint, memory-mapped, shard by shard. Only safetensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.errors import CorruptModelError
from engine.model_files.checkpoint import checkpoint_files


def iterate_tensors(
    folder: Path, on_shard: Callable[[int, int], None]
) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of every shard; `on_shard(done, total)` before the first and after each."""
    files = checkpoint_files(folder)
    on_shard(0, len(files))
    for done, path in enumerate(files, 1):
        try:
            with safe_open(path, framework="pt") as shard:
                for name in shard.keys():  # noqa: SIM118 - safe_open objects are not iterable
                    yield name, shard.get_tensor(name)
        except SafetensorError as error:
            raise CorruptModelError(f"{path} cannot be read: {error}.") from error
        on_shard(done, len(files))
