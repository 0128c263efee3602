"""NVML is a script here: no GPU is needed to hold how its answers are read."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.env import device_starts
from engine.machine.gpus import GpuHolder, first_gpu_uuid, others, read_other_processes
from engine.machine.sizes import GIB

OWN = os.getpid()


@dataclass(frozen=True)
class Listed:
    pid: int
    usedGpuMemory: int | None


class ScriptedNvml:
    """NVML with these GPUs; a handle is the GPU's name and place."""

    class NVMLError(Exception):
        pass

    def __init__(
        self, names: tuple[str, ...] = ("H200",), *, compute: object = (), graphics: object = ()
    ) -> None:
        self.names, self.compute, self.graphics = names, compute, graphics
        self.asked: list[str] = []
        self.starts = 0

    def nvmlInit(self) -> None:
        self.starts += 1

    def nvmlShutdown(self) -> None:
        self.starts -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.names)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"{self.names[index]} {index}"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return f"UUID of {handle}"

    def nvmlDeviceGetName(self, handle: str) -> str:
        return handle.split()[0]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> object:
        self.asked.append(handle)
        if isinstance(self.compute, Exception):
            raise self.compute
        return self.compute

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: str) -> object:
        return self.graphics


def script(monkeypatch: pytest.MonkeyPatch, nvml: ScriptedNvml | None) -> None:
    monkeypatch.setattr("engine.machine.nvml.import_nvml", lambda: nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)


@pytest.mark.parametrize(
    ("visible", "uuid"),
    [
        (None, "UUID of A100 0"),
        ("1", "UUID of A100 1"),
        ("7", None),
        ("GPU-1234", "UUID of GPU-1234"),
    ],
)
def test_a_gpu_is_known_by_its_uuid(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, uuid: str | None
) -> None:
    script(monkeypatch, ScriptedNvml(names=("A100", "A100")))
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert first_gpu_uuid() == uuid
    assert device_starts("cuda").folder.name == (uuid or "gpu")
    assert device_starts("cpu").folder.name == "ram"


def test_without_a_gpu_there_is_no_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, None)

    assert first_gpu_uuid() is None


def test_the_others_are_read_largest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    parent = os.getppid()
    nvml = ScriptedNvml(
        compute=[Listed(OWN, GIB), Listed(parent, 3 * GIB)],
        graphics=[Listed(parent, 3 * GIB), Listed(1 << 22, 5 * GIB)],
    )
    script(monkeypatch, nvml)

    largest, own_parent = read_other_processes()

    assert largest == GpuHolder(1 << 22, 5 * GIB, None)  # above the kernel's largest pid
    assert (own_parent.pid, own_parent.bytes) == (parent, 3 * GIB)
    assert own_parent.name == Path(f"/proc/{parent}/comm").read_text().strip()
    assert nvml.starts == 0


def test_without_help_from_nvml_nobody_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, None)
    assert read_other_processes() == ()

    refusing = ScriptedNvml(compute=ScriptedNvml.NVMLError("Insufficient Permissions"))
    script(monkeypatch, refusing)
    assert read_other_processes() == ()
    assert refusing.starts == 0

    class Broken(ScriptedNvml):
        def nvmlInit(self) -> None:
            raise self.NVMLError("Driver/library version mismatch")

    script(monkeypatch, Broken())
    assert read_other_processes() == ()


@pytest.mark.parametrize(
    ("names", "environ", "asked"),
    [
        (("A", "A"), {}, ["A 0"]),
        (("A", "A"), {"CUDA_VISIBLE_DEVICES": "1,0"}, ["A 1"]),
        (("A",), {"CUDA_VISIBLE_DEVICES": "GPU-5ebe-11"}, ["GPU-5ebe-11"]),
        (("A", "A"), {"CUDA_VISIBLE_DEVICES": "2"}, []),
        (("A",), {"CUDA_VISIBLE_DEVICES": ""}, []),
        (("A", "B"), {}, []),
        (("A", "B"), {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, ["B 1"]),
    ],
    ids=["first", "chosen", "uuid", "absent", "hidden", "mixed", "mixed, bus order"],
)
def test_the_gpu_asked_about_is_the_one_cuda_uses(
    names: tuple[str, ...],
    environ: dict[str, str],
    asked: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml = ScriptedNvml(names)
    script(monkeypatch, nvml)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)

    assert read_other_processes() == ()
    assert nvml.asked == asked


def test_pids_of_another_namespace_are_not_looked_up(tmp_path: Path) -> None:
    """A container's NVML may count on the host, where our pid 9 is somebody else's."""
    (tmp_path / "9").mkdir()
    (tmp_path / "9" / "comm").write_text("sshd\n")

    assert others({9: GIB}, 1, tmp_path) == (GpuHolder(9, GIB, None),)
    assert others({9: GIB, 1: 5}, 1, tmp_path) == (GpuHolder(9, GIB, "sshd"),)


def test_a_name_cannot_move_the_cursor(tmp_path: Path) -> None:
    (tmp_path / "9").mkdir()
    (tmp_path / "9" / "comm").write_bytes(b"\x1b[2Jpy\xff\n")

    (process,) = others({9: None, 1: 5}, 1, tmp_path)

    assert process.name == "?[2Jpy\N{REPLACEMENT CHARACTER}"


def test_services_with_folders_of_their_own_share_the_starts_on_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_STATE_DIR", str(tmp_path / "mine"))
    assert device_starts("cpu").folder.is_relative_to(tmp_path / "mine")
    monkeypatch.setenv("STOKER_DEVICES_DIR", str(tmp_path / "ours"))
    assert device_starts("cpu").folder == tmp_path / "ours" / "ram"
