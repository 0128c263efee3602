"""What node 0 makes of what other nodes say, and how it ends them; the nodes are played here."""

from __future__ import annotations

import contextlib
import pickle
import shutil
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.errors import ModelError
from engine.machine.ports import free_port
from engine.version import __version__
from engine.worker import multiproc_executor, node_link
from engine.worker.multiproc_executor import MultiprocExecutor
from engine.worker.node_link import NodeLink
from engine.worker.node_messages import End, FromRank, Join, RankEnded, Welcome
from engine.worker.rank_steps import RankError
from engine.worker.remote_nodes import RemoteNode, end_nodes, settings_of
from engine.worker.standstill import STILL_LOOKS
from engine.worker.worker_messages import Failure, RankLost
from tests.core.conftest import engine_config
from tests.tiny_model import write_tiny_llama
from tests.waiting import wait_for

_SECRET = b"0123456789abcdef"


def remote_node(number: int) -> tuple[RemoteNode, NodeLink]:
    """As node 0 has it, and the other end of its connection."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        there = socket.create_connection(door.getsockname())
        here, _ = door.accept()
    keys = b"to node 0".ljust(32), b"from node 0".ljust(32)
    link = NodeLink(here, keys[1], keys[0])
    return RemoteNode(number, link, link.peer_host, range(number, number + 1)), NodeLink(
        there, *keys
    )


def test_all_nodes_are_told_of_the_end_before_one_is_waited_for() -> None:
    (first, its), (second, others) = remote_node(1), remote_node(2)
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(end_nodes, [first, second], "why", timeout_s=600)
        try:
            assert others.receive_one(60) == End("why")
            assert its.receive_one(60) == End("why")
        finally:
            its.close()
            others.close()
        ended.result(60)


def test_a_silent_node_is_not_waited_for() -> None:
    node, its = remote_node(1)
    node.unanswered = STILL_LOOKS
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(end_nodes, [node], "why", timeout_s=600)
        try:
            ended.result(60)
            assert its.receive_one(60) == End("why")  # once it goes on
        finally:
            its.close()


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    """Two stages of two ranks on two nodes."""
    (tmp_path / "node.key").write_bytes(_SECRET)
    return engine_config(
        write_tiny_llama(tmp_path / "model", num_hidden_layers=2),
        tensor_parallel_size=2,
        pipeline_parallel_size=2,
        nnodes=2,
        master_port=free_port(),
        node_key_file=str(tmp_path / "node.key"),
        kernels="reference",
    )


def idle_command(_name: str, _control: int) -> Sequence[str]:
    """A rank that says nothing."""
    return [shutil.which("sleep") or "sleep", "600"]


@contextmanager
def executor_with_node(config: EngineConfig) -> Iterator[tuple[MultiprocExecutor, NodeLink]]:
    """An executor whose ranks say nothing, and the other node's end of the connection to it."""
    address, found = (config.parallel.master_addr, config.parallel.master_port), []

    def is_there() -> bool:
        with contextlib.suppress(OSError):
            found.append(socket.create_connection(address, 60))
        return bool(found)

    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(MultiprocExecutor, config, idle_command)
        wait_for(is_there)
        link = NodeLink.connected(found[0], _SECRET)
        link.send(Join(1, __version__, settings_of(config)))
        executor = started.result(60)
        try:
            assert isinstance(link.receive_one(60), Welcome)
            yield executor, link
        finally:
            link.close()
            executor.shutdown()


def check_until_it_raises(executor: MultiprocExecutor) -> None:
    def check() -> bool:
        executor.check_health()
        return False

    wait_for(check)


def answer(rank: int, what: object) -> FromRank:
    return FromRank(rank, pickle.dumps(what))


def test_a_rank_that_failed_is_the_reason_and_not_one_that_lost_it(config: EngineConfig) -> None:
    with executor_with_node(config) as (executor, link):
        link.send(answer(2, RankLost()))
        link.send(answer(3, Failure("ModelError", "no such tensor", is_expected=True)))
        link.send(RankEnded(3, 1, ["its last line"]))
        with pytest.raises(ModelError, match="no such tensor"):
            check_until_it_raises(executor)
        assert link.receive_one(60) == End(
            "Worker_PP1_TP1 (node 1, 127.0.0.1) failed with ModelError: no such tensor (see its "
            "traceback above)."
        )


def test_a_node_that_takes_nothing_is_named(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_link, "_SEND_S", 0.1)
    with (
        executor_with_node(config) as (executor, _),
        pytest.raises(RankError, match=r"Node 1 \(127.0.0.1\) is gone: it takes no message"),
    ):
        executor.call_workers("load_model", bytes(64 << 20))


def test_nobody_is_blamed_for_a_network_that_lets_nothing_through(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiproc_executor, "EXIT_S", 0.1)
    with executor_with_node(config) as (executor, link):
        link.send(answer(2, RankLost()))
        with pytest.raises(RankError, match="the network between the nodes is cut"):
            check_until_it_raises(executor)
