"""What is left of the RAM for a start, beside others that run, wait or have ended."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.machine import ram_shares
from engine.machine.device_starts import RUNNING, WAITING, DeviceStart, DeviceStarts
from engine.machine.memory import MACHINE, RamLevel
from engine.machine.ram_shares import (
    PROCESS_BYTES,
    RamShares,
    descendants_of,
    held_by,
    start_bytes,
)
from engine.machine.sizes import GIB, MIB
from tests.waiting import wait_for

OWN = DeviceStart(os.getpid(), "", 5, WAITING, (os.getpid(),), group="/sys/fs/cgroup/a/own")


class Machine:
    """RAM in which every start holds what the test says; `free` is what the system then shows."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.starts: list[DeviceStart] = []
        self.holds: dict[int, int] = {os.getpid(): 400 * MIB}
        self.levels: dict[str, tuple[int, Path | None]] = {MACHINE: (20 * GIB, None)}
        folder.mkdir(exist_ok=True)
        machine = self

        class Starts(DeviceStarts):
            def others(self) -> tuple[DeviceStart, ...]:
                return tuple(machine.starts)

        monkeypatch.setattr(ram_shares, "own_start", lambda: OWN)
        monkeypatch.setattr(ram_shares, "ram_levels", lambda root: self.read())
        self.children: dict[int, list[int]] = {}
        self.shares = RamShares(
            Starts(folder), held=self.held, descendants=lambda pid: self.children.get(pid, [])
        )

    def held(self, pids: Sequence[int]) -> int:
        return sum(self.holds[pid] for pid in pids)

    def read(self) -> list[RamLevel]:
        return [
            RamLevel(name, total - sum(self.holds.values()), folder)
            for name, (total, folder) in self.levels.items()
        ]

    def add(
        self, state: str, holds: int, held_bytes: int = 0, group: str = "", parent: int = 9
    ) -> int:
        pid = 10_000 + len(self.starts)
        self.holds[pid] = holds
        self.starts.append(DeviceStart(pid, "x", parent, state, (pid,), held_bytes, group))
        return pid


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path / "ram", monkeypatch)


def test_alone_a_start_counts_its_weights_and_processes(machine: Machine) -> None:
    assert machine.shares.left(GIB) == 20 * GIB - GIB - PROCESS_BYTES


def test_a_cache_that_nobody_has_used_yet_is_spoken_for(machine: Machine) -> None:
    pid = machine.add(RUNNING, holds=500 * MIB, held_bytes=6 * GIB)
    before = machine.shares.left(GIB)
    machine.holds[pid] = 6 * GIB  # now it is used

    assert before == machine.shares.left(GIB) == 20 * GIB - 6 * GIB - GIB - PROCESS_BYTES
    assert machine.shares.left_for_new_start() == 14 * GIB - machine.holds[os.getpid()]


def test_one_that_grew_beyond_what_it_said_counts_as_it_is(machine: Machine) -> None:
    machine.add(RUNNING, holds=8 * GIB, held_bytes=6 * GIB)

    assert machine.shares.left(GIB) == 20 * GIB - 8 * GIB - GIB - PROCESS_BYTES


def test_one_that_waits_counts_for_nothing(machine: Machine) -> None:
    alone = machine.shares.left(GIB)
    machine.add(WAITING, holds=450 * MIB)

    assert machine.shares.left(GIB) == alone


def test_what_a_server_starts_that_is_announced_belongs_to_it(machine: Machine) -> None:
    alone = machine.shares.left(GIB)
    server = machine.add(WAITING, holds=50 * MIB)
    machine.children[server] = [501, 502]
    machine.holds |= {501: 40 * MIB, 502: 2 * GIB}

    assert machine.shares.left(GIB) == alone
    machine.starts[0] = dataclasses.replace(machine.starts[0], state=RUNNING, held_bytes=MIB)
    assert machine.shares.left(GIB) == alone - 2 * GIB - 90 * MIB


