"""A model's tensors, wherever they are held, leave their memory and come back with their values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.worker.offload import OffloadedWeights, storages_of

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Held:
    one: Tensor


class Model:
    def __init__(self) -> None:
        self.plain = torch.arange(6.0)
        self.view = self.plain[2:4]
        self.slotted = [Held(torch.full((3,), 2.0))]
        captured, bound = torch.full((2, 2), 3.0), torch.full((4,), 4.0)
        self.closure: Callable[[], Tensor] = lambda: captured.sum()
        self.partial = functools.partial(torch.add, bound)
        self.mapped = torch.frombuffer(bytearray(b"12345678"), dtype=torch.uint8)

    def total(self) -> float:
        added = self.partial(torch.zeros(4)).sum()
        return float(self.plain.sum() + self.slotted[0].one.sum() + self.closure() + added)


def test_all_that_is_held_goes_and_comes_back() -> None:
    model = Model()
    before = model.total()
    found = {len(storage) for storage in storages_of(model, CPU)}
    assert found == {24, 12, 16}  # the view's is the plain one's, two of 16, the mapped one stays
    assert len(storages_of(model, CPU)) == 4

    gone = OffloadedWeights(model, CPU)
    assert storages_of(model, CPU) == []
    assert bytes(model.mapped.tolist()) == b"12345678"

    gone.bring_back()
    assert model.total() == before
    assert model.view.tolist() == [2.0, 3.0]


def test_tensors_of_another_device_stay() -> None:
    model = Model()
    assert storages_of(model, torch.device("meta")) == []
