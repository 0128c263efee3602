"""Container and host: shared memory, limits, memory, processors, disks, clock, docker."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from app.doctor.facts import DoctorFacts, FolderFacts, HostFacts, PciGpu
from app.doctor.report import Check, Result, command_line
from engine.machine.sizes import GIB, human_bytes
from engine.model_store.catalogue import SMOLLM2

_VLLM_OPEN_FILES = 65535  # what vLLM raises its own limit to
_SHM_PER_GPU = GIB  # rule of thumb: queues between ranks, NCCL's buffers
_SHM_LEAST = 64 << 20  # docker's default, enough for one GPU
_LOW_MEMORY = 2 * GIB  # the built-in model with its engine and KV cache
_LOW_TMP = GIB
_LOW_HUB = 20 * GIB  # an 8B model in bfloat16 is 15 GiB
_NETWORK_FILESYSTEMS = (
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "ceph", "glusterfs"),
    *("9p", "virtiofs", "drvfs", "fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.gcsfuse"),
    *("fuse.ceph", "afs", "panfs"),
)


def checks(facts: DoctorFacts) -> Sequence[Check]:
    host = facts.host
    if host is None:
        return [Check("shm", "Shared memory", Result.SKIPPED, "the facts do not say")]
    num_gpus = len(facts.gpu.gpus) if facts.gpu else 0
    num_gpus = num_gpus or sum(c.vendor == "amd" for c in _pci(facts))
    found = [
        check_shared_memory(host, num_gpus),
        check_memory(host),
        check_swap(host),
        check_processors(host),
        check_open_files(host),
        check_memlock(host, num_gpus),
        check_numa(host, num_gpus),
        *(check_folder(folder) for folder in host.folders),
        check_compiler(host),
        check_clock(host),
        check_docker(host, has_gpu=num_gpus > 0 or any(c.vendor == "nvidia" for c in _pci(facts))),
    ]
    return [check for check in found if check is not None]


def check_shared_memory(host: HostFacts, num_gpus: int) -> Check:
    """/dev/shm, through which the processes of a tensor parallel server talk."""
    title, size = "Shared memory", host.shm_bytes
    if size is None:
        return Check("shm", title, Result.SKIPPED, "no /dev/shm on this system")
    needed = num_gpus * _SHM_PER_GPU if num_gpus > 1 else _SHM_LEAST
    seen = f"/dev/shm is {human_bytes(size)}"
    if size >= needed:
        return Check("shm", title, Result.OK, seen)
    gib = max(needed // GIB, 1)
    todo = f"{human_bytes(needed)} for {max(num_gpus, 1)} GPU(s); too little ends a rank by SIGBUS"
    if host.container == "kubernetes":
        patch = f"an emptyDir with medium: Memory and sizeLimit: {gib}Gi, mounted at /dev/shm"
        return Check("shm", title, Result.WARNING, seen, f"{todo}: {patch}")
    if host.container:
        todo += ": the container must be started with more"
        examples = (f"docker run --shm-size {gib}g IMAGE", "docker run --ipc=host IMAGE")
        return Check("shm", title, Result.WARNING, seen, todo, examples=examples)
    commands = (f"sudo mount -o remount,size={gib}G /dev/shm",)
    return Check("shm", title, Result.WARNING, seen, todo, commands)


def check_memory(host: HostFacts) -> Check | None:
    """Main memory that is left, in the machine and below the container's limit."""
    if host.memory_bytes is None or host.available_bytes is None:
        return None
    left = host.available_bytes
    seen = f"{human_bytes(left)} of {human_bytes(host.memory_bytes)} available"
    if host.cgroup_memory_bytes is not None:
        left = min(left, host.cgroup_memory_bytes - (host.cgroup_used_bytes or 0))
        seen += f"; this container may use {human_bytes(host.cgroup_memory_bytes)}"
        seen += f" and uses {human_bytes(host.cgroup_used_bytes)}"
    if left >= _LOW_MEMORY:
        return Check("memory", "Memory", Result.OK, seen)
    todo = f"less than {human_bytes(_LOW_MEMORY)} left: the kernel ends an engine that needs more"
    commands = ("ps -eo pid,rss,comm --sort=-rss | head",)
    examples: tuple[str, ...] = ()
    if host.cgroup_memory_bytes is not None and host.container:
        examples = ("docker update --memory 16g --memory-swap 16g CONTAINER",)
    return Check("memory", "Memory", Result.WARNING, seen, todo, commands, examples=examples)


