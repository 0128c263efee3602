"""The real EngineCore process over its real sockets: start, serve, abort, die, stop."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from engine.config import ParallelConfig
from engine.core.client import AsyncMPClient
from engine.core.core_process import CoreProcess, own_gpus
from engine.core.handshake import CoreAddresses
from engine.errors import CorruptModelError, EngineDeadError, EngineError, MemoryBudgetError
from engine.messages import EngineCoreRequest, FinishReason
from engine.sampling_params import SamplingParams
from tests.core.conftest import engine_config
from tests.places import ROOT


def request(request_id: str, max_tokens: int) -> EngineCoreRequest:
    return EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=[1, 2, 3],
        sampling_params=SamplingParams(temperature=0.0, max_tokens=max_tokens),
        arrival_time=time.time(),
    )


@pytest.fixture
async def client(tiny_folder: Path) -> AsyncIterator[AsyncMPClient]:
    client = AsyncMPClient(engine_config(tiny_folder))
    (ready,) = await client.start()
    assert ready.block_size == 16
    assert ready.num_gpu_blocks == (1 << 20) // 4096
    yield client
    await client.shutdown(1.0)


async def collect(client: AsyncMPClient, request_id: str) -> tuple[list[int], FinishReason]:
    tokens: list[int] = []
    while True:
        for output in (await client.get_output()).outputs:
            if output.request_id == request_id:
                tokens += output.new_token_ids
                if output.finish_reason is not None:
                    return tokens, output.finish_reason


async def drain(client: AsyncMPClient) -> None:
    while True:
        await client.get_output()


async def test_a_request_comes_back_token_by_token(client: AsyncMPClient) -> None:
    await client.add_request(request("a", 9))
    tokens, reason = await collect(client, "a")
    assert len(tokens) == 9
    assert reason == FinishReason.LENGTH
    await client.add_request(request("b", 9))
    assert (await collect(client, "b"))[0] == tokens


async def test_abort_is_reported_even_when_nothing_else_runs(client: AsyncMPClient) -> None:
    await client.add_request(request("a", 400))
    await client.get_output()
    await client.abort_requests(["a"])
    while True:
        stats = (await asyncio.wait_for(client.get_output(), 60)).scheduler_stats
        if stats is not None and stats.num_running_reqs == 0:
            break
    assert stats.kv_cache_usage == 0.0


async def test_methods_are_called_by_name(client: AsyncMPClient) -> None:
    reader = asyncio.create_task(client.get_output())
    assert await client.call_utility("reset_prefix_cache") is True
    assert await client.call_utility("debug_requests") is None
    with pytest.raises(EngineError, match="no such method"):
        await client.call_utility("format_disk")
    reader.cancel()


async def test_a_killed_core_fails_everyone_at_once(client: AsyncMPClient) -> None:
    await client.add_request(request("a", 400))
    await client.get_output()
    assert client.pid is not None
    os.kill(client.pid, signal.SIGKILL)
    with pytest.raises(EngineDeadError, match="exit code -9"):
        await asyncio.wait_for(drain(client), 60)
    with pytest.raises(EngineDeadError):
        await client.add_request(request("b", 1))
    await client.abort_requests(["a"])  # nothing to do, and no error


async def test_shutdown_leaves_no_process_and_no_socket(tiny_folder: Path) -> None:
    client = AsyncMPClient(engine_config(tiny_folder))
    await client.start()
    folder = client._addresses.folder
    pid = client.pid
    assert pid is not None
    assert folder.is_dir()
    assert folder.stat().st_mode & 0o077 == 0
    await client.add_request(request("a", 400))
    await client.shutdown(0.0)
    await client.shutdown(0.0)  # a second call finds nothing to do
    assert not psutil.pid_exists(pid)
    assert not folder.exists()


async def test_sigterm_lets_a_request_finish_within_the_timeout(tiny_folder: Path) -> None:
    client = AsyncMPClient(engine_config(tiny_folder, shutdown_timeout=120.0))
    await client.start()
    await client.add_request(request("a", 50))
    await client.get_output()
    assert client.pid is not None
    os.kill(client.pid, signal.SIGTERM)
    tokens, reason = await collect(client, "a")
    assert reason == FinishReason.LENGTH
    with pytest.raises(EngineDeadError, match="exit code 0"):
        await asyncio.wait_for(client.get_output(), 60)
    await client.shutdown(0.0)
    assert len(tokens) >= 48


async def test_a_failed_start_raises_what_went_wrong(tmp_path: Path, tiny_folder: Path) -> None:
    for path in tiny_folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(CorruptModelError, match=r"model\.safetensors"):
        await AsyncMPClient(engine_config(tmp_path)).start()
    with pytest.raises(MemoryBudgetError, match="estimated maximum model length"):
        await AsyncMPClient(engine_config(tiny_folder, kv_cache_memory_bytes=8 * 4096)).start()


def test_the_core_ends_when_its_parent_is_killed(tiny_folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import asyncio, pathlib
            from engine.core.client import AsyncMPClient
            from tests.core.conftest import engine_config

            async def main():
                client = AsyncMPClient(engine_config(pathlib.Path({str(tiny_folder)!r})))
                await client.start()
                print(client.pid, flush=True)
                await asyncio.sleep(600)

            asyncio.run(main())
            """
        )
    )
    parent = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert parent.stdout is not None
    pid = next(int(line) for line in parent.stdout if line.strip().isdigit())
    core = psutil.Process(pid)
    parent.kill()
    parent.wait()
    psutil.wait_procs([core], timeout=60)
    parent.stdout.close()
    assert not core.is_running() or core.status() == psutil.STATUS_ZOMBIE


