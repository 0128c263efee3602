"""NVIDIA GPUs: driver, CUDA, compute capability, memory and who holds it, MIG, health, topology.

To have no GPU is no fault: Stoker's own engine runs on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app.doctor.accelerators import accelerator_checks
from app.doctor.facts import DoctorFacts
from app.doctor.report import Check, Result, command_line
from engine.machine.gpus import Gpu, GpuReading, read_gpus
from engine.machine.sizes import human_bytes

__all__ = ["Gpu", "GpuReading", "checks", "read_gpus"]

_VLLM_SHARE = 0.92  # --gpu-memory-utilization of vLLM 0.30.0
_LEAST, _BF16, _FP8 = (7, 5), (8, 0), (8, 9)
_INDEX = ("export CUDA_VISIBLE_DEVICES=INDEX_OF_A_NEWER_GPU",)
_DRIVER_OF_CUDA = {"11": "450", "12": "525", "13": "580"}
# What to do when NVML gives no answer, by its error.
_NO_ANSWER = {
    "driver-mismatch": (
        "the driver was updated while its old part is still loaded: restart the machine",
        ("sudo reboot",),
    ),
    "driver-not-loaded": (
        "the driver is installed but not loaded",
        ("sudo modprobe nvidia", "nvidia-smi"),
    ),
    "no-permission": (
        "this user may not open the GPU's device files",
        ("ls -l /dev/nvidia*", 'sudo usermod -aG video "$USER"'),
    ),
    "package-missing": (None, ("pip install nvidia-ml-py",)),
    "failed": (
        "in a container that lost its GPU, start it anew; else see what the kernel says",
        ("nvidia-smi", "sudo dmesg | grep -iE 'nvrm|xid' | tail"),
    ),
}


def checks(facts: DoctorFacts) -> Sequence[Check]:
    found: list[Check] = []
    if facts.gpu is not None:
        found += _nvidia_checks(facts, facts.gpu)
    if facts.accelerators is not None:
        found += accelerator_checks(facts, facts.accelerators)
    return found or [Check("gpu", "GPU", Result.SKIPPED, "the facts do not say")]


def _nvidia_checks(facts: DoctorFacts, reading: GpuReading) -> list[Check]:
    found = [check_reading(reading)]
    if reading.gpus:
        found += [
            check_capability(reading.gpus),
            check_memory(reading.gpus),
            check_mig(reading.gpus),
            check_health(reading.gpus),
        ]
        if cuda := check_cuda(reading, facts):
            found.append(cuda)
        if len(reading.gpus) > 1:
            found.append(check_topology(reading, facts))
    return found


def check_reading(reading: GpuReading) -> Check:
    """The GPUs, or why NVML lists none."""
    if reading.gpus:
        gpus = "; ".join(_describe(index, gpu) for index, gpu in enumerate(reading.gpus))
        seen = f"{gpus}; driver {reading.driver}, CUDA {reading.cuda}"
        return Check("gpu", "GPU", Result.OK, seen)
    seen = f"no NVIDIA GPU ({reading.reason or 'NVML lists none'})"
    if reading.error in (None, "library-missing"):
        return Check("gpu", "GPU", Result.SKIPPED, seen)
    todo, commands = _NO_ANSWER.get(reading.error, _NO_ANSWER["failed"])
    is_broken = reading.error in ("driver-mismatch", "no-permission")
    result = Result.PROBLEM if is_broken else Result.WARNING
    return Check("gpu", "GPU", result, seen, todo, commands)


def check_capability(gpus: Sequence[Gpu]) -> Check:
    """vLLM needs 7.5; bfloat16 begins at 8.0, fp8 arithmetic at 8.9."""
    title = "Compute capability"
    oldest = min(gpus, key=lambda gpu: gpu.compute_capability)
    dotted = _dotted(oldest.compute_capability)
    if oldest.compute_capability < _LEAST:
        return Check(
            "gpu-capability",
            title,
            Result.PROBLEM,
            f"{oldest.name} has {dotted}; vLLM needs 7.5 or newer",
            "leave this GPU out, or use llama.cpp on it",
            examples=_INDEX if len(gpus) > 1 else (),
        )
    if oldest.compute_capability < _BF16:
        seen = f"{oldest.name} has {dotted}: no bfloat16 (8.0), no fp8 (8.9)"
        return Check(
            "gpu-capability",
            title,
            Result.WARNING,
            seen,
            "most checkpoints are bfloat16: ask for float16",
            examples=("vllm serve MODEL --dtype float16",),
        )
    fp8 = "bfloat16 and fp8" if oldest.compute_capability >= _FP8 else "bfloat16, no fp8 (8.9)"
    return Check("gpu-capability", title, Result.OK, f"{dotted}: {fp8}")


def check_memory(gpus: Sequence[Gpu]) -> Check:
    """Is the share that vLLM takes by default free on every GPU, and who holds the rest."""
    title = "GPU memory"
    details = tuple(_holder_lines(gpus))
    fullest = max(gpus, key=lambda gpu: gpu.memory_used_bytes / max(gpu.memory_bytes, 1))
    free = fullest.memory_bytes - fullest.memory_used_bytes
    seen = f"{human_bytes(free)} of {human_bytes(fullest.memory_bytes)} free"
    seen += " on the fullest" if len(gpus) > 1 else ""
    if free >= _VLLM_SHARE * fullest.memory_bytes:
        return Check("gpu-memory", title, Result.OK, seen, details=details)
    pids = [holder.pid for holder in fullest.holders]
    share = max(int((free / max(fullest.memory_bytes, 1) - 0.01) * 100), 0) / 100
    todo = (
        f"vLLM asks for {_VLLM_SHARE} of it: end what holds the memory, if nobody needs it, or ask "
        "for less, if the model's weights fit into that"
    )
    # A holder may be a server at work: only a person can say that it is not needed.
    examples = tuple(f"kill {pid}" for pid in pids)
    commands: tuple[str, ...] = ()
    if share >= 0.1:
        examples += (
            f"stoker plan MODEL --gpu-memory-utilization {share:.2f}",
            f"vllm serve MODEL --gpu-memory-utilization {share:.2f}",
        )
    elif not examples:
        commands = ("nvidia-smi",)
    return Check("gpu-memory", title, Result.WARNING, seen, todo, commands, details, examples)


def check_mig(gpus: Sequence[Gpu]) -> Check:
    """A GPU in MIG mode is used through its instances only."""
    split = [(index, gpu) for index, gpu in enumerate(gpus) if gpu.mig]
    if not split:
        return Check("gpu-mig", "MIG", Result.OK, "off or not offered")
    seen = ", ".join(f"GPU {index}: {gpu.mig_instances} instances" for index, gpu in split)
    empty = [index for index, gpu in split if gpu.mig_instances == 0]
    if empty:
        return Check(
            "gpu-mig",
            "MIG",
            Result.PROBLEM,
            f"on, but {seen}: nothing can run there",
            "an administrator makes an instance or switches MIG off",
            (f"sudo nvidia-smi -i {empty[0]} -mig 0",),
        )
    return Check(
        "gpu-mig",
        "MIG",
        Result.WARNING,
        f"on; {seen}",
        "name one instance; tensor parallel does not reach across instances",
        ("nvidia-smi -L",),
        examples=("export CUDA_VISIBLE_DEVICES=MIG-UUID",),
    )


def check_health(gpus: Sequence[Gpu]) -> Check:
    """Memory errors, throttling, and the persistence mode that saves seconds at every start."""
    title = "GPU health"
    errors = [(index, gpu.ecc_errors) for index, gpu in enumerate(gpus) if gpu.ecc_errors]
    if errors:
        seen = ", ".join(f"GPU {index}: {count} uncorrected" for index, count in errors)
        return Check(
            "gpu-health",
            title,
            Result.PROBLEM,
            f"memory errors: {seen}",
            "results may be wrong: reset the GPU when nobody uses it; if it comes back, replace it",
            (f"nvidia-smi -q -d ECC -i {errors[0][0]}",),
        )
    slowed = [(index, gpu.throttled_by) for index, gpu in enumerate(gpus) if gpu.throttled_by]
    if slowed:
        seen = "; ".join(f"GPU {index}: {', '.join(why)}" for index, why in slowed)
        todo = "too hot or too little power: see to cooling and cables"
        commands = ("nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER",)
        return Check("gpu-health", title, Result.WARNING, f"slowed: {seen}", todo, commands)
    if any(gpu.persistence is False for gpu in gpus):
        seen = "no errors, not throttled; persistence mode is off"
        todo = "without it each first use loads the driver anew, which takes seconds"
        return Check("gpu-health", title, Result.WARNING, seen, todo, ("sudo nvidia-smi -pm 1",))
    ecc = "ECC on" if all(gpu.ecc for gpu in gpus) else "ECC off or unknown"
    return Check("gpu-health", title, Result.OK, f"no errors, not throttled, {ecc}")


def check_cuda(reading: GpuReading, facts: DoctorFacts) -> Check | None:
    """The CUDA that torch was built for against the newest that the driver serves."""
    title = "CUDA"
    packages = facts.environment.packages if facts.environment else ()
    torch = next((one for one in packages if one.name == "torch"), None)
    if torch is None or reading.cuda is None:
        return None
    if torch.cuda is None:
        seen = f"torch {torch.version} is no CUDA build: it leaves the GPU alone"
        commands = ("uv pip install --reinstall torch --torch-backend=auto",)
        return Check("gpu-cuda", title, Result.WARNING, seen, None, commands)
    seen = f"torch {torch.version} is built for CUDA {torch.cuda}, the driver serves {reading.cuda}"
    wanted, served = torch.cuda.split(".")[0], reading.cuda.split(".")[0]
    # Within one major version an older driver serves newer builds.
    if not wanted.isdecimal() or not served.isdecimal() or int(wanted) <= int(served):
        return Check("gpu-cuda", title, Result.OK, seen)
    least = _DRIVER_OF_CUDA.get(wanted)
    return Check(
        "gpu-cuda",
        title,
        Result.PROBLEM,
        f"{seen} (driver {reading.driver})",
        f"install a driver for CUDA {wanted}"
        + (f" ({least} or newer)" if least else "")
        + f", or a build for CUDA {served}",
        (
            "sudo ubuntu-drivers autoinstall && sudo reboot",
            "uv pip install --reinstall vllm --torch-backend=auto",
        ),
    )


def check_topology(reading: GpuReading, facts: DoctorFacts) -> Check:
    """Can the GPUs of a tensor parallel server reach each other, and with what library."""
    title = "GPU topology"
    nvlinks = min(gpu.nvlinks for gpu in reading.gpus)
    details = tuple(
        f"GPU {link.first} and {link.second}: {link.path or 'unknown path'}, "
        f"P2P {link.p2p or 'unknown'}"
        for link in reading.links
    )
    kinds = len({gpu.name for gpu in reading.gpus})
    seen = f"{len(reading.gpus)} GPUs, {f'{nvlinks} NVLinks each' if nvlinks else 'no NVLink'}"
    seen += f", {kinds} different kinds" if kinds > 1 else ""
    if nccl := _nccl_missing(facts):
        missing = (command_line("uv pip install {}", nccl),)
        seen += ", NCCL is missing"
        todo = "tensor parallel needs it"
        return Check("gpu-topology", title, Result.PROBLEM, seen, todo, missing, details)
    bad = [link for link in reading.links if link.p2p not in (None, "ok")]
    if not bad:
        return Check("gpu-topology", title, Result.OK, f"{seen}, P2P works", details=details)
    seen += f"; GPU {bad[0].first} and {bad[0].second} have no P2P: {bad[0].p2p}"
    todo = "tensor parallel goes through main memory; if a start hangs, switch P2P off"
    commands = ("export NCCL_P2P_DISABLE=1",)
    examples = ("vllm serve MODEL --disable-custom-all-reduce",)
    return Check("gpu-topology", title, Result.WARNING, seen, todo, commands, details, examples)


def _nccl_missing(facts: DoctorFacts) -> str | None:
    """The distribution to install when torch is a CUDA build without NCCL beside it."""
    environment = facts.environment
    if environment is None:
        return None
    torch = next((one for one in environment.packages if one.name == "torch"), None)
    if torch is None or torch.cuda is None or environment.is_conda:
        return None
    if any(one.name.startswith("nvidia-nccl") for one in environment.distributions):
        return None
    return f"nvidia-nccl-cu{torch.cuda.split('.')[0]}"


def _holder_lines(gpus: Sequence[Gpu]) -> Iterator[str]:
    for index, gpu in enumerate(gpus):
        for holder in gpu.holders:
            size = human_bytes(holder.bytes) if holder.bytes else "size unknown"
            who = f"{holder.name or 'not visible from here'}, user {holder.user or 'unknown'}"
            yield f"GPU {index}: pid {holder.pid} ({who}) holds {size}"


def _describe(index: int, gpu: Gpu) -> str:
    used, total = human_bytes(gpu.memory_used_bytes), human_bytes(gpu.memory_bytes)
    capability = _dotted(gpu.compute_capability)
    return f"{index}: {gpu.name}, {used} of {total} used, compute capability {capability}"


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
