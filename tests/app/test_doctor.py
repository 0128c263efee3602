from __future__ import annotations

import dataclasses
import json
import socket
from pathlib import Path

import pytest
from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename

from app.doctor import extras, gpu, host, platform, wheel
from app.doctor.gpu import Gpu, GpuReading
from app.doctor.platform import PlatformFacts, choose_platform
from app.doctor.report import Check, Result, as_json, run_checks, worst_result
from app.doctor.wheel import HostFacts, wheel_verdict

LINUX = HostFacts(system="linux", arch="x86_64", python=(3, 12), glibc=(2, 39))


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        (LINUX, "wheel vllm-0.30.0-cp38-abi3-manylinux_2_28_x86_64.whl"),
        (
            HostFacts(system="linux", arch="aarch64", python=(3, 12), glibc=(2, 35)),
            "wheel vllm-0.30.0-cp38-abi3-manylinux_2_28_aarch64.whl",
        ),
        (
            HostFacts(system="linux", arch="x86_64", python=(3, 10), glibc=(2, 17)),
            "no: manylinux_2_28 needs glibc 2.28 or newer",
        ),
        (
            HostFacts(system="linux", arch="x86_64", python=(3, 9), glibc=(2, 39)),
            "no: Python 3.9 is outside >=3.10,<3.15",
        ),
        (
            HostFacts(system="macos", arch="arm64", python=(3, 12), glibc=None),
            "no prebuilt wheel: only the source archive, a build from source",
        ),
    ],
    ids=["ubuntu-24.04", "ubuntu-22.04-arm", "centos-7", "python-3.9", "macos"],
)
def test_the_five_hosts_of_the_seeds(facts: HostFacts, verdict: str) -> None:
    assert wheel_verdict(facts) == verdict


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({"glibc": (2, 28)}, "wheel vllm-0.30.0-cp38-abi3-manylinux_2_28_x86_64.whl"),
        ({"glibc": (2, 27)}, "no: manylinux_2_28 needs glibc 2.28 or newer"),
        ({"glibc": None}, "no: manylinux_2_28 needs glibc 2.28 or newer"),
        ({"python": (3, 14)}, "wheel vllm-0.30.0-cp38-abi3-manylinux_2_28_x86_64.whl"),
        ({"python": (3, 15)}, "no: Python 3.15 is outside >=3.10,<3.15"),
        ({"arch": "ppc64le"}, "no prebuilt wheel for ppc64le"),
        ({"has_stable_abi": False}, "no: the wheel's cp38-abi3 tag needs CPython with the GIL"),
    ],
)
def test_edges_of_the_wheel_rule(change: dict[str, object], verdict: str) -> None:
    assert wheel_verdict(dataclasses.replace(LINUX, **change)) == verdict  # type: ignore[arg-type]


def test_the_rule_agrees_with_pip_about_this_machine() -> None:
    here = frozenset(sys_tags())
    fitting = [name for name in wheel.WHEELS if here & parse_wheel_filename(name)[3]]

    verdict = wheel_verdict(wheel.this_host())

    assert verdict == f"wheel {fitting[0]}" if fitting else not verdict.startswith("wheel")


@pytest.mark.parametrize(
    ("facts", "chosen"),
    [
        (PlatformFacts(found=frozenset({"cuda"})), "cuda"),
        (PlatformFacts(found=frozenset({"rocm"})), "rocm"),
        (PlatformFacts(found=frozenset(["cpu"])), "cpu"),
        (PlatformFacts(found=frozenset({"cpu"})), "cpu"),
        (
            PlatformFacts(found=frozenset({"cuda"}), is_cpu_forced=True),
            "CpuPlatform (VLLM_TARGET_DEVICE=cpu)",
        ),
        (PlatformFacts(found=frozenset(), plugins=("ascend",)), "plugin ascend"),
        (PlatformFacts(found=frozenset()), "UnspecifiedPlatform"),
    ],
    ids=["nvidia", "amd", "macos", "cpu-build", "forced-cpu", "ascend", "cuda-wheel-without-gpu"],
)
def test_the_seven_hosts_of_the_seeds(facts: PlatformFacts, chosen: str) -> None:
    assert choose_platform(facts) == chosen


