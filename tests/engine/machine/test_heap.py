"""Memory comes back after a large request (where the C library is glibc)."""

from __future__ import annotations

import subprocess
import sys

import pytest

# In a process of its own: the test runner's heap is full of other things.
GROW_AND_SHRINK = """
import psutil
from engine.machine.heap import Heap

process, heap = psutil.Process(), Heap()
before = process.memory_info().rss
assert not heap.give_back()
held = [bytes(20_000) for _ in range(15_000)]
last = bytes(20_000)  # in use above them, so that nothing goes back by itself
grown = process.memory_info().rss
held.clear()
kept = process.memory_info().rss
assert kept > before + 200_000_000, "the test shows nothing"
assert heap.give_back()
assert process.memory_info().rss < before + 50_000_000
assert not heap.give_back()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc_trim")
def test_freed_memory_goes_back_to_the_system() -> None:
    subprocess.run([sys.executable, "-c", GROW_AND_SHRINK], check=True, timeout=60)
