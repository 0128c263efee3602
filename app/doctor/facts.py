"""What is known about one machine, gathered once and then only read: every check works on it.

Absent is None (or an empty tuple), never a guess; a section that is None was not looked at. No
secret is ever in here: a token is "present", never its text. `app.doctor.facts_file` writes and
reads it as JSON.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.machine.gpus import GpuReading

Version = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """System and interpreter. `system` is linux, macos or windows; `python` is whole: 3.12.3."""

    system: str
    arch: str
    python: str
    release: str | None = None
    glibc: Version | None = None
    musl: Version | None = None
    macos: Version | None = None
    implementation: str = "CPython"
    has_gil: bool = True
    executable: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One version of a package as an index lists it."""

    package: str
    version: str
    requires_python: str
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformFacts:
    """Built-in probes that succeeded and packages that register a platform of their own."""

    found: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    target_device: str | None = None  # VLLM_TARGET_DEVICE
    vllm: str | None = None  # None: as the wheel on PyPI, a CUDA build


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """An installed distribution. `requires_torch` is its condition on torch, if it has one."""

    name: str
    version: str
    location: str
    installer: str | None = None
    requires_torch: str | None = None
    requires_flashinfer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageFolder:
    """A package found on the module path. `version` is what its own version file says."""

    name: str
    folder: str
    version: str | None = None
    cuda: str | None = None  # torch only: the CUDA it was built for
    hip: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentFacts:
    """A Python environment: what is installed, where it lies, and what leaks into it."""

    executable: str
    prefix: str
    base_prefix: str
    distributions: tuple[Distribution, ...] = ()
    packages: tuple[PackageFolder, ...] = ()
    platform_plugins: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()  # of libtpu and amdsmi, those that can be imported
    shadows: tuple[str, ...] = ()  # in the working folder, named like a package that is imported
    python_path: tuple[str, ...] = ()
    user_site: str | None = None  # only while it is in use and holds packages of vLLM's
    has_headers: bool = True  # Python.h, which Triton compiles against
    uses_system_packages: bool = False
    is_venv: bool = False
    is_conda: bool = False
    made_by: str | None = None  # uv, when the venv says so
    active_venv: str | None = None
    active_conda: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PciGpu:
    """A graphics device on the bus, seen without any driver. `driver` is None when it has none."""

    address: str
    vendor: str  # nvidia or amd
    driver: str | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorFacts:
    """What the bus, the kernel and the environment say about GPUs beside NVML."""

    pci: tuple[PciGpu, ...] = ()
    has_kfd: bool = False  # /dev/kfd, through which ROCm works
    can_open_kfd: bool = False
    cuda_visible: str | None = None
    hip_visible: str | None = None
    has_slurm: bool = False
    slurm_job: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderFacts:
    """A folder that fills up. `filesystem` is the kernel's name for its kind."""

    purpose: str
    path: str
    free_bytes: int
    filesystem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """Memory, processors, limits and disks, as this process may use them."""

    memory_bytes: int | None = None
    available_bytes: int | None = None
    swap_bytes: int | None = None
    swap_used_bytes: int | None = None
    shm_bytes: int | None = None
    cpus: int | None = None
    usable_cpus: float | None = None  # after affinity and cgroup quota
    cgroup_memory_bytes: int | None = None
    cgroup_used_bytes: int | None = None
    open_files: int | None = None  # soft limit; None: unlimited
    open_files_hard: int | None = None
    memlock_bytes: int | None = None  # None: unlimited
    has_infiniband: bool = False
    numa_nodes: int | None = None
    numa_balancing: bool | None = None
    folders: tuple[FolderFacts, ...] = ()
    clock: float | None = None  # seconds since 1970
    not_before: float | None = None  # the clock cannot be earlier than this
    compiler: str | None = None  # a C compiler
    container: str | None = None
    hypervisor: str | None = None
    has_docker: bool = False
    has_nvidia_toolkit: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PortFacts:
    """The port a server would listen on, and who listens there already."""

    port: int
    is_free: bool
    pid: int | None = None
    program: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFacts:
    """A Hugging Face token: where it comes from and in what state it is, never its text."""

    source: str  # a variable's name or a file
    is_readable: bool = True
    is_well_formed: bool = True
    is_private: bool = True  # a file that only its owner may read


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenServer:
    """An engine's server that listens on every interface."""

    pid: int
    program: str
    port: int
    has_key: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAccess:
    """What the hub answered about one model: an HTTP status, or why there is none."""

    model: str
    status: int | None = None
    reason: str | None = None
    is_cached: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessFacts:
    """Network and permission to download."""

    port: PortFacts | None = None
    token: TokenFacts | None = None
    ignored_token: str | None = None  # a variable that looks like a token's, but is not read
    proxies: tuple[str, ...] = ()  # names of variables only: values may hold a password
    skips_proxy_for_localhost: bool = True
    offline: tuple[str, ...] = ()
    open_servers: tuple[OpenServer, ...] = ()
    network: str | None = None  # of this machine, for the firewall rule
    model: ModelAccess | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """An engine's process whose server has gone."""

    pid: int
    name: str
    gpu_bytes: int | None = None
    ports: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftoverFile:
    """A file that an interrupted run left."""

    path: str
    kind: str  # download or lock
    bytes: int
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFolder:
    """A cache of compiled kernels; `is_whole` is False when counting stopped early."""

    path: str
    bytes: int
    is_whole: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftoverFacts:
    """What earlier runs left on this machine."""

    orphans: tuple[Orphan, ...] = ()
    files: tuple[LeftoverFile, ...] = ()
    caches: tuple[CacheFolder, ...] = ()
    cleared: tuple[str, ...] = ()  # what killed servers had left, and this look has removed


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorFacts:
    """Everything; `name` is a person's name for the machine."""

    name: str | None = None
    machine: MachineFacts | None = None
    vllm_release: Release | None = None  # None: the one that Stoker knows
    environment: EnvironmentFacts | None = None
    platform: PlatformFacts | None = None
    gpu: GpuReading | None = None
    accelerators: AcceleratorFacts | None = None
    host: HostFacts | None = None
    access: AccessFacts | None = None
    leftovers: LeftoverFacts | None = None
