"""One process at a time: a lock file that the system frees when its holder dies, and that stays."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def file_lock(path: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock; `on_wait` is called before others are waited for, and may raise instead."""
    import filelock

    lock = filelock.FileLock(path, mode=0o600)
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        on_wait()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
