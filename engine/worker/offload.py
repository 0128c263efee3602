"""OffloadedWeights: a model whose memory on the device is given back, its contents on the host.

The tensors themselves stay, so that layers, views and closures hold them as before: only the memory
behind them goes and comes back, at another address.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Iterable

import torch
from torch import Tensor

_WITHOUT_TENSORS = (type, types.ModuleType, str, bytes, int, float, bool, type(None))


class OffloadedWeights:
    """Takes every tensor that `model` holds on `device` to the host; nothing may run until
    `bring_back`.
    """

    def __init__(self, model: object, device: torch.device) -> None:
        self._kept: list[tuple[torch.UntypedStorage, Tensor]] = []
        for storage in storages_of(model, device):
            host = torch.empty(len(storage), dtype=torch.uint8, pin_memory=device.type == "cuda")
            host.untyped_storage().copy_(storage)
            self._kept.append((storage, host))
            storage.resize_(0)

    def bring_back(self) -> None:
        """Copy all of it to new memory of the device; what is back leaves the host."""
        while self._kept:
            storage, host = self._kept.pop()
            storage.resize_(len(host))
            storage.copy_(host.untyped_storage())


def storages_of(model: object, device: torch.device) -> list[torch.UntypedStorage]:
    """The memory of all tensors on `device` that can be reached from `model`, each once.

    Memory that torch did not allocate, such as a mapped file, is left out: it cannot be given back.
    """
    found: dict[int, torch.UntypedStorage] = {}
    seen: dict[int, object] = {}  # keeps them alive, so that no two have the same id
    left: list[object] = [model]
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, _WITHOUT_TENSORS):
            continue
        seen[id(one)] = one
        if not isinstance(one, Tensor):
            left += _referents(one)
        elif one.device.type == device.type and one.untyped_storage().resizable():
            storage = one.untyped_storage()
            found[storage._cdata] = storage
    return [storage for storage in found.values() if len(storage)]


def _referents(one: object) -> Iterable[object]:
    """A function's globals are left out: everything can be reached from there."""
    if isinstance(one, types.FunctionType):
        return [*(one.__closure__ or ()), *(one.__defaults__ or ())]
    return gc.get_referents(one)
