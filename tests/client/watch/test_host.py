"""Processes of a real child that listens; GPUs of a scripted NVML, for no GPU is here."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from app.client.watch.host import HostSampler, is_local
from engine.machine.processes import role_of

SERVER = """
import socket, subprocess, sys
sleep = [sys.executable, "-c", "print(flush=True); import time; time.sleep(600)"]
child = subprocess.Popen(sleep, stdout=subprocess.PIPE)
child.stdout.readline()  # a process that has just been made has no memory to speak of
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], child.pid, flush=True)
sys.stdin.read()
child.kill()
"""


class Refused(Exception):
    pass


class ScriptedNvml:
    """Answers as the library does; `missing` questions are refused, as old drivers do."""

    NVMLError = Refused
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, pid: int, missing: tuple[str, ...] = (), is_absent: bool = False) -> None:
        self._pid, self._missing, self._is_absent = pid, missing, is_absent
        self.num_starts = 0

    def nvmlInit(self) -> None:
        self.num_starts += 1
        if self._is_absent:
            raise Refused("Driver Not Loaded")

    def __getattr__(self, question: str) -> Any:
        answers = {
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetName": b"NVIDIA L4",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=3 << 30, total=24 << 30),
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=42),
            "nvmlDeviceGetPowerUsage": 71_500,
            "nvmlDeviceGetEnforcedPowerLimit": 72_000,
            "nvmlDeviceGetTemperature": 66,
            "nvmlDeviceGetCurrentClocksThrottleReasons": 0x04 | 0x20,
            "nvmlDeviceGetComputeRunningProcesses": [
                SimpleNamespace(pid=self._pid, usedGpuMemory=2 << 30),
                SimpleNamespace(pid=1, usedGpuMemory=1 << 29),
            ],
        }

        def answer(*_args: object) -> Any:
            if question in self._missing:
                raise Refused("Not Supported")
            return answers[question]

        return answer


@pytest.fixture
def server() -> Iterator[tuple[int, int, int]]:
    """Port, pid and child's pid of a listening process."""
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        port, child = map(int, process.stdout.readline().split())
        yield port, process.pid, child
        process.communicate("")


def test_process_tree_of_the_listener(server: tuple[int, int, int]) -> None:
    port, pid, child = server
    sampler = HostSampler(f"http://127.0.0.1:{port}", lambda: ScriptedNvml(pid))
    first = sampler.read()
    assert {process.pid for process in first.processes} == {pid, child}
    assert first.process_reason == ""
    assert all(process.rss_bytes > 1 << 20 for process in first.processes)
    # A share of time needs two looks.
    assert {process.cpu_share for process in first.processes} == {None}
    assert first.cpu_share is None
    time.sleep(0.05)
    second = sampler.read()
    assert all(process.cpu_share is not None for process in second.processes)
    assert second.cpu_share is not None
    (gpu,) = second.gpus
    assert (gpu.name, gpu.utilisation, gpu.temperature_c) == ("NVIDIA L4", 0.42, 66)
    assert (gpu.memory_used_bytes, gpu.memory_total_bytes) == (3 << 30, 24 << 30)
    assert (gpu.power_w, gpu.power_limit_w) == (71.5, 72.0)
    assert gpu.throttle == "software thermal slowdown, power cap"
    assert gpu.server_bytes == 2 << 30  # the other process is not the server's


def test_what_a_driver_does_not_tell_is_none() -> None:
    missing = (
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
        "nvmlDeviceGetComputeRunningProcesses",
    )
    nvml = ScriptedNvml(0, missing)
    sampler = HostSampler("http://127.0.0.1:9", lambda: nvml)
    (gpu,) = sampler.read().gpus
    assert (gpu.power_w, gpu.throttle, gpu.server_bytes, gpu.processes) == (None, None, None, ())
    assert gpu.utilisation == 0.42
    sampler.read()
    assert nvml.num_starts == 1


def test_no_gpu_and_no_library() -> None:
    absent = HostSampler("http://127.0.0.1:9", lambda: ScriptedNvml(0, is_absent=True)).read()
    assert (absent.gpus, absent.gpu_reason) == (
        (),
        "no NVIDIA GPU is usable here (Driver Not Loaded)",
    )

    found = HostSampler("http://127.0.0.1:9", lambda: None).read()
    assert "nvidia-ml-py is not installed" in found.gpu_reason


def test_server_elsewhere_and_server_that_is_gone(server: tuple[int, int, int]) -> None:
    remote = HostSampler("http://gpu-host:8000", lambda: ScriptedNvml(0)).read()
    assert remote.process_reason == remote.gpu_reason == "the server runs on another machine"
    assert (remote.processes, remote.gpus, remote.memory_total_bytes) == ((), (), None)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    gone = HostSampler(f"http://127.0.0.1:{port}", lambda: ScriptedNvml(0)).read()
    assert "no process of this user listens" in gone.process_reason


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:1", True),
        ("http://[::1]:1", True),
        ("http://localhost:1", True),
        ("http://10.0.0.1:1", False),
        ("http://host:1", False),
    ],
)
def test_local_addresses(url: str, expected: bool) -> None:
    assert is_local(url) == expected


@pytest.mark.parametrize(
    ("words", "role"),
    [
        (["python", "/x/engine/__main__.py", "serve", "m"], "APIServer"),
        (["python", "-I", "/x/engine/__main__.py", "core"], "EngineCore"),
        (["python", "/x/engine/__main__.py", "worker", "--name", "Worker_TP1"], "Worker_TP1"),
        (["python", "/x/engine/__main__.py", "api-server", "--name", "ApiServer_1"], "ApiServer_1"),
        (["python", "/x/engine/__main__.py", "coordinator", "--name", "DPCoo"], "DPCoo"),
        (["VLLM::EngineCore"], "EngineCore"),
        (["VLLM::ApiServer_0"], "ApiServer_0"),
        (["VLLM::Worker_TP1 extra"], "Worker_TP1"),
        (["sglang::scheduler_TP0"], "scheduler_TP0"),
        (["python", "/venv/bin/vllm", "serve", "m"], "APIServer"),
        (["python", "-m", "sglang.launch_server"], "APIServer"),
        (["llama-server", "-m", "x.gguf"], ""),
        (["python", "/x/engine/__main__.py", "serve", "m", "--node-rank=1"], "Node_1"),
        (["python", "/x/engine/__main__.py", "serve", "m", "--node-rank", "2"], "Node_2"),
        (["python", "/x/engine/__main__.py", "serve", "m", "--node-rank=0"], "APIServer"),
        ([], ""),
    ],
)
def test_role_of_a_process(words: list[str], role: str) -> None:
    assert role_of(words) == role