def test_a_platform_must_be_the_only_one() -> None:
    two_builtin = PlatformFacts(found=frozenset({"cpu", "cuda"}))
    two_plugins = PlatformFacts(found=frozenset({"cuda"}), plugins=("a", "b"))
    plugin_wins = PlatformFacts(found=frozenset({"cuda", "cpu"}), plugins=("a",))

    assert choose_platform(two_builtin) == "error: more than one platform plugin [cuda, cpu]"
    assert choose_platform(two_plugins) == "error: more than one platform plugin [a, b]"
    assert choose_platform(plugin_wins) == "plugin a"


def test_forced_cpu_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_TARGET_DEVICE", "cpu")

    check = platform.check_vllm_platform(GpuReading(reason="NVML not found"))

    assert check.result is Result.OK
    assert check.seen.endswith("CpuPlatform (VLLM_TARGET_DEVICE=cpu)")


def test_gpus_are_described() -> None:
    reading = GpuReading((Gpu("H200", 139 << 30, 1 << 30, (9, 0)),), "580.1", "13.0")

    check = gpu.check_gpu(reading)

    assert check.result is Result.OK
    assert check.seen == (
        "0: H200, 1.00 GiB of 139.00 GiB used, compute capability 9.0; driver 580.1, CUDA 13.0"
    )


def test_no_gpu_is_no_fault_but_a_broken_driver_is() -> None:
    absent = gpu.check_gpu(GpuReading(reason="NVML not found"))
    broken = gpu.check_gpu(GpuReading(reason="NVML does not start: Driver/library mismatch"))

    assert (absent.result, absent.seen) == (Result.SKIPPED, "no NVIDIA GPU (NVML not found)")
    assert broken.result is Result.WARNING


def test_extras() -> None:
    whole = extras.check_engine_extra(("packaging",))
    none = extras.check_engine_extra(("no-such-distribution",))
    half = extras.check_engine_extra(("packaging", "no-such-distribution"))

    assert whole.result is Result.OK
    assert whole.seen.startswith("packaging ")
    assert (none.result, none.todo) == (Result.WARNING, "pip install 'stoker[engine]'")
    assert half.result is Result.PROBLEM
    assert "no-such-distribution missing" in half.seen


def test_a_busy_port_is_named() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        busy = host.check_port(port)
    free = host.check_port(port)

    assert busy.result is Result.WARNING
    assert "pid" in busy.seen
    assert busy.todo == f"stoker serve --port {port + 1}"
    assert free.result is Result.OK


def test_disk_and_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path / "cache"))

    assert host.check_disk(needed_bytes=1).result is Result.OK
    assert host.check_disk(needed_bytes=1 << 60).result is Result.PROBLEM
    assert host.check_shared_memory(tmp_path / "absent").result is Result.SKIPPED
    assert host.check_shared_memory(tmp_path).result is Result.OK


def test_the_report_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path / "cache"))
    checks = run_checks()
    document = json.loads(json.dumps(as_json(checks)))

    ids = [entry["id"] for entry in document["checks"]]
    assert ids == [
        *("python", "system", "engine-extra", "gpu", "vllm-wheel", "vllm-platform"),
        *("port", "disk", "shm"),
    ]
    assert all(check.todo for check in checks if check.result in (Result.WARNING, Result.PROBLEM))


def test_the_worst_result_counts() -> None:
    ok, warning, problem, skipped = (Check("x", "X", result, "") for result in Result)

    assert worst_result([ok, skipped]) is Result.OK
    assert worst_result([ok, warning]) is Result.WARNING
    assert worst_result([problem, warning, ok]) is Result.PROBLEM
