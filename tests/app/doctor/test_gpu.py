"""The GPU checks behind a scripted NVML: none, one, eight, MIG, and a driver that refuses."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from app.doctor import gpu
from app.doctor.facts import (
    AcceleratorFacts,
    Distribution,
    DoctorFacts,
    EnvironmentFacts,
    HostFacts,
    PackageFolder,
    PciGpu,
)
from app.doctor.report import Check, Result
from engine.machine.gpus import Gpu, GpuReading, read_gpus
from tests.fakes.nvml import GIB, Card, ScriptedNvml


def look_up(pid: int) -> tuple[str | None, str | None]:
    return {41: ("VLLM::EngineCor", "ada")}.get(pid, (None, None))


def checks_of(nvml: ScriptedNvml, **facts: Any) -> dict[str, Check]:
    reading = read_gpus(nvml, look_up)
    found = gpu.checks(DoctorFacts(gpu=reading, **facts))
    assert all(
        c.todo or c.commands or c.examples
        for c in found
        if c.result in (Result.WARNING, Result.PROBLEM)
    )
    return {check.id: check for check in found}


def torch_for(cuda: str | None, *others: str) -> EnvironmentFacts:
    distributions = (
        Distribution(name=name, version="1", location="/v/site") for name in ("torch", *others)
    )
    return EnvironmentFacts(
        executable="/v/bin/python",
        prefix="/v",
        base_prefix="/usr",
        distributions=tuple(distributions),
        packages=(PackageFolder(name="torch", folder="/v/torch", version="2.13.0", cuda=cuda),),
    )


def test_no_gpu_is_no_fault() -> None:
    nvml = ScriptedNvml()
    checks = checks_of(nvml)

    assert (checks["gpu"].result, checks["gpu"].seen) == (
        Result.SKIPPED,
        "no NVIDIA GPU (NVML lists none)",
    )
    assert list(checks) == ["gpu"]
    assert nvml.shut_down == 1


def test_one_idle_gpu() -> None:
    checks = checks_of(ScriptedNvml(Card()))

    assert {check.result for check in checks.values()} == {Result.OK}
    assert checks["gpu"].seen == (
        "0: NVIDIA H100 80GB HBM3, 1.00 GiB of 80.00 GiB used, compute capability 9.0; "
        "driver 580.65.06, CUDA 13.0"
    )
    assert checks["gpu-capability"].seen == "9.0: bfloat16 and fp8"
    assert "gpu-topology" not in checks


def test_eight_gpus_show_their_topology_and_need_nccl() -> None:
    nvml = ScriptedNvml(*(Card(nvlinks=18) for _ in range(8)))
    whole = checks_of(nvml, environment=torch_for("13.0", "nvidia-nccl-cu13"))
    without = checks_of(nvml, environment=torch_for("13.0"))

    assert whole["gpu-topology"].seen == "8 GPUs, 18 NVLinks each, P2P works"
    assert len(whole["gpu-topology"].details) == 28
    assert whole["gpu-topology"].details[0] == ("GPU 0 and 1: the link between sockets, P2P ok")
    assert without["gpu-topology"].result is Result.PROBLEM
    assert without["gpu-topology"].commands == ("uv pip install nvidia-nccl-cu13",)


def test_gpus_without_p2p() -> None:
    check = checks_of(ScriptedNvml(Card(), Card(name="A"), p2p=4))["gpu-topology"]

    assert check.result is Result.WARNING
    assert check.seen == (
        "2 GPUs, no NVLink, 2 different kinds; GPU 0 and 1 have no P2P: switched off"
    )
    assert "export NCCL_P2P_DISABLE=1" in check.commands


@pytest.mark.parametrize(
    ("instances", "result", "command"),
    [
        (3, Result.WARNING, "export CUDA_VISIBLE_DEVICES=MIG-UUID"),
        (0, Result.PROBLEM, "sudo nvidia-smi -i 1 -mig 0"),
    ],
)
def test_mig(instances: int, result: Result, command: str) -> None:
    nvml = ScriptedNvml(Card(mig=None), Card(mig=(1, 1), instances=instances))
    check = checks_of(nvml)["gpu-mig"]

    assert check.result is result
    assert f"GPU 1: {instances} instances" in check.seen
    assert command in (*check.commands, *check.examples)


@pytest.mark.parametrize(
    ("code", "error", "result", "command"),
    [
        (18, "driver-mismatch", Result.PROBLEM, "sudo reboot"),
        (4, "no-permission", Result.PROBLEM, "ls -l /dev/nvidia*"),
        (9, "driver-not-loaded", Result.WARNING, "sudo modprobe nvidia"),
        (999, "failed", Result.WARNING, "nvidia-smi"),
    ],
)
@pytest.mark.parametrize("where", ["init", "count"])
def test_a_driver_that_refuses(
    where: str, code: int, error: str, result: Result, command: str
) -> None:
    nvml = ScriptedNvml(Card(), **{where: code})
    check = checks_of(nvml)["gpu"]

    assert read_gpus(nvml, look_up).error == error
    assert check.result is result
    assert command in check.commands


def test_a_missing_library_is_a_machine_without_gpu() -> None:
    check = checks_of(ScriptedNvml(init=12))["gpu"]

    assert (check.result, check.seen) == (Result.SKIPPED, "no NVIDIA GPU (NVML not found)")


def test_who_holds_the_memory() -> None:
    card = Card(used=60 * GIB, computing=[(41, 50 * GIB), (77, None)], drawing=[(41, 50 * GIB)])
    check = checks_of(ScriptedNvml(Card(), card))["gpu-memory"]

    assert check.result is Result.WARNING
    assert check.seen == "20.00 GiB of 80.00 GiB free on the fullest"
    assert check.details == (
        "GPU 1: pid 41 (VLLM::EngineCor, user ada) holds 50.00 GiB",
        "GPU 1: pid 77 (not visible from here, user unknown) holds size unknown",
    )
    assert check.commands == ()  # what holds it may be a server at work
    assert check.examples == (
        "kill 41",
        "kill 77",
        "stoker plan MODEL --gpu-memory-utilization 0.24",
        "vllm serve MODEL --gpu-memory-utilization 0.24",
    )
    assert check.todo is not None
    assert "if nobody needs it" in check.todo
    assert "if the model's weights fit" in check.todo


@pytest.mark.parametrize(
    ("capability", "result", "words"),
    [
        ((6, 1), Result.PROBLEM, "vLLM needs 7.5"),
        ((7, 5), Result.WARNING, "no bfloat16"),
        ((8, 0), Result.OK, "bfloat16, no fp8"),
        ((8, 9), Result.OK, "bfloat16 and fp8"),
    ],
)
def test_compute_capability(capability: tuple[int, int], result: Result, words: str) -> None:
    check = checks_of(ScriptedNvml(Card(), Card(capability=capability)))["gpu-capability"]

    assert check.result is result
    assert words in check.seen


@pytest.mark.parametrize(
    ("card", "result", "words"),
    [
        (Card(ecc_errors=2), Result.PROBLEM, "memory errors: GPU 0: 2 uncorrected"),
        (Card(throttle=0x40 | 0x1), Result.WARNING, "slowed: GPU 0: hardware thermal slowdown"),
        (Card(persistence=0), Result.WARNING, "persistence mode is off"),
        (Card(ecc=None, ecc_errors=None, persistence=None), Result.OK, "ECC off or unknown"),
        (Card(throttle=0x4), Result.OK, "not throttled"),  # the chosen power limit is no fault
    ],
)
def test_health(card: Card, result: Result, words: str) -> None:
    check = checks_of(ScriptedNvml(card))["gpu-health"]

    assert check.result is result
    assert words in check.seen


@pytest.mark.parametrize(
    ("cuda", "result"),
    [("13.1", Result.OK), ("12.8", Result.OK), ("14.0", Result.PROBLEM), (None, Result.WARNING)],
)
def test_torchs_cuda_against_the_drivers(cuda: str | None, result: Result) -> None:
    check = checks_of(ScriptedNvml(Card()), environment=torch_for(cuda))["gpu-cuda"]

    assert check.result is result


# -- beside NVML ---------------------------------------------------------------------------------


def beside(seen: AcceleratorFacts, **facts: Any) -> dict[str, Check]:
    found = gpu.checks(DoctorFacts(accelerators=seen, **facts))
    assert all(
        c.todo or c.commands or c.examples
        for c in found
        if c.result in (Result.WARNING, Result.PROBLEM)
    )
    return {check.id: check for check in found}


def test_a_login_node_gets_the_salloc_line() -> None:
    check = beside(AcceleratorFacts(has_slurm=True))["gpu-slurm"]
    in_job = beside(AcceleratorFacts(slurm_job="12"), gpu=read_gpus(ScriptedNvml(Card())))

    assert check.result is Result.WARNING
    assert check.examples[0].startswith("salloc -A ACCOUNT -p gpu --gres=gpu:1")
    assert in_job["gpu-slurm"].result is Result.OK


def test_a_virtual_machine_without_a_gpu_gets_the_passthrough_hint() -> None:
    check = beside(AcceleratorFacts(), host=HostFacts(hypervisor="QEMU"))["gpu-bus"]

    assert check.result is Result.SKIPPED
    assert check.todo is not None
    assert "Primary GPU off" in check.todo


@pytest.mark.parametrize(
    ("driver", "result", "words"),
    [
        ("nvidia", Result.OK, ""),
        (None, Result.PROBLEM, "install NVIDIA's driver"),
        ("nouveau", Result.PROBLEM, "install NVIDIA's driver"),
        ("vfio-pci", Result.WARNING, "reserved for a virtual machine"),
    ],
)
def test_a_card_on_the_bus(driver: str | None, result: Result, words: str) -> None:
    card = PciGpu(address="0000:01:00.0", vendor="nvidia", driver=driver)
    check = beside(AcceleratorFacts(pci=(card,)))["gpu-bus"]

    assert check.result is result
    assert words in (check.todo or "")


AMD = AcceleratorFacts(
    pci=(PciGpu(address="c1:00.0", vendor="amd", driver="amdgpu", memory_bytes=192 * GIB),),
    has_kfd=True,
    can_open_kfd=True,
)


def test_rocm() -> None:
    with_package = dataclasses.replace(torch_for(None), modules=("amdsmi",))
    good = beside(AMD, environment=with_package)["gpu-rocm"]
    no_package = beside(AMD, environment=torch_for(None))["gpu-rocm"]
    no_permission = beside(dataclasses.replace(AMD, can_open_kfd=False))["gpu-rocm"]
    no_kfd = beside(dataclasses.replace(AMD, has_kfd=False))["gpu-rocm"]

    assert (good.result, good.seen) == (Result.OK, "1 AMD GPU (192.00 GiB), /dev/kfd opens")
    assert "amdsmi is missing" in no_package.seen
    assert no_permission.result is Result.PROBLEM
    assert no_kfd.result is Result.WARNING


@pytest.mark.parametrize(
    ("cuda", "hip", "result"),
    [
        ("0", None, Result.OK),
        ("", None, Result.PROBLEM),
        ("1", None, Result.PROBLEM),
        ("0", "1", Result.PROBLEM),
        ("GPU-5f", None, Result.OK),
    ],
)
def test_variables_that_hide_gpus(cuda: str, hip: str | None, result: Result) -> None:
    one = GpuReading(
        gpus=(Gpu(name="A", memory_bytes=GIB, memory_used_bytes=0, compute_capability=(9, 0)),)
    )
    seen = AcceleratorFacts(cuda_visible=cuda, hip_visible=hip)

    assert beside(seen, gpu=one)["gpu-visible"].result is result
