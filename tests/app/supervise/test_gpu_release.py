"""Whether GPU memory came back, behind the scripted NVML of the doctor's tests."""

from __future__ import annotations

import os

from app.supervise.gpu_release import GpuHold, GpuWitness
from tests.fakes.nvml import GIB, Card, ScriptedNvml

NOBODY = 2**22 + 1  # no pid of this machine: a process as the host counts it


def test_memory_that_comes_back_is_counted() -> None:
    card, other = Card(), Card(computing=[(os.getpid(), 3 * GIB)])
    witness = GpuWitness(ScriptedNvml(card, other))
    witness.begin()
    card.computing, other.drawing = [(41, 20 * GIB)], [(42, GIB)]
    witness.note({41, 42})
    card.computing = other.drawing = []

    assert witness.noted_bytes == 21 * GIB
    assert witness.wait_for_release({41, 42}, 0.0) == ()


def test_the_holder_is_named_when_it_does_not() -> None:
    card = Card()
    witness = GpuWitness(ScriptedNvml(Card(), card))
    witness.begin()
    card.computing = [(41, 20 * GIB), (os.getpid(), GIB)]
    witness.note({41})
    left = witness.wait_for_release({41}, 0.0)

    assert left == (GpuHold(1, 41, 20 * GIB),)
    assert str(left[0]) == "GPU 1 still holds 20.00 GiB for pid 41"


def test_in_a_container_whoever_came_after_the_start_counts() -> None:
    card = Card(computing=[(NOBODY, GIB)])
    witness = GpuWitness(ScriptedNvml(card))
    witness.begin()
    card.computing.append((NOBODY + 1, None))
    witness.note({41})
    card.computing.append((NOBODY + 2, GIB))  # of somebody who comes when ours ends

    assert witness.noted_bytes is None
    assert witness.wait_for_release({41}, 0.0) == (GpuHold(0, NOBODY + 1, None),)


def test_a_server_that_died_before_it_was_looked_at() -> None:
    card = Card(computing=[(7, GIB)])
    witness = GpuWitness(ScriptedNvml(card))
    witness.begin()
    card.computing = [(7, GIB), (41, GIB)]

    assert witness.wait_for_release({7, 41}, 0.0) == (GpuHold(0, 41, GIB),)


def test_no_driver_and_no_card_are_nothing_to_prove() -> None:
    for nvml in (ScriptedNvml(init=9), ScriptedNvml(), ScriptedNvml(count=4)):
        witness = GpuWitness(nvml)
        witness.begin()
        witness.note({41})
        assert witness.wait_for_release({41}, 60.0) == ()
        assert witness.noted_bytes is None
