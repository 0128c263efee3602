"""Low-rank adapters beside the linears of a model in torch, each row with its own or none."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable

import numpy as np
import torch
from torch import Tensor

from engine.kernels.kernel_set import PackedLinear
from engine.kernels.low_rank import Adapter
from engine.kernels.step_batch import IntArray


class LoraTable:
    """The adapters of a model by slot, and which rows of the present step have which."""

    def __init__(self) -> None:
        self._adapters: dict[int, Adapter] = {}
        self._rows: list[tuple[Adapter, Tensor]] = []

    def load(self, slot: int, adapter: Adapter) -> None:
        """Its tensors lie on the model's device."""
        self._adapters[slot] = adapter

    def remove(self, slot: int) -> None:
        self._adapters.pop(slot, None)

    def begin_step(self, adapters: IntArray | None, device: torch.device) -> None:
        """`adapters` [T] has the slot of each row, -1 for none; None for a step without any."""
        self._rows = []
        if adapters is None:
            return
        for slot in np.unique(adapters[adapters >= 0]).tolist():
            rows = torch.from_numpy(np.flatnonzero(adapters == slot)).to(device)
            self._rows.append((self._adapters[slot], rows))

    def add(self, key: Hashable, x: Tensor, out: Tensor) -> Tensor:
        """`out` [T, outputs] with what the adapters make of `x` [T, inputs]; in float32."""
        for adapter, rows in self._rows:
            found = adapter.get(key)
            if found is None:
                continue
            low = x[rows].float() @ found.a.float().t()
            added = (low * found.scale) @ found.b.float().t()
            out = out.index_add(0, rows, added.to(out.dtype))
        return out

    def beside(self, key: Hashable, packed: PackedLinear) -> PackedLinear:
        """The same linear with the adapters of `key`."""
        plain = packed.run
        return dataclasses.replace(packed, run=lambda x: self.add(key, x, plain(x)))
