"""An engine whose ranks are on two nodes: the tokens of one process, and what happens at ends."""

from __future__ import annotations

import select
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from engine.core.engine_core import EngineCore
from engine.env import device_starts
from engine.errors import ConfigError
from engine.machine.children import engine_command
from engine.machine.device_starts import RUNNING
from engine.machine.ports import free_port
from engine.worker.multiproc_executor import MultiprocExecutor
from engine.worker.node_messages import NodeStopped
from engine.worker.rank_steps import RankError
from engine.worker.remote_nodes import gather_nodes
from tests.core.conftest import engine_config
from tests.core.core_runs import engine, request, run_all
from tests.e2e.running_server import Server, started
from tests.tiny_model import write_tiny_llama
from tests.waiting import is_running, wait_for

_REQUESTS = [
    request("short", [5, 6, 7], 8),
    request("long", list(range(90)), 12),
    request("other", list(range(200, 140, -1)), 12),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("nodes"), num_hidden_layers=2)


@pytest.fixture
def layout(tmp_path: Path) -> dict[str, object]:
    """Two ranks on two nodes that share a secret."""
    key = tmp_path / "node.key"
    key.write_text("0123456789abcdef")
    return {
        "nnodes": 2,
        "master_port": free_port(),
        "node_key_file": str(key),
        "tensor_parallel_size": 2,
        "dtype": "float32",
        "kernels": "reference",
    }


@contextmanager
def node(folder: Path, flags: dict[str, object]) -> Iterator[Server]:
    """The process of node 1, and what it and its ranks say."""
    words = [
        f"--{name.replace('_', '-')}={value}"
        for name, value in {"kv_cache_memory_bytes": 1 << 20, **flags}.items()
    ]
    command = engine_command("serve", str(folder), "--node-rank=1", *words)
    with started([*command], 0, wait=False) as found:  # which answers no HTTP
        yield found


def children() -> list[psutil.Process]:
    """The ranks of node 0."""
    return [one for one in psutil.Process().children() if "--control" in one.cmdline()]


def test_a_layer_on_two_nodes_and_the_end_of_a_rank(
    folder: Path,
    layout: dict[str, object],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STOKER_DEVICES_DIR", str(tmp_path / "devices"))
    with engine(folder) as one:
        wanted = run_all(one, _REQUESTS)
    with node(folder, layout) as other, engine(folder, **layout) as core:
        assert run_all(core, _REQUESTS) == wanted
        executor = core.executor
        assert isinstance(executor, MultiprocExecutor)
        here, there = executor.rank_snapshots()
        assert [here.name, there.name] == ["Worker_TP0", "Worker_TP1"]
        assert (here.node, there.node) == ("127.0.0.1", "127.0.0.1")
        assert here.num_steps == there.num_steps
        assert there.held_bytes
        (held,) = (one for one in device_starts("cpu").others() if one.pid == other.process.pid)
        assert held.state == RUNNING
        assert held.held_bytes > there.weight_bytes + there.kv_cache_bytes
        tree = other.tree()
        victim = next(one for one in tree if one.pid == there.pid)
        assert victim.name() == "Worker_TP1"
        victim.kill()
        # Nothing runs: the busy loop is woken by a descriptor.
        wait_for(lambda: bool(select.select(executor.wake_descriptors, [], [], 0)[0]))
        with pytest.raises(
            RankError, match=r"Worker_TP1 \(node 1, 127.0.0.1\) died .*exit code: -9"
        ):
            executor.check_health()
        assert other.process.wait(60) == 1
        wait_for(lambda: not any(map(is_running, tree)))
        assert not children()
    assert "last lines of Worker_TP1 (node 1, 127.0.0.1): " in caplog.text
    assert "RankError: Worker proc Worker_TP1 (node 1, 127.0.0.1) died" in other.text
    assert "non-default args: {" in other.text  # of which its advice is made


def test_stages_on_two_nodes_and_a_node_that_stands_still(
    folder: Path, layout: dict[str, object]
) -> None:
    stages = {**layout, "tensor_parallel_size": 1, "pipeline_parallel_size": 2}
    with engine(folder) as one:
        wanted = run_all(one, _REQUESTS)
    with node(folder, stages) as other, engine(folder, **stages) as core:
        assert run_all(core, _REQUESTS) == wanted
        tree = other.tree()
        tree[0].suspend()
        with pytest.raises(RankError, match=r"Node 1 \(127.0.0.1\) has not answered for"):
            run_all(core, [request("late", [1, 2, 3], 4)])
        tree[0].resume()
        assert other.process.wait(60) == 1
        wait_for(lambda: not any(map(is_running, tree)))
        assert not children()


def test_a_node_that_does_not_come_is_named(folder: Path, layout: dict[str, object]) -> None:
    layout["distributed_timeout_seconds"] = 1.0
    with pytest.raises(ConfigError, match=r"node 1 of 2 has not come within 1 s.*--node-rank 1 "):
        EngineCore(engine_config(folder, **layout))
    assert not children()


def test_node_0_that_does_not_come_is_named(folder: Path, layout: dict[str, object]) -> None:
    layout["distributed_timeout_seconds"] = 1.0
    with node(folder, layout) as other:
        assert other.process.wait(60) == 1
    assert f"no node 0 at 127.0.0.1:{layout['master_port']} after 1 s" in other.text


def test_a_node_that_still_looks_for_its_model_ends_at_once(
    layout: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hub:  # that never answers
        hub.settimeout(60)
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{hub.getsockname()[1]}")
        monkeypatch.setenv("HF_HOME", str(tmp_path))
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        with node(Path("nobody/nothing"), layout) as other:
            connection, _ = hub.accept()
            with connection:
                other.process.terminate()
                assert other.process.wait(60) == -signal.SIGTERM


def test_a_node_with_other_flags_is_refused_and_one_that_is_ended_says_so(
    folder: Path, layout: dict[str, object]
) -> None:
    config = engine_config(folder, **layout, distributed_timeout_seconds=120)
    with ThreadPoolExecutor(1) as pool:
        gathered = pool.submit(gather_nodes, config)
        with node(folder, {**layout, "block_size": 32}) as other:
            assert other.process.wait(60) == 2
        assert "cache.block_size is 32 there and 16 here" in other.text
        with node(folder, layout) as right:
            (found,) = gathered.result(60)
            right.process.send_signal(signal.SIGINT)
            assert right.process.wait(60) == 0
            assert found.link.receive_one(60) == NodeStopped("it was ended there (SIGINT)")
            found.link.close()
