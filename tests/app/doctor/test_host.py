"""Host, access and left-overs: checks from facts, and probes on folders laid out like a machine."""

from __future__ import annotations

import dataclasses
import http.server
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.doctor import access, access_probe, host, host_probe, leftovers, leftovers_probe
from app.doctor.facts import (
    AccessFacts,
    CacheFolder,
    DoctorFacts,
    FolderFacts,
    HostFacts,
    LeftoverFacts,
    LeftoverFile,
    ModelAccess,
    TokenFacts,
)
from app.doctor.report import Check, Result
from engine.machine.gpus import Gpu, GpuReading
from engine.machine.ports import Listener, free_port
from engine.machine.processes import engine_kind, is_engine_child

GIB = 1 << 30
GOOD = HostFacts(
    memory_bytes=64 * GIB,
    available_bytes=60 * GIB,
    swap_bytes=0,
    shm_bytes=32 * GIB,
    cpus=8,
    usable_cpus=8.0,
    open_files=65535,
    open_files_hard=None,
    numa_nodes=1,
    clock=2e9,
    not_before=1.9e9,
    compiler="/usr/bin/gcc",
)
ONE = Gpu(name="A", memory_bytes=GIB, memory_used_bytes=0, compute_capability=(9, 0))


def host_checks(num_gpus: int = 0, **changes: object) -> dict[str, Check]:
    facts = dataclasses.replace(GOOD, **changes)  # type: ignore[arg-type]
    found = host.checks(DoctorFacts(host=facts, gpu=GpuReading(gpus=(ONE,) * num_gpus)))
    return {check.id: check for check in found}


def test_a_good_host() -> None:
    assert {check.result for check in host_checks(8).values()} == {Result.OK}


@pytest.mark.parametrize(
    ("identity", "num_gpus", "changes", "command"),
    [
        ("shm", 8, {"shm_bytes": 64 << 20}, "sudo mount -o remount,size=8G /dev/shm"),
        (
            *("shm", 2, {"shm_bytes": 64 << 20, "container": "docker"}),
            "docker run --shm-size 2g IMAGE",
        ),
        ("memory", 0, {"available_bytes": GIB}, "ps -eo pid,rss,comm --sort=-rss | head"),
        (
            "memory",
            0,
            {"cgroup_memory_bytes": 2 * GIB, "cgroup_used_bytes": GIB, "container": "docker"},
            "docker update --memory 16g --memory-swap 16g CONTAINER",
        ),
        (
            *("swap", 0, {"swap_bytes": 4 * GIB, "swap_used_bytes": 3 * GIB}),
            "sudo swapoff -a && sudo swapon -a",
        ),
        (
            "cpus",
            0,
            {"usable_cpus": 1.5, "container": "docker"},
            "docker update --cpus 4 CONTAINER",
        ),
        (
            *("open-files", 0, {"open_files": 1024, "open_files_hard": 4096}),
            "sudo prlimit --pid $$ --nofile=65535:65535",
        ),
        (
            "memlock",
            1,
            {"memlock_bytes": 65536, "has_infiniband": True},
            "sudo prlimit --pid $$ --memlock=unlimited",
        ),
        (
            *("numa", 1, {"numa_nodes": 2, "numa_balancing": True}),
            "sudo sysctl kernel.numa_balancing=0",
        ),
        ("compiler", 0, {"compiler": None}, "sudo apt-get install -y gcc g++"),
        ("clock", 0, {"clock": 1e9}, "sudo timedatectl set-ntp true"),
        (
            *("docker", 1, {"has_docker": True}),
            "sudo apt-get install -y nvidia-container-toolkit",
        ),
    ],
)
def test_what_is_wrong_with_a_host(
    identity: str, num_gpus: int, changes: dict[str, object], command: str
) -> None:
    check = host_checks(num_gpus, **changes)[identity]

    assert check.result in (Result.WARNING, Result.PROBLEM)
    assert command in (*check.commands, *check.examples)


def test_one_gpu_lives_with_dockers_shared_memory() -> None:
    assert host_checks(1, shm_bytes=64 << 20)["shm"].result is Result.OK


def test_folders() -> None:
    folders = (
        FolderFacts(purpose="Stoker's cache", path="/a", free_bytes=1 << 20),
        FolderFacts(
            purpose="Hugging Face cache", path="/b c", free_bytes=99 * GIB, filesystem="nfs4"
        ),
        FolderFacts(purpose="temporary files", path="/tmp", free_bytes=GIB, filesystem="tmpfs"),
    )
    checks = host_checks(folders=folders)

    assert checks["disk"].result is Result.PROBLEM
    assert checks["hub-disk"].seen == "99.00 GiB free in /b c, on a network file system (nfs4)"
    assert checks["tmp-disk"].result is Result.OK


