"""Reads the machine: memory, processors, limits, disks, container, hypervisor, graphics devices.

Files of the kernel are read below `root`, so that tests can lay out another machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from app.doctor.facts import AcceleratorFacts, FolderFacts, HostFacts, PciGpu
from engine.machine.control_groups import group_folders, read_number, read_text
from engine.machine.cores import usable_cores
from engine.machine.hub import hub_cache
from engine.machine.memory import tightest_limit

_VENDORS = {"0x10de": "nvidia", "0x1002": "amd"}
_VIRTUAL = (
    "qemu",
    "kvm",
    "vmware",
    "virtualbox",
    "xen",
    "bochs",
    "parallels",
    "bhyve",
    "openstack",
)
_ROOT = Path("/")


def read_host(environ: Mapping[str, str], root: Path = _ROOT) -> HostFacts:
    """The facts of this machine."""
    import psutil

    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    limit = tightest_limit(root)
    open_files, open_files_hard = _limit("RLIMIT_NOFILE")
    shm = root / "dev/shm"
    return HostFacts(
        memory_bytes=memory.total,
        available_bytes=memory.available,
        swap_bytes=swap.total,
        swap_used_bytes=swap.used,
        shm_bytes=shutil.disk_usage(shm).total if shm.is_dir() else None,
        cpus=os.cpu_count(),
        usable_cpus=_usable_cpus(root),
        cgroup_memory_bytes=None if limit is None else limit.limit_bytes,
        cgroup_used_bytes=None if limit is None else limit.used_bytes,
        open_files=open_files,
        open_files_hard=open_files_hard,
        memlock_bytes=_limit("RLIMIT_MEMLOCK")[0],
        has_infiniband=(root / "dev/infiniband").is_dir(),
        numa_nodes=len(list(root.glob("sys/devices/system/node/node[0-9]*"))) or None,
        numa_balancing=_switch(root / "proc/sys/kernel/numa_balancing"),
        folders=tuple(_folders(environ, root)),
        clock=time.time(),
        not_before=Path(__file__).stat().st_mtime,
        compiler=_compiler(environ),
        container=container_kind(environ, root),
        hypervisor=hypervisor_kind(root),
        has_docker=shutil.which("docker") is not None,
        has_nvidia_toolkit=_has_nvidia_toolkit(root),
    )


def read_accelerators(environ: Mapping[str, str], root: Path = _ROOT) -> AcceleratorFacts:
    """Graphics devices as the bus shows them, ROCm's device, Slurm, and what hides GPUs."""
    kfd = root / "dev/kfd"
    return AcceleratorFacts(
        pci=tuple(_pci_gpus(root)),
        has_kfd=kfd.exists(),
        can_open_kfd=os.access(kfd, os.R_OK | os.W_OK),
        cuda_visible=environ.get("CUDA_VISIBLE_DEVICES"),
        hip_visible=environ.get("HIP_VISIBLE_DEVICES"),
        has_slurm=shutil.which("salloc") is not None,
        slurm_job=environ.get("SLURM_JOB_ID"),
    )


def cgroup_cpu_quota(root: Path = _ROOT) -> float | None:
    """Processors that the tightest cgroup gives; None without a limit."""
    quotas = []
    for folder in group_folders("cpu", root):
        words = read_text(folder / "cpu.max").split()
        if not words:
            words = [read_text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
        with contextlib.suppress(ValueError, IndexError, ZeroDivisionError):
            quota = int(words[0]) / int(words[1])
            if quota > 0:
                quotas.append(quota)
    return min(quotas, default=None)


def container_kind(environ: Mapping[str, str], root: Path = _ROOT) -> str | None:
    """Which kind of container this is, None outside of one."""
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    if environ.get("APPTAINER_CONTAINER") or environ.get("SINGULARITY_CONTAINER"):
        return "apptainer"
    return environ.get("container") or None


def hypervisor_kind(root: Path = _ROOT) -> str | None:
    """The product name of a virtual machine, None on bare metal."""
    if "microsoft" in read_text(root / "proc/version").lower():
        return "WSL"
    dmi = root / "sys/class/dmi/id"
    name = f"{read_text(dmi / 'sys_vendor')} {read_text(dmi / 'product_name')}".strip()
    if any(word in name.lower() for word in _VIRTUAL) or "virtual machine" in name.lower():
        return name
    if any(
        line.startswith("flags") and " hypervisor" in line
        for line in read_text(root / "proc/cpuinfo").splitlines()
    ):
        return name or "kind unknown"
    return None


def filesystem_of(path: Path, root: Path = _ROOT) -> str | None:
    """The kernel's name for the file system that holds `path`."""
    best: tuple[int, str] | None = None
    for line in read_text(root / "proc/mounts").splitlines():
        words = line.split()
        if len(words) < 3:
            continue
        mount = words[1].replace("\\040", " ")
        is_above = path == Path(mount) or Path(mount) in path.parents
        if is_above and (best is None or len(mount) >= best[0]):
            best = (len(mount), words[2])
    return best[1] if best else None


def _folders(environ: Mapping[str, str], root: Path) -> Iterator[FolderFacts]:
    from engine.env import user_cache_dir

    for purpose, wanted in (
        ("Stoker's cache", user_cache_dir()),
        ("Hugging Face cache", hub_cache(environ)),
        ("temporary files", Path(tempfile.gettempdir())),
    ):
        folder = wanted.absolute()
        while not folder.is_dir():  # it will be made there
            folder = folder.parent
        yield FolderFacts(
            purpose=purpose,
            path=str(wanted),
            free_bytes=shutil.disk_usage(folder).free,
            filesystem=filesystem_of(folder.resolve(), root),
        )


def _usable_cpus(root: Path) -> float:
    allowed, quota = float(usable_cores()), cgroup_cpu_quota(root)
    return allowed if quota is None else min(allowed, quota)


def _pci_gpus(root: Path) -> Iterator[PciGpu]:
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        vendor = _VENDORS.get(read_text(device / "vendor"))
        if vendor is None or not read_text(device / "class").startswith("0x03"):
            continue
        driver = device / "driver"
        yield PciGpu(
            address=device.name,
            vendor=vendor,
            driver=driver.resolve().name if driver.exists() else None,
            memory_bytes=read_number(device / "mem_info_vram_total"),
        )


def _compiler(environ: Mapping[str, str]) -> str | None:
    names = (environ.get("CC") or "", "gcc", "clang", "cc")
    return next((found for name in names if name and (found := shutil.which(name))), None)


def _has_nvidia_toolkit(root: Path) -> bool:
    programs = ("nvidia-ctk", "nvidia-container-runtime", "nvidia-container-cli")
    return (
        any(shutil.which(name) for name in programs)
        or "nvidia" in read_text(root / "etc/docker/daemon.json")
        or any((root / folder / "nvidia.yaml").exists() for folder in ("etc/cdi", "var/run/cdi"))
    )


def _limit(name: str) -> tuple[int | None, int | None]:
    try:
        import resource
    except ImportError:  # not on Windows
        return None, None
    soft, hard = resource.getrlimit(getattr(resource, name))
    return tuple(None if one == resource.RLIM_INFINITY else one for one in (soft, hard))  # type: ignore[return-value]


def _switch(path: Path) -> bool | None:
    text = read_text(path)
    return None if not text else text != "0"
