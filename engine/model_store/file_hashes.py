"""Hashes of files: as the hub names its blobs, and as our own cache notes them for its models."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from engine.machine.private_files import replace_file

NOTED = ".sha256.json"
"""Beside the files of a model that was made here: their names, and the hash that each had then."""

_CHUNK = 1 << 20
_SHA256_DIGITS, _SHA1_DIGITS = 64, 40


def file_sha256(path: Path) -> str:
    """In hexadecimal digits; a large file is never in memory as a whole."""
    return _hashed(path, hashlib.sha256())


def has_blob_name(path: Path, name: str) -> bool | None:
    """Whether the content is that of the hub's blob `name`; None when the name is no hash.

    Large files are called by their sha256, those in git by git's own sha1.
    """
    if len(name) == _SHA256_DIGITS:
        return file_sha256(path) == name
    if len(name) == _SHA1_DIGITS:
        begin = b"blob %d\0" % path.stat().st_size
        return _hashed(path, hashlib.sha1(begin, usedforsecurity=False)) == name
    return None


def note_hashes(folder: Path) -> None:
    """Write down what every file of a new model's folder holds."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != NOTED)
    _write(folder, {path.name: file_sha256(path) for path in files})


def note_again(path: Path) -> None:
    """After we have changed one file of a model whose hashes are written down."""
    hashes = noted_hashes(path.parent)
    if hashes is not None:
        _write(path.parent, {**hashes, path.name: file_sha256(path)})


def noted_hashes(folder: Path) -> dict[str, str] | None:
    """What was written down; None where nothing was, or where it cannot be read."""
    try:
        found = json.loads((folder / NOTED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    is_sound = isinstance(found, dict) and all(isinstance(one, str) for one in found.values())
    return found if is_sound else None


def _write(folder: Path, hashes: dict[str, str]) -> None:
    replace_file(folder / NOTED, json.dumps(hashes, indent=2).encode())


def _hashed(path: Path, state: hashlib._Hash) -> str:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            state.update(chunk)
    return state.hexdigest()