# -- probes on a machine laid out in a folder ------------------------------------------------------


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("DOT", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_cpu_quota_of_control_groups_version_2(tmp_path: Path) -> None:
    write(
        tmp_path,
        proc__self__cgroup="0::/a/b\n",
        sys__fs__cgroup__a__b__cpuDOTmax="150000 100000\n",
    )

    assert host_probe.cgroup_cpu_quota(tmp_path) == 1.5


def test_no_cpu_quota_of_control_groups_version_1(tmp_path: Path) -> None:
    write(
        tmp_path,
        proc__self__cgroup="4:cpu,cpuacct:/\n",
        sys__fs__cgroup__cpu__cpuDOTcfs_quota_us="-1\n",
        sys__fs__cgroup__cpu__cpuDOTcfs_period_us="100000\n",
    )

    assert host_probe.cgroup_cpu_quota(tmp_path) is None


def test_container_hypervisor_and_file_system(tmp_path: Path) -> None:
    write(
        tmp_path,
        DOTdockerenv="",
        proc__mounts="/dev/vda / ext4 rw 0 0\nserver:/x /mnt/models nfs4 rw 0 0\n",
        sys__class__dmi__id__sys_vendor="QEMU\n",
        sys__class__dmi__id__product_name="Standard PC\n",
    )

    assert host_probe.container_kind({}, tmp_path) == "docker"
    assert host_probe.container_kind({}, tmp_path / "x") is None
    assert host_probe.hypervisor_kind(tmp_path) == "QEMU Standard PC"
    assert host_probe.hypervisor_kind(tmp_path / "x") is None
    assert host_probe.filesystem_of(Path("/mnt/models/hub"), tmp_path) == "nfs4"
    assert host_probe.filesystem_of(Path("/mnt/models2"), tmp_path) == "ext4"


def test_cards_on_the_bus(tmp_path: Path) -> None:
    devices = tmp_path / "sys/bus/pci/devices"
    for address, vendor, kind in (
        *(("01:00.0", "0x10de", "0x030000"), ("01:00.1", "0x10de", "0x040300")),
        ("c1:00.0", "0x1002", "0x038000"),
    ):
        (devices / address).mkdir(parents=True)
        (devices / address / "vendor").write_text(vendor + "\n")
        (devices / address / "class").write_text(kind + "\n")
    (tmp_path / "drivers/nouveau").mkdir(parents=True)
    (devices / "01:00.0" / "driver").symlink_to(tmp_path / "drivers/nouveau")
    (devices / "c1:00.0" / "mem_info_vram_total").write_text(f"{16 * GIB}\n")

    seen = host_probe.read_accelerators({"SLURM_JOB_ID": "5"}, tmp_path)

    assert [(one.address, one.vendor, one.driver) for one in seen.pci] == [
        ("01:00.0", "nvidia", "nouveau"),
        ("c1:00.0", "amd", None),
    ]
    assert seen.pci[1].memory_bytes == 16 * GIB
    assert (seen.has_kfd, seen.slurm_job) == (False, "5")


def test_this_machine_is_read() -> None:
    facts = host_probe.read_host(os.environ)

    assert facts.memory_bytes is not None
    assert facts.available_bytes is not None
    assert 0 < facts.available_bytes <= facts.memory_bytes
    assert len(facts.folders) == 3


# -- access ----------------------------------------------------------------------------------------


def test_the_token_is_looked_for_as_the_hub_does(tmp_path: Path) -> None:
    token = "hf_" + "a1B2c3D4" * 4
    path = tmp_path / "token"
    path.write_text(token + "\n")
    path.chmod(0o644)
    home = {"HF_HOME": str(tmp_path)}

    from_file = access_probe.read_token(home)
    assert from_file == TokenFacts(source=str(path), is_private=False)
    assert access_probe.read_token({**home, "HF_TOKEN": token}) == TokenFacts(source="HF_TOKEN")
    quoted = access_probe.read_token({**home, "HF_TOKEN": f"'{token}'"})
    assert quoted == TokenFacts(source="HF_TOKEN", is_well_formed=False)
    assert access_probe.read_token({"HF_HOME": str(tmp_path / "none")}) is None
    assert access.check_token(from_file, None).commands == (f"chmod 600 {path}",)
    path.chmod(0o600)
    assert access.check_token(access_probe.read_token(home), None).result is Result.OK


def test_a_token_in_a_variable_that_nobody_reads() -> None:
    check = access.check_token(None, "HUGGINGFACE_HUB_TOKEN")

    assert check.result is Result.WARNING
    assert check.commands == ('export HF_TOKEN="$HUGGINGFACE_HUB_TOKEN"',)


class Hub(http.server.BaseHTTPRequestHandler):
    """Answers by the model's name, and redirects `moved` to itself under another path."""

    asked: list[tuple[str, str | None]]

    def do_HEAD(self) -> None:
        self.asked.append((self.path, self.headers.get("Authorization")))
        name = self.path.split("/")[2]
        self.send_response({"free": 200, "moved": 302, "gated": 403}.get(name, 404))
        if name == "moved":
            self.send_header("Location", "/elsewhere/free/x")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def hub() -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    asked: list[tuple[str, str | None]] = []
    handler = type("OneHub", (Hub,), {"asked": asked})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("name", "status", "result"),
    [
        ("free", 200, Result.OK),
        ("moved", 302, Result.OK),
        ("gated", 403, Result.PROBLEM),
        ("none", 404, Result.PROBLEM),
    ],
)
def test_access_to_a_model(
    hub: tuple[str, list[tuple[str, str | None]]],
    tmp_path: Path,
    name: str,
    status: int,
    result: Result,
) -> None:
    address, asked = hub
    environ = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path), "HF_TOKEN": "hf_secretsecret"}
    found = access_probe.read_model_access(f"org/{name}", environ)
    check = access.check_model(found, TokenFacts(source="HF_TOKEN"))

    assert found == ModelAccess(model=f"org/{name}", status=status)
    assert asked == [(f"/org/{name}/resolve/main/config.json", "Bearer hf_secretsecret")]
    assert check is not None
    assert check.result is result