@given(
    touched=st.lists(st.floats(0, 1), min_size=2, max_size=2),
    waiting=st.lists(st.integers(0, 600), max_size=3),
    own_mib=st.integers(1, 640),
)
def test_nothing_depends_on_how_far_the_others_are(
    tmp_path_factory: pytest.TempPathFactory, touched: list[float], waiting: list[int], own_mib: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        machine = Machine(tmp_path_factory.mktemp("ram"), patch)
        machine.holds[os.getpid()] = own_mib * MIB
        for share, held in zip(touched, (3 * GIB, 4 * GIB), strict=True):
            machine.add(RUNNING, holds=int(held * share), held_bytes=held)
        for holds in waiting:
            machine.add(WAITING, holds * MIB)

        assert machine.shares.left(256 * MIB) == 13 * GIB - 256 * MIB - PROCESS_BYTES


def test_replicas_share_what_their_weights_and_processes_leave(machine: Machine) -> None:
    first = machine.shares.left(GIB, 2)
    machine.add(RUNNING, holds=GIB, held_bytes=9 * GIB, parent=OWN.parent)
    machine.add(RUNNING, holds=GIB, held_bytes=4 * GIB)

    assert first == 20 * GIB - 2 * (GIB + PROCESS_BYTES)
    assert machine.shares.left(GIB, 2) == first - 4 * GIB


def test_a_server_of_several_replicas_is_counted_once(machine: Machine) -> None:
    machine.holds[77] = GIB
    for _ in range(2):
        machine.add(RUNNING, holds=0, held_bytes=5 * GIB)
        machine.starts[-1] = dataclasses.replace(
            machine.starts[-1], members=(*machine.starts[-1].members, 77)
        )

    assert machine.shares.left(GIB) == 20 * GIB - 10 * GIB - GIB - PROCESS_BYTES


def test_what_moves_a_little_does_not_change_the_size(machine: Machine) -> None:
    first = machine.shares.left(GIB)
    for change in (-300, 200, -100, 300):
        machine.levels[MACHINE] = (20 * GIB + change * MIB, None)
        assert machine.shares.left(GIB) == first
    machine.levels[MACHINE] = (18 * GIB, None)

    assert machine.shares.left(GIB) == first - 2 * GIB


def test_where_little_is_left_little_moves_it_but_not_what_was_found(machine: Machine) -> None:
    first = machine.shares.left(GIB)
    machine.add(RUNNING, holds=GIB, held_bytes=17 * GIB)
    machine.levels[MACHINE] = (20 * GIB - 200 * MIB, None)
    squeezed = machine.shares.left(GIB)
    machine.starts.clear()

    assert squeezed == 3 * GIB - 200 * MIB - GIB - PROCESS_BYTES
    machine.holds = {os.getpid(): 400 * MIB}
    assert machine.shares.left(GIB) == first


@pytest.mark.parametrize("text", ["", "[]", "{", '{"machine": "many"}'])
def test_a_damaged_memory_of_it_is_forgotten(machine: Machine, text: str) -> None:
    first = machine.shares.left(GIB)
    (path,) = machine.shares.starts.folder.glob("*steady*")
    path.write_text(text)

    assert machine.shares.left(GIB) == first
    assert json.loads(path.read_text()) == {MACHINE: 20 * GIB}


def test_below_a_limit_only_its_own_processes_count(machine: Machine) -> None:
    group = Path("/sys/fs/cgroup/a")
    machine.levels["a"] = (8 * GIB, group)
    inside = machine.shares.left(GIB)
    machine.add(RUNNING, holds=0, held_bytes=5 * GIB, group="/sys/fs/cgroup/b")
    beside = machine.shares.left(GIB)
    machine.starts = [dataclasses.replace(machine.starts[0], group="/sys/fs/cgroup/a/x")]

    assert inside == beside == 8 * GIB - GIB - PROCESS_BYTES
    assert machine.shares.left(GIB) == inside - 5 * GIB


def test_without_a_folder_it_is_measured_all_the_same(machine: Machine) -> None:
    for path in machine.shares.starts.folder.iterdir():
        path.unlink()
    machine.shares.starts.folder.rmdir()

    assert machine.shares.left(0) == 20 * GIB - PROCESS_BYTES


@pytest.mark.parametrize(
    ("held_mib", "counted_mib"), [(0, 740), (740, 740), (741, 996), (996, 996), (1500, 1508)]
)
def test_a_start_counts_in_steps(held_mib: int, counted_mib: int) -> None:
    assert start_bytes(100 * MIB, held_mib * MIB) == counted_mib * MIB


def test_descendants_are_found() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as child:
        wait_for(lambda: len(descendants_of(child.pid)) == 1)
        assert child.pid in descendants_of(os.getpid())
        child.communicate(b"\n")

    assert descendants_of(child.pid) == []


def test_what_a_process_holds_is_read() -> None:
    # In a process of its own: this one takes and gives back memory at any time.
    code = f"kept = bytearray(b'x') * {64 * MIB}; print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        held = held_by([child.pid])
        both = held_by([child.pid, child.pid])
        child.communicate(b"\n")

    assert 64 * MIB < held < 128 * MIB
    assert both > 1.5 * held
    assert held_by([]) == held_by([4_000_000]) == 0
