"""Private files that readers see whole or not at all; a full disk leaves nothing of them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_beside(path: Path, content: bytes) -> Path:
    """A file (0600) beside `path` that is to take its place; OSError leaves none."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            while content:
                content = content[file.write(content) :]
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise
    return fresh


def replace_file(path: Path, content: bytes) -> None:
    """Write it beside, then in one step over what was there."""
    write_beside(path, content).replace(path)


def open_new(path: Path) -> int:
    """A descriptor of a file (0600) that was not there; FileExistsError when it was."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