def test_a_core_that_comes_after_its_parents_end_ends_too(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    script = ROOT / "engine" / "__main__.py"
    words = ["core", "--handshake", f"ipc://{tmp_path}/nobody", "--parent", str(gone.pid)]
    core = subprocess.run([sys.executable, str(script), *words], timeout=120, check=False)
    assert core.returncode == 1


class Unconnected(CoreProcess):
    """A process that never connects, and ends when the test says so."""

    def __init__(self, addresses: CoreAddresses) -> None:
        self.addresses = addresses
        self.has_ended = asyncio.Event()

    @property
    def pid(self) -> int:
        return 1

    @property
    def returncode(self) -> int | None:
        return -9 if self.has_ended.is_set() else None

    async def wait(self) -> int:
        await self.has_ended.wait()
        return -9


async def test_what_is_sent_to_an_engine_that_ends_meanwhile_fails(tiny_folder: Path) -> None:
    """Its socket knows of the end before its parent does: nobody takes the message any more."""
    process = Unconnected(CoreAddresses.create())
    client = AsyncMPClient(engine_config(tiny_folder), process=process)
    start = asyncio.create_task(client.start())
    await asyncio.sleep(0)
    sends = [
        asyncio.create_task(client.add_request(request("a", 1))),
        asyncio.create_task(client.call_utility("reset_prefix_cache")),
    ]
    abort = asyncio.create_task(client.abort_requests(["a"]))
    done, _ = await asyncio.wait([*sends, abort], timeout=0.05)
    assert not done, "the message has nobody to go to yet"
    process.has_ended.set()
    for send in sends:
        with pytest.raises(EngineDeadError, match="exit code -9"):
            await send
    await abort
    with pytest.raises(EngineDeadError):
        await start


@pytest.mark.parametrize(
    ("environ", "own"),
    [
        ({}, {"CUDA_VISIBLE_DEVICES": "2,3"}),
        ({"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, {"CUDA_VISIBLE_DEVICES": "6,7"}),
        ({"CUDA_VISIBLE_DEVICES": "GPU-a, GPU-b, GPU-c"}, {"CUDA_VISIBLE_DEVICES": "GPU-c"}),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": ""}),
        ({"CUDA_VISIBLE_DEVICES": ""}, {"CUDA_VISIBLE_DEVICES": ""}),
        (
            {"HIP_VISIBLE_DEVICES": "7,6,5,4"},
            {"CUDA_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "5,4"},
        ),
        (
            {"CUDA_VISIBLE_DEVICES": "0,1,2,3", "HIP_VISIBLE_DEVICES": "0,1"},
            {"CUDA_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": ""},
        ),
    ],
)
def test_a_replica_sees_its_own_gpus_and_none_that_is_hidden(
    environ: dict[str, str], own: dict[str, str]
) -> None:
    parallel = ParallelConfig(
        tensor_parallel_size=2, data_parallel_size=2, data_parallel_rank=1, executor_backend="mp"
    )
    assert own_gpus(parallel, environ) == own
    assert own_gpus(ParallelConfig(), environ) == {}
