"""What the tensor-parallel ranks of a stage do together: sums, and columns put side by side.

Over torch.distributed: gloo between processes on CPUs, NCCL between GPUs. Every rank makes the
same calls in the same order.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Protocol

import torch
import torch.distributed
from torch import Tensor


class WaitClock:
    """Seconds that a rank has waited for others, in all."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Adds the seconds that its block takes, also when that fails."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds += time.monotonic() - start


class RankGroup(Protocol):
    """The ranks that share each layer."""

    def sum(self, x: Tensor) -> Tensor:
        """The sum of every rank's `x`, the same bits on each; `x` may be overwritten."""

    def gather_columns(self, x: Tensor, widths: list[int]) -> Tensor:
        """[R, width of this rank] -> [R, all] on the first rank; the others get theirs back."""


class OneRank:
    """The group of a rank that has every layer for itself."""

    def sum(self, x: Tensor) -> Tensor:
        return x

    def gather_columns(self, x: Tensor, widths: list[int]) -> Tensor:
        return x


class TorchRanks:
    """A process group of torch.distributed.

    What a call takes counts as waiting; on GPUs that is only the time until it is queued.
    """

    def __init__(self, group: torch.distributed.ProcessGroup, waits: WaitClock) -> None:
        self._group = group
        self._waits = waits
        self._rank = torch.distributed.get_rank(group)
        self._first = torch.distributed.get_global_rank(group, 0)

    def sum(self, x: Tensor) -> Tensor:
        """In float32, whatever comes: the residual that it is added to is float32 too."""
        total = x.float()
        with self._waits.running():
            torch.distributed.all_reduce(total, group=self._group)
        return total

    def gather_columns(self, x: Tensor, widths: list[int]) -> Tensor:
        """Ranks may have different widths; gloo sends equal ones, so they are padded."""
        padded = torch.nn.functional.pad(x, (0, max(widths) - x.shape[1])).contiguous()
        parts = [torch.empty_like(padded) for _ in widths] if self._rank == 0 else None
        with self._waits.running():
            torch.distributed.gather(padded, parts, dst=self._first, group=self._group)
        if parts is None:
            return x
        return torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], -1)
