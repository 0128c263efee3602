"""What steps need of a device: to record work, to bring numbers there and back without waiting,
and to say how much memory is in use.

On CUDA and ROCm it is torch's; tests have one that records and repeats operations on a CPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.kernels.kernel_set import PendingTokens
from engine.kernels.step_batch import IntArray
from engine.kernels.triton.step_inputs import Packed

_STEPS = 2  # that may be under way at once
_FEWEST_TOKENS = 256


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

    def send(self, tensor: Tensor) -> Tensor:
        """Start to copy `tensor` to the host; its numbers are there once a download that was
        started later has been waited for.
        """

    def download(self, tokens: Tensor) -> PendingTokens:
        """Start to copy `tokens` to the host, behind all that was started before."""


class CudaGraphDevice:
    """torch.cuda.graphs with a pool of their own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._inputs: dict[int, _PinnedPair] = {}  # by the address of what is filled from it
        self._tokens: _PinnedPair | None = None

    def record(self, run: Callable[[], Tensor]) -> Graph:
        """`run` has to have run before: nothing may be compiled while work is recorded."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            run()
        return graph

    def release_unused(self) -> None:
        torch.cuda.synchronize(self._device)
        self._inputs.clear()  # what is filled from them may lie at another address from now on
        torch.cuda.empty_cache()

    def used_bytes(self) -> int:
        """By the driver: the device's total less what is free."""
        free, total = torch.cuda.mem_get_info(self._device)
        return total - free

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._device)

    def upload(self, numbers: Packed, buffer: Tensor) -> None:
        """Through pinned memory, which is written again once the copy before the last has left."""
        if buffer.data_ptr() not in self._inputs:
            self._inputs[buffer.data_ptr()] = _PinnedPair(len(buffer), torch.int32)
        pinned, copied = self._inputs[buffer.data_ptr()].take()
        copied.synchronize()
        count = len(numbers)
        pinned[:count].copy_(torch.from_numpy(numbers))
        buffer[:count].copy_(pinned[:count], non_blocking=True)
        copied.record()

    def send(self, tensor: Tensor) -> Tensor:
        """Into pinned memory of its own."""
        pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return pinned.copy_(tensor, non_blocking=True)

    def download(self, tokens: Tensor) -> PendingTokens:
        """Into pinned memory that is used again two steps later."""
        if self._tokens is None or self._tokens.length < len(tokens):
            self._tokens = _PinnedPair(max(_FEWEST_TOKENS, 2 * len(tokens)), torch.int64)
        pinned, copied = self._tokens.take()
        pinned[: len(tokens)].copy_(tokens, non_blocking=True)
        copied.record()
        return _CopiedTokens(pinned[: len(tokens)], copied)


class _PinnedPair:
    """Buffers that steps use in turn, each with an event of its last copy."""

    def __init__(self, length: int, dtype: torch.dtype) -> None:
        self.length = length
        buffers = [torch.zeros(length, dtype=dtype, pin_memory=True) for _ in range(_STEPS)]
        self._turns = itertools.cycle([(buffer, _new_event()) for buffer in buffers])

    def take(self) -> tuple[Tensor, torch.cuda.Event]:
        return next(self._turns)


@dataclass(frozen=True, slots=True)
class _CopiedTokens:
    pinned: Tensor
    copied: torch.cuda.Event

    def wait(self) -> IntArray:
        self.copied.synchronize()
        tokens: IntArray = self.pinned.numpy().copy()
        return tokens


def _new_event() -> torch.cuda.Event:
    return torch.cuda.Event()  # type: ignore[no-untyped-call]
