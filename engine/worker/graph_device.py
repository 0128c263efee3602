"""What graphs need of a device: to record work and to say how much memory is in use.

On CUDA and ROCm it is torch's; tests have one that records and repeats operations on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from engine.kernels.triton.step_inputs import Packed


class Graph(Protocol):
    """Recorded work on fixed addresses."""

    def replay(self) -> None:
        """Start all of it with one launch."""


class GraphDevice(Protocol):
    """A device that can record."""

    def record(self, run: Callable[[], Tensor]) -> Graph:
        """Record what `run` starts; what it returns is let go.

        All graphs share one pool of memory, in which each may overwrite what another left.
        """

    def release_unused(self) -> None:
        """Give back memory that nobody holds, so that `used_bytes` does not count it."""

    def used_bytes(self) -> int:
        """Device memory in use, whoever holds it."""

    def synchronize(self) -> None:
        """Wait until all that was started is done."""

    def upload(self, numbers: Packed, buffer: Tensor) -> None:
        """Copy `numbers` to the beginning of `buffer`, which is on the device; may go on later."""


class CudaGraphDevice:
    """torch.cuda.graphs with a pool of their own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._pinned: Tensor | None = None
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def record(self, run: Callable[[], Tensor]) -> Graph:
        """`run` has to have run before: nothing may be compiled while work is recorded."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            run()
        return graph

    def release_unused(self) -> None:
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()

    def used_bytes(self) -> int:
        """By the driver: the device's total less what is free."""
        free, total = torch.cuda.mem_get_info(self._device)
        return total - free

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._device)

    def upload(self, numbers: Packed, buffer: Tensor) -> None:
        """Through pinned memory, which is written again only when the last copy has left it."""
        if self._pinned is None:
            self._pinned = torch.zeros(len(buffer), dtype=torch.int32, pin_memory=True)
        self._copied.synchronize()
        count = len(numbers)
        self._pinned[:count].copy_(torch.from_numpy(numbers))
        buffer[:count].copy_(self._pinned[:count], non_blocking=True)
        self._copied.record()
