"""One process at a time: a lock file that the system frees when its holder dies, and that stays."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

_LOOK_S = 0.2  # a waiting start ends at a signal within this time at most


def _nothing() -> None:
    pass


@contextlib.contextmanager
def file_lock(
    path: Path, on_wait: Callable[[], None] = _nothing, while_waiting: Callable[[], None] = _nothing
) -> Iterator[None]:
    """Hold the lock; `on_wait` is called before others are waited for, and may raise instead.

    `while_waiting` is called several times a second from then on.
    """
    import filelock

    lock = filelock.FileLock(path, mode=0o600)
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        on_wait()
        while not lock.is_locked:
            while_waiting()
            with contextlib.suppress(filelock.Timeout):
                lock.acquire(timeout=_LOOK_S)
    try:
        yield
    finally:
        lock.release()
