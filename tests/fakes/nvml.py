"""NVML as a script tells it: cards, and a driver that may refuse."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeVar

GIB = 1 << 30
T = TypeVar("T")


@dataclass
class Card:
    """One scripted GPU; None is what the card cannot tell."""

    name: str = "NVIDIA H100 80GB HBM3"
    total: int = 80 * GIB
    used: int = 1 * GIB
    capability: tuple[int, int] = (9, 0)
    mig: tuple[int, int] | None = (0, 0)
    instances: int = 0
    persistence: int | None = 1
    ecc: tuple[int, int] | None = (1, 1)
    ecc_errors: int | None = 0
    throttle: int = 0x1  # idle
    nvlinks: int = 0
    computing: list[tuple[int, int | None]] = field(default_factory=list)
    drawing: list[tuple[int, int | None]] = field(default_factory=list)


class ScriptedError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__({18: "Driver/library version mismatch"}.get(value, f"code {value}"))
        self.value = value


class ScriptedNvml:
    """Behaves like the module pynvml; functions it does not have are those of an old pynvml."""

    NVMLError = ScriptedError
    NVML_ERROR_NO_PERMISSION = 4
    NVML_ERROR_DRIVER_NOT_LOADED = 9
    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_P2P_CAPS_INDEX_READ = 0

    def __init__(self, *cards: Card, init: int = 0, count: int = 0, p2p: int = 0) -> None:
        self.cards, self.init, self.count, self.p2p = cards, init, count, p2p
        self.shut_down = 0

    def nvmlInit(self) -> None:
        if self.init:
            raise ScriptedError(self.init)

    def nvmlShutdown(self) -> None:
        self.shut_down += 1

    def nvmlDeviceGetCount(self) -> int:
        if self.count:
            raise ScriptedError(self.count)
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:
        return self.cards[index]

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"580.65.06"

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return 13000

    def nvmlDeviceGetName(self, card: Card) -> str:
        return card.name

    def nvmlDeviceGetMemoryInfo(self, card: Card) -> Any:
        return SimpleNamespace(total=card.total, used=card.used, free=card.total - card.used)

    def nvmlDeviceGetCudaComputeCapability(self, card: Card) -> tuple[int, int]:
        return card.capability

    def nvmlDeviceGetMigMode(self, card: Card) -> tuple[int, int]:
        return _told(card.mig)

    def nvmlDeviceGetMaxMigDeviceCount(self, card: Card) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card: Card, index: int) -> int:
        return _told(index if index < card.instances else None)

    def nvmlDeviceGetPersistenceMode(self, card: Card) -> int:
        return _told(card.persistence)

    def nvmlDeviceGetEccMode(self, card: Card) -> tuple[int, int]:
        return _told(card.ecc)

    def nvmlDeviceGetTotalEccErrors(self, card: Card, kind: int, counter: int) -> int:
        assert (kind, counter) == (1, 0)
        return _told(card.ecc_errors)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, card: Card) -> int:
        return card.throttle

    def nvmlDeviceGetNvLinkState(self, card: Card, link: int) -> int:
        return _told(1 if link < card.nvlinks else None)

    def nvmlDeviceGetGraphicsRunningProcesses(self, card: Card) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in card.drawing]

    def nvmlDeviceGetComputeRunningProcesses(self, card: Card) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in card.computing]

    def nvmlDeviceGetTopologyCommonAncestor(self, first: Card, second: Card) -> int:
        return 50

    def nvmlDeviceGetP2PStatus(self, first: Card, second: Card, index: int) -> int:
        return self.p2p


def _told(value: T | None) -> T:
    if value is None:
        raise ScriptedError(3)  # not supported
    return value