def check_swap(host: HostFacts) -> Check | None:
    """Weights that are swapped out make every token slow."""
    if host.swap_bytes is None:
        return None
    if not host.swap_bytes:
        return Check("swap", "Swap", Result.OK, "none")
    used = host.swap_used_bytes or 0
    seen = f"{human_bytes(used)} of {human_bytes(host.swap_bytes)} used"
    if used < host.swap_bytes // 2:
        return Check("swap", "Swap", Result.OK, seen)
    todo = "memory was short: end what is not needed, then take the rest back"
    commands = ("ps -eo pid,rss,comm --sort=-rss | head", "sudo swapoff -a && sudo swapon -a")
    return Check("swap", "Swap", Result.WARNING, seen, todo, commands)


def check_processors(host: HostFacts) -> Check | None:
    """Processors that this process may use."""
    usable = host.usable_cpus
    if usable is None:
        return None
    seen = f"{usable:g} of {host.cpus} usable"
    if usable >= 2:
        return Check("cpus", "Processors", Result.OK, seen)
    todo = "a server is two processes at least, one for HTTP and one for the engine: give it two"
    if host.container:
        examples = ("docker update --cpus 4 CONTAINER",)
        return Check("cpus", "Processors", Result.WARNING, seen, todo, examples=examples)
    return Check("cpus", "Processors", Result.WARNING, seen, todo, ("nproc; taskset -p $$",))


def check_open_files(host: HostFacts) -> Check | None:
    """Each connection is an open file; vLLM raises the limit by itself as far as it may."""
    hard = host.open_files_hard
    if host.open_files is None:
        return None
    seen = f"ulimit -n is {host.open_files}, at most {hard or 'unlimited'}"
    if hard is None or hard >= _VLLM_OPEN_FILES or host.open_files >= _VLLM_OPEN_FILES:
        return Check("open-files", "Open files", Result.OK, seen)
    todo = f"vLLM wants {_VLLM_OPEN_FILES}; many clients end in 'Too many open files'"
    if host.container:
        todo += ". The limit of a container is set when it is started"
        examples = (f"docker run --ulimit nofile={_VLLM_OPEN_FILES}:{_VLLM_OPEN_FILES} IMAGE",)
    else:
        todo += ". In the shell that starts the server, with sudo"
        examples = (f"sudo prlimit --pid $$ --nofile={_VLLM_OPEN_FILES}:{_VLLM_OPEN_FILES}",)
    return Check("open-files", "Open files", Result.WARNING, seen, todo, examples=examples)


def check_memlock(host: HostFacts, num_gpus: int) -> Check | None:
    """RDMA pins memory; without InfiniBand the limit does not matter here."""
    title = "Locked memory"
    if host.memlock_bytes is None:
        return Check("memlock", title, Result.OK, "unlimited")
    seen = f"ulimit -l is {human_bytes(host.memlock_bytes)}"
    if not host.has_infiniband or num_gpus == 0:
        return Check("memlock", title, Result.OK, seen)
    todo = "NCCL over InfiniBand pins its buffers and needs it unlimited"
    if host.container:
        examples = ("docker run --ulimit memlock=-1 IMAGE",)
    else:
        examples = ("sudo prlimit --pid $$ --memlock=unlimited",)
    return Check("memlock", title, Result.WARNING, seen, todo, examples=examples)


