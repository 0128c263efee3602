"""Which kernel set runs: what is asked for, what can run, and what the log says."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.config import DeviceConfig
from engine.errors import ConfigError
from engine.kernels import selection
from engine.kernels.selection import SelectedKernels, select_kernels
from engine.kv_sizing import KVCacheSpec
from tests.kernels.native_models import native_library

SETS = ["native", "reference"]
SPEC = KVCacheSpec(16, 3, 64, 2, 2)


@pytest.fixture
def logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[pytest.LogCaptureFixture]:
    """Each record once, whether or not an earlier test has configured the engine's logger."""
    logger = logging.getLogger("engine")
    monkeypatch.setattr(logger, "propagate", False)
    logger.addHandler(caplog.handler)
    caplog.set_level("INFO", "engine")
    yield caplog
    logger.removeHandler(caplog.handler)


@pytest.fixture
def _able_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every later obstacle shows on any machine."""
    monkeypatch.setattr(selection, "cpu_flags", lambda: frozenset({"avx512_bf16"}))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")


def select(device: DeviceConfig, spec: KVCacheSpec = SPEC) -> SelectedKernels:
    return select_kernels(device, spec, SETS, 2)


def test_auto_takes_native_where_it_runs(logged: pytest.LogCaptureFixture) -> None:
    native_library()
    selected = select(DeviceConfig())
    assert selected.kernels.name == "native"
    assert selected.candidates == ["NATIVE", "REFERENCE"]
    assert not logged.records


def test_reference_is_taken_when_asked_for(logged: pytest.LogCaptureFixture) -> None:
    selected = select(DeviceConfig(attention_backend="reference"))
    assert (selected.kernels.name, selected.candidates) == ("reference", ["REFERENCE"])
    assert not logged.records


@pytest.mark.usefixtures("_able_cpu")
@pytest.mark.parametrize(
    ("device", "spec", "reason"),
    [
        (DeviceConfig(device="cuda"), SPEC, "the device is cuda"),
        (DeviceConfig(dtype="float32"), SPEC, "the dtype is float32"),
        (DeviceConfig(), KVCacheSpec(16, 3, 64, 2, 1), "--kv-cache-dtype asks for fp8"),
        (DeviceConfig(), KVCacheSpec(24, 3, 64, 2, 2), "block size that 16 divides, not 24"),
        (DeviceConfig(), KVCacheSpec(16, 3, 80, 2, 2), r"head_dim that 32 divides .*not 80"),
        (DeviceConfig(), KVCacheSpec(16, 3, 544, 2, 2), r"head_dim .*up to 512.* not 544"),
    ],
)
def test_obstacles_are_told_once(
    device: DeviceConfig, spec: KVCacheSpec, reason: str, logged: pytest.LogCaptureFixture
) -> None:
    selected = select(device, spec)
    assert (selected.kernels.name, selected.candidates) == ("reference", ["REFERENCE"])
    (record,) = logged.records
    assert record.levelname == "INFO"
    assert record.getMessage().startswith("Native CPU kernels are not used: ")
    asked = DeviceConfig(device=device.device, dtype=device.dtype, attention_backend="native")
    with pytest.raises(ConfigError, match=f"--attention-backend native cannot.*{reason}.*Use auto"):
        select(asked, spec)


@pytest.mark.usefixtures("_able_cpu")
def test_an_architecture_without_native_code_falls_back(logged: pytest.LogCaptureFixture) -> None:
    assert select_kernels(DeviceConfig(), SPEC, ["reference"], 2).kernels.name == "reference"
    assert "no code for this architecture" in logged.records[0].getMessage()


def test_other_cpus_fall_back(
    monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(selection, "cpu_flags", lambda: frozenset({"avx2"}))
    assert select(DeviceConfig()).kernels.name == "reference"
    assert "no AVX512-BF16" in logged.records[0].getMessage()


@pytest.mark.usefixtures("_able_cpu")
def test_a_missing_compiler_is_worth_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert select(DeviceConfig()).kernels.name == "reference"
    (record,) = logged.records
    assert record.levelname == "WARNING"
    assert "no C++ compiler" in record.getMessage()
    with pytest.raises(ConfigError, match=r"no C\+\+ compiler"):
        select(DeviceConfig(attention_backend="native"))


@pytest.mark.usefixtures("_able_cpu")
def test_a_library_that_does_not_load_falls_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "broken.so"
    broken.write_text("not a library")
    monkeypatch.setattr(selection, "build_library", lambda: broken)
    assert select(DeviceConfig()).kernels.name == "reference"
    assert "broken.so" in logged.records[0].getMessage()
