"""EngineCore over several worker processes: the tokens of one process, and what happens at ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from engine.core.engine_core import EngineCore
from engine.errors import ModelError
from engine.worker.multiproc_executor import MultiprocExecutor, RankError
from tests.core.conftest import engine_config
from tests.core.core_runs import request, run, run_all
from tests.tiny_model import write_tiny_llama
from tests.waiting import is_running, wait_for

_REQUESTS = [
    request("short", [5, 6, 7], 12),
    request("long", list(range(90)), 30),
    request("like long", list(range(80)), 30),
    request("other", list(range(200, 140, -1)), 30),
]
_PRESSED = {"max_num_batched_tokens": 32, "max_model_len": 128, "num_gpu_blocks_override": 13}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("ranks"), num_hidden_layers=3)


@contextmanager
def engine(folder: Path, **flags: object) -> Iterator[EngineCore]:
    core = EngineCore(engine_config(folder, kernels="reference", **flags))
    try:
        yield core
    finally:
        core.shutdown()


def children() -> dict[str, psutil.Process]:
    """The worker processes of this one, by their names."""
    found = psutil.Process().children()
    words = [process.cmdline() for process in found]
    return {
        line[line.index("--name") + 1]: process
        for line, process in zip(words, found, strict=True)
        if "worker" in line
    }


def test_four_ranks_give_the_tokens_of_one_process(folder: Path) -> None:
    """Chunked prompts, a shared prefix, and too few blocks for all: someone is preempted."""
    with engine(folder, **_PRESSED) as core:
        wanted = run(core, _REQUESTS)
    assert wanted.num_preemptions
    with engine(folder, tensor_parallel_size=2, pipeline_parallel_size=2, **_PRESSED) as core:
        assert list(children()) == [
            "Worker_PP0_TP0", "Worker_PP0_TP1", "Worker_PP1_TP0", "Worker_PP1_TP1"
        ]  # fmt: skip
        assert all(one.name() == name for name, one in children().items())
        found = run(core, _REQUESTS)
        assert found.num_preemptions == wanted.num_preemptions
        assert found.num_cached_tokens == wanted.num_cached_tokens
        workers = list(children().values())
    assert found.texts == wanted.texts
    assert not any(map(is_running, workers))


def test_a_killed_rank_is_named_and_the_others_end(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with engine(folder, tensor_parallel_size=2) as core:
        assert run_all(core, _REQUESTS[:1])
        executor = core.executor
        assert isinstance(executor, MultiprocExecutor)
        workers = children()
        os.kill(workers["Worker_TP1"].pid, signal.SIGKILL)
        # Nothing runs: the busy loop is woken by a descriptor.
        wait_for(lambda: bool(executor._ready(0.0)))
        with pytest.raises(RankError, match=r"Worker proc Worker_TP1 died .*exit code: -9"):
            executor.check_health()
        wait_for(lambda: not any(map(is_running, workers.values())))
    assert "last lines of Worker_TP1: (Worker_TP1 pid=" in caplog.text


def test_a_stopped_rank_is_named(folder: Path) -> None:
    with engine(folder, tensor_parallel_size=2) as core:
        workers = children()
        workers["Worker_TP1"].suspend()
        with pytest.raises(RankError, match=r"Worker_TP1 \(pid \d+\) has not moved .*stopped by"):
            run_all(core, _REQUESTS[:1])
        assert not any(map(is_running, workers.values()))


def test_a_rank_that_cannot_load_says_what_one_process_would(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "model")
    (folder / "model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(ModelError, match="is damaged"):
        EngineCore(engine_config(folder, kernels="reference", tensor_parallel_size=2))
    assert not children()