def test_offline_no_model_is_asked_for(tmp_path: Path) -> None:
    environ = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    absent = access_probe.read_model_access("org/name", environ)
    snapshot = tmp_path / "hub/models--org--name/snapshots/abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").touch()
    cached = access_probe.read_model_access("org/name", environ)

    assert (absent.reason, absent.is_cached) == ("offline mode is on", False)
    results = [access.check_model(one, None) for one in (absent, cached)]
    assert [one.result for one in results if one] == [Result.PROBLEM, Result.OK]


@pytest.mark.parametrize(
    ("environ", "skips"),
    [
        ({}, True),
        ({"http_proxy": "http://p"}, False),
        ({"http_proxy": "http://p", "no_proxy": ".corp, localhost"}, True),
        ({"https_proxy": "http://p"}, True),
        ({"http_proxy": "http://p", "NO_PROXY": "*"}, True),
    ],
)
def test_a_proxy_must_leave_localhost_alone(environ: dict[str, str], skips: bool) -> None:
    facts = access_probe.read_access(environ, 8000, None, ())

    assert facts.skips_proxy_for_localhost is skips
    expected = Result.OK if skips else Result.WARNING
    assert access.check_proxies(facts).result is expected


def test_a_busy_port_is_named() -> None:
    with socket.socket() as holder:
        port = free_port()
        holder.bind(("127.0.0.1", port))
        holder.listen()
        busy = access.check_port(access_probe.read_port(port))
    free = access.check_port(access_probe.read_port(port))

    assert busy is not None
    assert free is not None
    assert (busy.result, free.result) == (Result.WARNING, Result.OK)
    assert f"pid {os.getpid()}" in busy.seen
    assert busy.commands == (f"stoker serve --port {port + 1}",)


def test_an_open_server_without_a_key() -> None:
    vllm = ("python", "/v/bin/vllm", "serve", "m", "--api-key", "word")
    listeners = (
        Listener(os.getpid(), "0.0.0.0", 8000, vllm[:4]),
        Listener(os.getpid(), "::", 8001, vllm),
        Listener(os.getpid(), "127.0.0.1", 8002, vllm[:4]),
        Listener(os.getpid(), "0.0.0.0", 22, ("sshd",)),
    )
    facts = access_probe.read_access({}, 8000, None, listeners)
    checks = [c for c in access.checks(DoctorFacts(access=facts)) if c.id == "open-server"]

    assert [check.result for check in checks] == [Result.WARNING, Result.OK]
    assert "vllm serve MODEL --host 127.0.0.1" in checks[0].examples
    assert "word" not in repr(facts)


