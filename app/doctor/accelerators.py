"""GPUs beside NVML: on the bus, AMD's, hidden by a variable, or on another node of a cluster."""

from __future__ import annotations

from collections.abc import Iterator

from app.doctor.facts import AcceleratorFacts, DoctorFacts, HostFacts
from app.doctor.report import Check, Result
from engine.machine.gpus import GpuReading
from engine.machine.sizes import human_bytes

_SALLOC = "salloc -A ACCOUNT -p gpu --gres=gpu:1 -c 8 --mem=16G -t 01:00:00"


def accelerator_checks(facts: DoctorFacts, seen: AcceleratorFacts) -> Iterator[Check]:
    """The part of the family `gpu` that needs no NVML."""
    reading = facts.gpu or GpuReading()
    possible = (
        check_visible(seen, len(reading.gpus)),
        check_bus(seen, reading, facts.host),
        check_rocm(facts, seen),
        check_slurm(seen, reading),
    )
    return (check for check in possible if check is not None)


def check_visible(seen: AcceleratorFacts, num_gpus: int) -> Check | None:
    """Variables that hide GPUs, or that disagree."""
    title = "Visible GPUs"
    cuda, hip = seen.cuda_visible, seen.hip_visible
    if cuda is not None and hip is not None and cuda != hip:
        text = f"CUDA_VISIBLE_DEVICES={cuda} but HIP_VISIBLE_DEVICES={hip}"
        todo, commands = "set one of them", ("unset CUDA_VISIBLE_DEVICES",)
        return Check("gpu-visible", title, Result.PROBLEM, text, todo, commands)
    if cuda is None or num_gpus == 0:
        return None
    text = f"CUDA_VISIBLE_DEVICES={cuda!r}"
    numbers = [word.strip() for word in cuda.split(",")]
    wrong = [word for word in numbers if word.isdecimal() and int(word) >= num_gpus]
    if cuda.strip() in ("", "-1"):
        text, todo = f"{text} hides every GPU", "let the engine see one"
    elif wrong:
        text, todo = f"{text}, but there are {num_gpus} GPUs", "the numbers begin at 0"
    else:
        return Check("gpu-visible", title, Result.OK, text)
    return Check("gpu-visible", title, Result.PROBLEM, text, todo, ("unset CUDA_VISIBLE_DEVICES",))


def check_bus(seen: AcceleratorFacts, reading: GpuReading, host: HostFacts | None) -> Check | None:
    """A card on the bus that no driver serves; in a virtual machine, a card that is not there."""
    title = "GPU on the bus"
    cards = [card for card in seen.pci if card.vendor == "nvidia"]
    hypervisor = host.hypervisor if host else None
    if not cards:
        if hypervisor is None or host is None or host.container or reading.gpus or seen.pci:
            return None
        text = f"none in this virtual machine ({hypervisor})"
        todo = (
            "to pass one through: host setting PCI Device with All Functions and PCI-Express on, "
            "Primary GPU off, display Default; then install the driver inside"
        )
        return Check("gpu-bus", title, Result.SKIPPED, text, todo)
    without = [card for card in cards if card.driver != "nvidia"]
    text = ", ".join(f"{card.address}: driver {card.driver or 'none'}" for card in cards)
    if not without:
        return Check("gpu-bus", title, Result.OK, text)
    if without[0].driver == "vfio-pci":
        todo = "the card is reserved for a virtual machine: run the engine inside that one"
        return Check("gpu-bus", title, Result.WARNING, text, todo)
    return Check(
        "gpu-bus",
        title,
        Result.PROBLEM,
        text,
        "install NVIDIA's driver",
        (
            "sudo apt update && sudo apt install -y ubuntu-drivers-common",
            "sudo ubuntu-drivers autoinstall && sudo reboot",
            "nvidia-smi && lspci -nnk | grep -iA3 nvidia",
        ),
    )


def check_rocm(facts: DoctorFacts, seen: AcceleratorFacts) -> Check | None:
    """AMD: the kernel's device, permission, and the package that vLLM's probe asks."""
    cards = [card for card in seen.pci if card.vendor == "amd"]
    if not cards and not seen.has_kfd:
        return None
    title = "ROCm"
    sizes = [human_bytes(card.memory_bytes) for card in cards if card.memory_bytes]
    text = f"{len(cards)} AMD GPU{'' if len(cards) == 1 else 's'}"
    text += f" ({', '.join(sizes)})" if sizes else ""
    if not seen.has_kfd:
        todo = "the kernel offers no /dev/kfd: load amdgpu, or give the container its devices"
        return Check(
            "gpu-rocm",
            title,
            Result.WARNING,
            f"{text}, no ROCm",
            todo,
            ("sudo modprobe amdgpu",),
            examples=("docker run --device /dev/kfd --device /dev/dri IMAGE",),
        )
    if not seen.can_open_kfd:
        commands = ('sudo usermod -aG render,video "$USER"',)
        text += ", this user may not open /dev/kfd"
        return Check("gpu-rocm", title, Result.PROBLEM, text, "then log in again", commands)
    if facts.environment is not None and "amdsmi" not in facts.environment.modules:
        todo = "vLLM finds AMD GPUs through it; it comes with ROCm"
        commands = ("uv pip install /opt/rocm/share/amd_smi",)
        text += ", the Python package amdsmi is missing"
        return Check("gpu-rocm", title, Result.WARNING, text, todo, commands)
    return Check("gpu-rocm", title, Result.OK, f"{text}, /dev/kfd opens")


def check_slurm(seen: AcceleratorFacts, reading: GpuReading) -> Check | None:
    """A cluster: login nodes have no GPU, a job has the one it asked for."""
    if not seen.has_slurm and seen.slurm_job is None:
        return None
    where = f"job {seen.slurm_job}" if seen.slurm_job else "no job: a login node, as it seems"
    if reading.gpus:
        return Check("gpu-slurm", "Slurm", Result.OK, where)
    todo = "this node has no GPU: ask for one that has"
    return Check(
        "gpu-slurm", "Slurm", Result.WARNING, f"{where}, no GPU", todo, examples=(_SALLOC,)
    )
