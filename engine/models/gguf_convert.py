"""Converts a GGUF file, once, into a bf16 safetensors folder.

Owns the order of work and its atomicity: everything is written beside the target, synced and then
renamed, under a lock. No torch; the gguf library reads and dequantises.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.errors import CorruptModelError
from engine.machine.locks import file_lock
from engine.model_store.disk_space import OWN_CACHE_ELSEWHERE, require_room
from engine.model_store.file_hashes import note_hashes

CONVERTER_VERSION = 2
"""Part of the cache key; raised when the output changes."""

Progress = Callable[[int, int, str], None]
"""(done, total, what); units are tensors."""


def convert_gguf(source: Path, target: Path, on_progress: Progress) -> None:
    """Write the folder `target` from the file `source`, or return at once if it is there.

    Raises ModelNotFoundError, CorruptModelError (damaged or cut off) or ModelError (not supported).
    A second process waits for the first. Whoever holds the lock removes what dead runs left.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(target.parent / f".{target.name}.lock"):
        for stale in target.parent.glob(f".{target.name}.tmp-*"):
            shutil.rmtree(stale)
        if target.is_dir():
            return
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.tmp-", dir=target.parent))
        try:
            _write(source, temporary, on_progress)
            note_hashes(temporary)
            _sync(temporary)
            temporary.chmod(0o755)
            os.replace(temporary, target)
            _sync_path(target.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _write(source: Path, folder: Path, on_progress: Progress) -> None:
    # Late: numpy and gguf take a third of a second, and most starts convert nothing.
    from engine.models.gguf_config import checkpoint_config, generation_config
    from engine.models.gguf_file import GGUFFile
    from engine.models.gguf_tokenizer import write_tokenizer
    from engine.models.gguf_weights import checkpoint_names, converted_bytes, write_weights

    file = GGUFFile.open(source)
    try:
        config = checkpoint_config(file)
        names = checkpoint_names(file, config)  # complete? before the slow part
        needed = converted_bytes(file, names)
        require_room(f"converting {source.name}", needed, folder.parent, OWN_CACHE_ELSEWHERE)
        _write_json(folder / "config.json", config)
        _write_json(folder / "generation_config.json", generation_config(file))
        write_tokenizer(file, source, folder)
        write_weights(file, config, folder, on_progress)
    except (ValueError, LookupError, TypeError, ArithmeticError, AttributeError) as error:
        # The gguf library reports damage by whichever of these its parsing happens to hit.
        raise CorruptModelError(f"{source} is damaged or cut off ({error}).") from error


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _sync(folder: Path) -> None:
    for path in folder.iterdir():
        _sync_path(path)
    _sync_path(folder)


def _sync_path(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
