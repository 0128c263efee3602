from __future__ import annotations

import importlib.machinery
import importlib.util
from pathlib import Path

import pytest

from engine.env import HostDevice, detect_device, torch_build_version
from engine.machine import amd_gpus, gpus

VERSIONS = {
    "cpu": "cuda: Optional[str] = None\nhip: Optional[str] = None\n",
    "cuda": "cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n",
    "hip": "cuda: Optional[str] = None\nhip: Optional[str] = '6.4.43484'\n",
}


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, build: str) -> None:
    """A torch whose version file says what it is built for, and a GPU of each kind."""
    (folder / "version.py").write_text(VERSIONS[build])
    spec = importlib.machinery.ModuleSpec("torch", None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(gpus, "first_gpu", lambda: ("H100", 80))
    monkeypatch.setattr(amd_gpus, "first_amd_gpu", lambda: ("MI300X", 192))


@pytest.mark.parametrize(
    ("build", "found"),
    [
        ("cuda", HostDevice("cuda", "H100", 80)),
        ("hip", HostDevice("cuda", "MI300X", 192)),
    ],
)
def test_the_gpu_that_torch_is_built_for(
    build: str, found: HostDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, tmp_path, build)
    assert torch_build_version(build) is not None
    assert detect_device() == found


def test_a_torch_for_cpus_runs_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, tmp_path, "cpu")
    assert detect_device().kind == "cpu"


def test_without_a_gpu_the_cpu_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, tmp_path, "hip")
    monkeypatch.setattr(amd_gpus, "first_amd_gpu", lambda: None)
    assert detect_device().kind == "cpu"
