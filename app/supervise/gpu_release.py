"""Whether a stopped server's GPU memory came back, as NVML tells it. Nothing where there is none.

In a container NVML may name processes by the host's numbers: whoever appeared on a GPU after the
start, and is nobody of this machine, then counts as the server.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from app.supervise.waiting import wait_until
from engine.machine.gpus import read_holders
from engine.machine.sizes import human_bytes


@dataclass(frozen=True, slots=True)
class GpuHold:
    """Memory of one GPU that a process holds; the size is None where the driver does not tell."""

    gpu: int
    pid: int
    num_bytes: int | None

    def __str__(self) -> str:
        size = "memory" if self.num_bytes is None else human_bytes(self.num_bytes)
        return f"GPU {self.gpu} still holds {size} for pid {self.pid}"


class GpuWitness:
    """`begin` before the start, `note` before the end, `wait_for_release` after it."""

    def __init__(self, nvml: Any = None) -> None:
        self._nvml = nvml
        self._before: frozenset[tuple[int, int]] = frozenset()
        self._strangers: frozenset[tuple[int, int]] = frozenset()
        self._noted: tuple[GpuHold, ...] = ()

    def begin(self) -> None:
        """Look who holds GPU memory before the server is there."""
        self._before = frozenset((one.gpu, one.pid) for one in self._read())

    def note(self, pids: Collection[int]) -> None:
        """The server runs, as these processes."""
        new = [one for one in self._read() if (one.gpu, one.pid) not in self._before]
        strangers = [one for one in new if one.pid not in pids and not _exists(one.pid)]
        self._strangers = frozenset((one.gpu, one.pid) for one in strangers)
        self._noted = tuple(one for one in new if one.pid in pids) + tuple(strangers)

    @property
    def noted_bytes(self) -> int | None:
        """What the server held; None without a GPU, or where the driver does not tell."""
        sizes = [one.num_bytes for one in self._noted]
        return sum(size for size in sizes if size is not None) if sizes and all(sizes) else None

    def wait_for_release(self, pids: Collection[int], timeout_s: float) -> tuple[GpuHold, ...]:
        """What the processes of the server still hold after a moment."""
        left: list[GpuHold] = []

        def is_released() -> bool:
            left[:] = [one for one in self._read() if self._is_ours(one, pids)]
            return not left

        wait_until(is_released, timeout_s)
        return tuple(left)

    def _is_ours(self, hold: GpuHold, pids: Collection[int]) -> bool:
        key = (hold.gpu, hold.pid)
        return key in self._strangers or (hold.pid in pids and key not in self._before)

    def _read(self) -> list[GpuHold]:
        return [
            GpuHold(gpu, pid, size)
            for gpu, held in enumerate(read_holders(self._nvml))
            for pid, size in held.items()
        ]


def _exists(pid: int) -> bool:
    import psutil

    return psutil.pid_exists(pid)
