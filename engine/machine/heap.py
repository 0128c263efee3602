"""Memory that the C library keeps after it was freed, given back to the system."""

from __future__ import annotations

import ctypes
import functools
import sys

_WORTH_BYTES = 64 << 20


class Heap:
    """Gives this process's freed memory back once it has grown by an amount that is worth it.

    glibc keeps what is freed between blocks in use, and after large ones more and more: one large
    request would leave the process at its peak for good.
    """

    def __init__(self) -> None:
        import psutil

        self._process = psutil.Process()
        self._low_bytes = self._process.memory_info().rss

    def give_back(self) -> bool:
        """Look, and give back if there is much; takes microseconds if not. True if it was done."""
        if self._process.memory_info().rss < self._low_bytes + _WORTH_BYTES:
            return False
        trim_heap()
        self._low_bytes = self._process.memory_info().rss
        return True


def trim_heap() -> None:
    """Give back what can be, at once; nothing with another C library than glibc."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@functools.cache
def _malloc_trim() -> ctypes._NamedFuncPointer | None:
    """glibc's function; None with another C library."""
    if sys.platform != "linux":
        return None
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
