"""`stoker serve` with two stages of two ranks: its processes, and the end of one of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from app.client.debug.documents import read_scheduler
from app.client.debug.ranks import RankReading
from engine.machine.ports import free_port
from engine.machine.processes import role_of
from tests.e2e.running_server import STOKER, planned_processes, started
from tests.tiny_model import write_tiny_llama
from tests.waiting import is_running, wait_for

_LAYOUT = ("--tensor-parallel-size", "2", "--pipeline-parallel-size", "2")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "model", num_hidden_layers=2)


def ranks_of(url: str) -> Sequence[RankReading]:
    """As the dashboard gets them."""
    answer = httpx.get(f"{url}/debug/scheduler", timeout=60).raise_for_status()
    return read_scheduler(answer.json()).ranks


def test_a_rank_that_is_killed_ends_the_server_and_is_named(tmp_path: Path, model: Path) -> None:
    port = free_port()
    words = ("serve", str(model), "--no-tui", "--port", str(port), "--dtype", "float32", *_LAYOUT)
    with started([str(STOKER), *words, "--enable-debug-endpoints"], port, cwd=tmp_path) as server:
        tree = server.tree()
        roles = {role_of(process.cmdline()): process for process in tree}
        assert sorted(roles.keys() - {""}) == sorted(planned_processes(model, _LAYOUT))
        assert roles["Worker_PP1_TP1"].name() == "Worker_PP1_TP1"  # as `ps -o comm` shows it
        body = {"prompt": "abc", "max_tokens": 400, "ignore_eos": True}
        few = {**body, "max_tokens": 8}
        httpx.post(f"{server.url}/v1/completions", json=few, timeout=60).raise_for_status()
        wait_for(lambda: all(rank.own_s for rank in ranks_of(server.url)))
        told = ranks_of(server.url)
        assert {rank.name: rank.pid for rank in told} == {
            name: process.pid for name, process in roles.items() if name.startswith("Worker")
        }
        assert all(rank.is_running for rank in told)
        with httpx.stream(
            "POST", f"{server.url}/v1/completions", json={**body, "stream": True}, timeout=60
        ) as response:
            events = response.iter_lines()
            assert next(events).startswith("data: {")
            roles["Worker_PP1_TP1"].kill()
            left = list(events)
        assert '"code":"engine_dead"' in "".join(left), left[-3:]
        assert server.process.wait(60) != 0
        wait_for(lambda: not any(map(is_running, tree)))
    # In the supervisor's words for what ended it.
    assert "RankError: Worker proc Worker_PP1_TP1 died unexpectedly" in server.text
