"""Whose turn it is to measure a device, among real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from engine.machine.device_starts import MEASURING, RUNNING, DeviceStart, DeviceStarts, own_start
from engine.machine.processes import SERVER_MARK, process_identity
from tests.fakes.hidden_children import hide_children
from tests.places import ROOT
from tests.waiting import wait_for

STARTER = """
import sys
from pathlib import Path
from engine.machine.device_starts import DeviceStarts

with DeviceStarts(Path(sys.argv[1])).turn(lambda pid: print("waits for", pid, flush=True)) as turn:
    print("has its turn", flush=True)
    sys.stdin.readline()
    turn.reserve(5000)
print("is through", flush=True)
sys.stdin.readline()
"""


class Starter:
    """Another process that starts; it goes on with each line that it gets."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", STARTER, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def starter(folder: Path) -> Iterator[Starter]:
    made = Starter(folder)
    try:
        yield made
    finally:
        made.kill()


def test_one_measures_and_the_next_says_for_whom_it_waits(tmp_path: Path) -> None:
    with starter(tmp_path / "ram") as first:
        assert first.line() == "has its turn"
        with starter(tmp_path / "ram") as second:
            assert second.line() == f"waits for {first.process.pid}"
            first.go_on()
            assert first.line() == "is through"
            assert second.line() == "has its turn"


def test_a_killed_start_is_waited_for_no_longer(tmp_path: Path) -> None:
    with starter(tmp_path / "ram") as first, starter(tmp_path / "ram") as second:
        waiting, holding = sorted((first, second), key=lambda one: one.line() == "has its turn")
        holding.kill()

        assert waiting.line() == "has its turn"
        assert DeviceStarts(tmp_path / "ram").others()[0].pid == waiting.process.pid


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_waiting_start_ends_at_once(tmp_path: Path, number: signal.Signals) -> None:
    with starter(tmp_path / "ram") as first:
        assert first.line() == "has its turn"
        with starter(tmp_path / "ram") as second:
            second.line()
            second.process.send_signal(number)
            assert second.process.wait(timeout=60) == -number


def test_one_that_stands_still_is_not_waited_for_without_end(tmp_path: Path) -> None:
    starts = DeviceStarts(tmp_path / "ram", standstill_s=0.5)
    with starter(tmp_path / "ram") as first:
        assert first.line() == "has its turn"
        psutil.Process(first.process.pid).suspend()
        with (
            pytest.raises(TimeoutError, match=f"process {first.process.pid}, whose turn it is"),
            starts.turn(lambda _: None),
        ):
            raise AssertionError("its turn has come")
        assert not (tmp_path / "ram" / f"{os.getpid()}.json").exists()


def test_of_three_each_says_for_whom_it_waits_in_turn(tmp_path: Path) -> None:
    with starter(tmp_path / "ram") as first:
        assert first.line() == "has its turn"
        with starter(tmp_path / "ram") as second, starter(tmp_path / "ram") as third:
            assert {second.line(), third.line()} == {f"waits for {first.process.pid}"}
            first.go_on()
            lines = {second.process.pid: second.line(), third.process.pid: third.line()}
            (holder,) = (pid for pid, line in lines.items() if line == "has its turn")
            (told,) = (line for line in lines.values() if line != "has its turn")
            assert told == f"waits for {holder}"


def test_what_a_running_one_holds_is_known_until_it_ends(tmp_path: Path) -> None:
    starts = DeviceStarts(tmp_path / "ram")
    with starter(starts.folder) as first:
        assert first.line() == "has its turn"
        assert [one.state for one in starts.others()] == [MEASURING]
        first.go_on()
        assert first.line() == "is through"
        assert [(one.state, one.held_bytes) for one in starts.others()] == [(RUNNING, 5000)]
    wait_for(lambda: not psutil.pid_exists(first.process.pid))

    assert starts.others() == ()


def test_a_start_that_fails_leaves_nothing(tmp_path: Path) -> None:
    starts = DeviceStarts(tmp_path / "ram")
    with pytest.raises(MemoryError), starts.turn(lambda pid: None):
        raise MemoryError

    assert list(starts.folder.glob("*.json")) == []
    with starts.turn(lambda pid: None) as turn:
        turn.reserve(1)


def test_damaged_files_and_those_of_the_dead_are_cleared_away(tmp_path: Path) -> None:
    starts = DeviceStarts(tmp_path / "ram")
    starts.folder.mkdir()
    dead = {"pid": 1, "identity": "long ago", "state": RUNNING, "members": [1], "held_bytes": 9}
    (starts.folder / "1.json").write_text(json.dumps(dead))
    for name, text in (("2", "{"), ("3", "[]"), ("4", '{"pid": 4}'), ("5", '{"members": 7}')):
        (starts.folder / f"{name}.json").write_text(text)

    assert starts.others() == ()
    with starts.turn(lambda pid: None):
        assert [path.name for path in starts.folder.glob("*.json")] == [f"{os.getpid()}.json"]


def test_one_that_was_announced_is_no_holder_until_it_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = os.getppid()
    monkeypatch.setenv(SERVER_MARK, f"abc@{parent}@{process_identity(parent)}")
    starts = DeviceStarts(tmp_path / "ram")
    starts.announce()
    own = starts.folder / f"{os.getpid()}.json"
    fields = {**json.loads(own.read_text()), "pid": parent, "identity": process_identity(parent)}
    (starts.folder / f"{parent}.json").write_text(json.dumps(fields))
    announced = [(one.pid, one.state) for one in starts.others()]
    starts.leave_with_server()

    assert announced == [(parent, "waiting")]
    assert list(starts.folder.glob("*.json")) == []


def test_a_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    starts = DeviceStarts(tmp_path / "ram")
    starts.folder.mkdir(mode=0o777)
    starts.folder.chmod(0o777)

    with pytest.raises(PermissionError, match="can be changed by other users"), starts.turn(print):
        pass


def test_a_start_counts_with_its_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = os.getppid()
    monkeypatch.setenv(SERVER_MARK, f"abc@{parent}@{process_identity(parent)}")
    found: list[DeviceStart] = []
    starts = DeviceStarts(tmp_path / "ram")
    with starts.turn(print):
        path = starts.folder / f"{os.getpid()}.json"
        fields = json.loads(path.read_text())
        assert path.stat().st_mode & 0o077 == 0
        found.append(DeviceStart(**{**fields, "members": tuple(fields["members"])}))
    monkeypatch.setenv(SERVER_MARK, f"abc@{parent}@another")
    with starts.turn(print):
        fields = json.loads((starts.folder / f"{os.getpid()}.json").read_text())

    assert found[0].members == (os.getpid(), parent)
    assert fields["members"] == [os.getpid()]


def test_where_children_are_hidden_a_start_counts_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_children(monkeypatch)
    monkeypatch.delenv(SERVER_MARK, raising=False)
    assert own_start(tmp_path).members == (os.getpid(),)