@pytest.mark.parametrize(
    ("line", "kind", "is_child"),
    [
        ("/v/bin/python /v/bin/vllm serve a/b", "vllm", False),
        ("VLLM::EngineCore_DP0", "vllm", True),
        ("VLLM::APIServer", "vllm", False),
        ("python3 -m vllm.entrypoints.openai.api_server", "vllm", False),
        ("python /s/engine/__main__.py serve --model a", "stoker", False),
        ("python /s/engine/__main__.py core --x", "stoker", True),
        ("python /s/engine/__main__.py worker --name Worker_TP0", "stoker", True),
        ("python /s/engine/__main__.py grammars", "stoker", True),
        ("python /s/engine/__main__.py api-server --name ApiServer_0", "stoker", True),
        ("python /s/engine/__main__.py coordinator --name DPCoordinator", "stoker", True),
        ("VLLM::ApiServer_0", "vllm", True),
        ("VLLM::DPCoordinator", "vllm", True),
        ("python /s/engine/__main__.py serve grammars", "stoker", False),
        ("/opt/llama-server -m a.gguf", "llama-server", False),
        ("python -m sglang.launch_server", "sglang", False),
        ("vim /s/vllm/serve.py", None, False),
    ],
)
def test_processes_of_engines(line: str, kind: str | None, is_child: bool) -> None:
    words = line.split()

    assert engine_kind(words) == kind
    assert is_engine_child(words) is is_child


# -- left-overs ------------------------------------------------------------------------------------


def test_an_engine_process_without_a_server_is_found(tmp_path: Path) -> None:
    script = tmp_path / "engine" / "__main__.py"
    script.parent.mkdir()
    script.write_text("import time; print('up', flush=True); time.sleep(600)")
    # A parent that ends at once, so that the child is adopted, as after a kill -9 of a server.
    parent = (
        "import subprocess, sys; child = subprocess.Popen([sys.executable, sys.argv[1], 'core'],"
        " stdout=subprocess.PIPE, stderr=subprocess.DEVNULL); child.stdout.readline();"
        " print(child.pid)"
    )
    done = subprocess.run(
        [sys.executable, "-c", parent, str(script)], capture_output=True, text=True, check=True
    )
    pid = int(done.stdout)
    try:
        found = leftovers_probe.read_leftovers({"HF_HOME": str(tmp_path)}, GpuReading())
        ours = [one for one in found.orphans if one.pid == pid]
        check = leftovers.check_orphans(ours)
    finally:
        os.kill(pid, 9)

    assert [one.name for one in ours] == ["Stoker's EngineCore"]
    assert check.result is Result.PROBLEM
    assert check.commands == (f"kill {pid}",)


def test_broken_downloads_locks_and_caches(tmp_path: Path) -> None:
    blobs = tmp_path / "hub/models--a--b/blobs"
    blobs.mkdir(parents=True)
    (blobs / "abc.incomplete").write_bytes(b"x" * 2048)
    lock = tmp_path / "torch_extensions/py312_cu130/my_op/lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    long_ago = time.time() - 5 * 86400
    for path in (blobs / "abc.incomplete", lock):
        os.utime(path, (long_ago, long_ago))
    compiled = tmp_path / "vllm/torch_compile_cache/x"
    compiled.mkdir(parents=True)
    (compiled / "kernel.so").write_bytes(b"y" * 4096)
    environ = {
        "HF_HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path),
        "TRITON_CACHE_DIR": str(tmp_path / "no"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "no"),
    }
    facts = leftovers_probe.read_leftovers(environ, GpuReading())
    checks = {check.id: check for check in leftovers.checks(DoctorFacts(leftovers=facts))}

    assert checks["downloads"].seen == "1 files, 2.0 KiB, the oldest 5 days old"
    assert checks["locks"].commands == (f"rm {lock}",)
    assert checks["caches"].seen == f"{compiled.parent} 4.0 KiB"


def test_a_running_download_is_no_leftover() -> None:
    fresh = LeftoverFile(path="/x", kind="download", bytes=1, age_s=30)
    facts = LeftoverFacts(files=(fresh,))

    assert all(c.result is Result.OK for c in leftovers.checks(DoctorFacts(leftovers=facts)))


def test_counting_a_large_cache_stops(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / str(number)).write_bytes(b"z" * 10)

    assert leftovers_probe.measure(tmp_path, most_files=5) == CacheFolder(
        path=str(tmp_path), bytes=50
    )
    assert leftovers_probe.measure(tmp_path, most_files=3) == CacheFolder(
        path=str(tmp_path), bytes=30, is_whole=False
    )
    large = CacheFolder(path="/c", bytes=30 * GIB, is_whole=False)
    check = leftovers.check_caches((large,))
    assert (check.seen, check.commands) == ("/c more than 30.00 GiB", ("rm -r /c",))


def test_access_without_facts_is_skipped() -> None:
    assert [check.result for check in access.checks(DoctorFacts())] == [Result.SKIPPED]
    assert access.checks(DoctorFacts(access=AccessFacts()))[0].id == "token"