def check_numa(host: HostFacts, num_gpus: int) -> Check | None:
    """Several memory nodes: pages that the kernel moves cost time on a server with GPUs."""
    if host.numa_nodes is None:
        return None
    seen = f"{host.numa_nodes} node{'' if host.numa_nodes == 1 else 's'}"
    if host.numa_nodes == 1 or not host.numa_balancing or num_gpus == 0:
        return Check("numa", "NUMA", Result.OK, seen)
    seen += ", automatic balancing is on"
    todo = "it moves pages under a running engine"
    commands = ("sudo sysctl kernel.numa_balancing=0",)
    return Check("numa", "NUMA", Result.WARNING, seen, todo, commands)


def check_folder(folder: FolderFacts) -> Check:
    """Free space, and whether the folder lies on another machine."""
    identity = {"Stoker's cache": "disk", "Hugging Face cache": "hub-disk"}.get(
        folder.purpose, "tmp-disk"
    )
    seen = f"{human_bytes(folder.free_bytes)} free in {folder.path}"
    needed, example = _need_of(identity)
    if folder.free_bytes < needed:
        # Without this much the built-in model cannot be made; the others depend on the model.
        result = Result.PROBLEM if identity == "disk" else Result.WARNING
        todo = f"{human_bytes(needed)} are wanted: free some, or use another disk"
        commands = (command_line("du -xh --max-depth=1 {} | sort -h | tail", folder.path),)
        return Check(identity, folder.purpose, result, seen, todo, commands, examples=(example,))
    if folder.filesystem in _NETWORK_FILESYSTEMS and identity != "tmp-disk":
        seen += f", on a network file system ({folder.filesystem})"
        todo = (
            "loading is slow there and locks may fail: keep models on a local disk, or read ahead"
        )
        examples = (example, "vllm serve MODEL --safetensors-load-strategy prefetch")
        return Check(identity, folder.purpose, Result.WARNING, seen, todo, examples=examples)
    return Check(identity, folder.purpose, Result.OK, seen)


def check_compiler(host: HostFacts) -> Check:
    """Triton, Inductor and Stoker's own kernels are compiled on the machine that runs them."""
    if host.compiler is not None:
        return Check("compiler", "Compiler", Result.OK, host.compiler)
    todo = "Triton, Inductor and Stoker's native kernels compile here"
    commands = ("sudo apt-get install -y gcc g++",)
    return Check("compiler", "Compiler", Result.WARNING, "no C compiler", todo, commands)


def check_clock(host: HostFacts) -> Check | None:
    """With a wrong clock TLS fails, and so every download."""
    if host.clock is None or host.not_before is None:
        return None
    seen = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(host.clock))
    if host.clock >= host.not_before - 86400:
        return Check("clock", "Clock", Result.OK, seen)
    seen += ", which is before this program was installed"
    todo = "certificates will not be valid: set the clock"
    return Check("clock", "Clock", Result.PROBLEM, seen, todo, ("sudo timedatectl set-ntp true",))


def check_docker(host: HostFacts, *, has_gpu: bool) -> Check | None:
    """Containers see the GPU through NVIDIA's toolkit only."""
    if not host.has_docker or host.container:
        return None
    title = "Containers"
    if host.has_nvidia_toolkit or not has_gpu:
        toolkit = "with" if host.has_nvidia_toolkit else "no GPU for"
        seen = f"docker, {toolkit} nvidia-container-toolkit"
        return Check("docker", title, Result.OK, seen)
    return Check(
        "docker",
        title,
        Result.WARNING,
        "docker, without nvidia-container-toolkit: --gpus all fails",
        "only needed to run engines in containers",
        (
            "sudo apt-get install -y nvidia-container-toolkit",
            "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker",
        ),
    )


def _need_of(identity: str) -> tuple[int, str]:
    """Bytes wanted in a folder, and the command that moves it elsewhere."""
    return {
        "disk": (SMOLLM2.disk_bytes, "export STOKER_CACHE_DIR=/big/disk/stoker"),
        "hub-disk": (_LOW_HUB, "export HF_HOME=/big/disk/huggingface"),
        "tmp-disk": (_LOW_TMP, "export TMPDIR=/big/disk/tmp"),
    }[identity]


def _pci(facts: DoctorFacts) -> Iterator[PciGpu]:
    return iter(facts.accelerators.pci if facts.accelerators else ())
