"""Puts a generated file in its place: whole or not at all, never too readable on the way."""

from __future__ import annotations

from pathlib import Path

from app.units.deployment import GeneratedFile
from engine.machine.private_files import write_beside


def write_file(folder: Path, file: GeneratedFile) -> Path:
    """Write one file; a file for secrets that is already there keeps what the user put into it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file.path
    if file.mode == 0o600 and path.exists():
        return path
    fresh = write_beside(path, file.text.encode())
    fresh.chmod(file.mode)
    fresh.replace(path)
    return path
