"""Which kernel set runs: what is asked for, what can run, and what the log says."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import torch

import tests.interpreted_triton  # noqa: F401  (before any kernel)
from engine.config import DeviceConfig
from engine.errors import ConfigError
from engine.kernels import selection
from engine.kernels.native import instruction_sets
from engine.kernels.native.model_step import NativeKernels
from engine.kernels.selection import SelectedKernels, select_kernels
from engine.kv_sizing import KVCacheSpec
from tests.kernels.native_models import native_library

SETS = ["native", "reference"]
WITH_TRITON = [*SETS, "triton"]
SPEC = KVCacheSpec(16, 3, 64, 2, 2)


def select(device: DeviceConfig, spec: KVCacheSpec = SPEC) -> SelectedKernels:
    return select_kernels(device, spec, SETS, 2)


def test_auto_takes_native_where_it_runs(logged: pytest.LogCaptureFixture) -> None:
    native_library()
    selected = select(DeviceConfig())
    assert selected.kernels.name == "native"
    assert selected.candidates == ["NATIVE", "REFERENCE"]
    assert re.search(r"Native kernels for .* on this CPU: the best it has\.$", logged.text)
    assert logged.records[-1].levelname == "INFO"


def test_native_runs_over_an_fp8_cache(logged: pytest.LogCaptureFixture) -> None:
    native_library()
    assert select(DeviceConfig(), KVCacheSpec(16, 3, 64, 2, 1)).kernels.name == "native"
    assert "are not used" not in logged.text


def test_a_forced_build_is_named(
    monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    native_library()
    monkeypatch.setenv("STOKER_NATIVE_ISA", "portable")
    kernels = select(DeviceConfig()).kernels
    assert isinstance(kernels, NativeKernels)
    assert kernels.build.startswith("step-portable-")
    assert "for any CPU are used on this CPU: STOKER_NATIVE_ISA asks for portable." in logged.text


def test_reference_is_taken_when_asked_for(logged: pytest.LogCaptureFixture) -> None:
    selected = select(DeviceConfig(kernels="reference"))
    assert (selected.kernels.name, selected.candidates) == ("reference", ["REFERENCE"])
    assert [record.getMessage() for record in logged.records] == [
        "Reference kernels (torch) are used: --kernels asks for them."
    ]


@pytest.mark.parametrize(
    ("device", "spec", "reason"),
    [
        (DeviceConfig(dtype="float32"), SPEC, "the dtype is float32"),
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
    asked = DeviceConfig(device=device.device, dtype=device.dtype, kernels="native")
    with pytest.raises(ConfigError, match=f"--kernels native cannot.*{reason}.*Use auto"):
        select(asked, spec)


def test_a_gpu_gets_triton_or_is_told_why_not(logged: pytest.LogCaptureFixture) -> None:
    on_gpu = DeviceConfig(device="cuda")
    assert select(on_gpu).kernels.name == "reference"
    (record,) = logged.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith("Triton kernels are not used: they have no code for")
    with pytest.raises(ConfigError, match=r"--kernels native cannot.*is cuda.*Use auto"):
        select(DeviceConfig(device="cuda", kernels="native"))


@pytest.mark.parametrize(
    ("capability", "dtype", "expected"),
    [((9, 0), "bfloat16", "sm_90"), ((7, 5), "float16", "sm_75")],
)
def test_tiles_are_those_of_the_gpu(
    capability: tuple[int, int],
    dtype: str,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    logged: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(selection, "prepare", lambda device: None)  # the interpreter stays on
    selected = select_kernels(DeviceConfig(device="cuda", dtype=dtype), SPEC, WITH_TRITON, 2)
    assert (selected.kernels.name, selected.candidates) == ("triton", ["TRITON", "REFERENCE"])
    assert logged.records[-1].getMessage().endswith(f"with the tiles of {expected}.")


@pytest.mark.parametrize(
    ("capability", "device", "reason"),
    [
        ((7, 0), DeviceConfig(device="cuda"), r"compute capability 7\.5 or later.* has 7\.0"),
        ((7, 5), DeviceConfig(device="cuda"), "does not multiply bfloat16; give --dtype float16"),
        ((9, 0), DeviceConfig(quantization="int4"), "no int4 weights; leave --quantization out"),
    ],
)
def test_what_triton_cannot_run_is_refused(
    capability: tuple[int, int],
    device: DeviceConfig,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    asked = dataclasses.replace(device, kernels="triton")
    with pytest.raises(ConfigError, match=f"--kernels triton cannot be used: .*{reason}"):
        select_kernels(asked, SPEC, WITH_TRITON, 2)


def test_on_a_cpu_the_interpreter_is_used_when_asked_for(
    logged: pytest.LogCaptureFixture,
) -> None:
    asked = DeviceConfig(kernels="triton")
    assert select_kernels(asked, SPEC, WITH_TRITON, 2).kernels.name == "triton"
    (record,) = logged.records
    assert record.levelname == "WARNING"
    assert "interpreter on this CPU (TRITON_INTERPRET=1)" in record.getMessage()


def test_fp8_weights_need_a_gpu_that_triton_compiles_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 0))
    asked = DeviceConfig(device="cuda", quantization="fp8")
    with pytest.raises(ConfigError, match=r"fp8 needs Triton's kernels: .* this one has 7\.0"):
        select_kernels(asked, SPEC, WITH_TRITON, 2)


def test_an_architecture_without_native_code_falls_back(logged: pytest.LogCaptureFixture) -> None:
    assert select_kernels(DeviceConfig(), SPEC, ["reference"], 2).kernels.name == "reference"
    assert "no code for this architecture" in logged.records[0].getMessage()


def test_any_cpu_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    native_library()
    monkeypatch.setattr(instruction_sets, "cpu_flags", lambda: frozenset({"sse2"}))
    kernels = select(DeviceConfig()).kernels
    assert isinstance(kernels, NativeKernels)
    assert kernels.build.startswith("step-portable-")


@pytest.mark.parametrize("has_bf16", [True, False])
def test_a_missing_compiler_is_worth_a_warning(
    has_bf16: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    logged: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(selection, "cpu_has_bf16", lambda: has_bf16)
    assert select(DeviceConfig()).kernels.name == "reference"
    (record,) = logged.records
    assert record.levelname == "WARNING"
    assert "no C++ compiler" in record.getMessage()
    assert "apt install g++" in record.getMessage()
    assert ("--dtype float32 is faster" in record.getMessage()) != has_bf16
    with pytest.raises(ConfigError, match=r"no C\+\+ compiler"):
        select(DeviceConfig(kernels="native"))


def test_a_library_that_does_not_load_falls_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    compiler = tmp_path / "cxx"
    script = 'for last; do :; done\n[ "$last" = --version ] || echo "no library" > "$last"\n'
    compiler.write_text(f"#!/bin/sh\n{script}")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path))
    assert select(DeviceConfig()).kernels.name == "reference"
    assert logged.records[-1].levelname == "WARNING"
    assert "kernels/step-" in logged.records[-1].getMessage()
