"""EngineCore over several worker processes: the tokens of one process, and what happens at ends."""

from __future__ import annotations

import dataclasses
import os
import select
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

from engine.config import EngineConfig
from engine.core.engine_core import EngineCore
from engine.errors import EngineError, ModelError
from engine.messages import EngineCoreRequest
from engine.pooling_params import POOLING_TYPES, PoolingParams
from engine.sampling_params import SamplingParams, StructuredOutputsParams
from engine.sched.scheduler_output import ModelRunnerOutput, SchedulerOutput
from engine.worker.multiproc_executor import MultiprocExecutor
from engine.worker.rank_steps import RankError
from tests.core.conftest import engine_config
from tests.core.core_runs import Answer, answers_of, engine, probe, request, run, run_all
from tests.fakes import straying_worker
from tests.kernels.native_models import native_library
from tests.tiny_model import write_tiny_llama
from tests.waiting import is_running, wait_for
from tests.worker.kernel_choices import FLOAT32, NATIVE, KernelChoice

_REQUESTS = [
    request("short", [5, 6, 7], 12),
    request("long", list(range(90)), 30),
    request("like long", list(range(80)), 30),
    request("other", list(range(200, 140, -1)), 30),
]
_PRESSED = {"max_num_batched_tokens": 32, "max_model_len": 128, "num_gpu_blocks_override": 10}


_SAMPLED = EngineCoreRequest(
    "sampled",
    list(range(50)),
    SamplingParams(temperature=0.8, seed=7, max_tokens=8, logprobs=3, prompt_logprobs=2),
    arrival_time=0.0,
)
_DIGITS = EngineCoreRequest(
    "digits",
    [1, 2, 3],
    SamplingParams(
        temperature=0.0,
        max_tokens=8,
        structured_outputs=StructuredOutputsParams(regex="[0-9]{6}"),
    ),
    arrival_time=0.0,
)
_POOLED = [
    EngineCoreRequest(
        f"pooled {kind}",
        list(range(80)),
        SamplingParams(),
        arrival_time=0.0,
        pooling=PoolingParams(pooling_type=kind),
    )
    for kind in POOLING_TYPES
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("ranks"), num_hidden_layers=3)


@contextmanager
def straying_engine(folder: Path, kind: str, **flags: object) -> Iterator[EngineCore]:
    """Of two tensor ranks in each stage, the second of which goes astray."""

    def command(name: str, control: int) -> list[str]:
        words = ["--name", name, "--control", str(control)]
        return [sys.executable, straying_worker.__file__, kind, *words]

    config = engine_config(folder, kernels="reference", tensor_parallel_size=2, **flags)
    core = EngineCore(config, lambda config: MultiprocExecutor(config, command))
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
        if "--name" in line
    }


def test_four_ranks_give_the_tokens_of_one_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunked prompts, a shared prefix, and too few blocks for all: someone is preempted."""
    with engine(folder, **_PRESSED) as core:
        wanted = run(core, _REQUESTS)
    assert wanted.num_preemptions
    with engine(folder, tensor_parallel_size=2, pipeline_parallel_size=2, **_PRESSED) as core:
        assert list(children()) == [
            "Worker_PP0_TP0", "Worker_PP0_TP1", "Worker_PP1_TP0", "Worker_PP1_TP1"
        ]  # fmt: skip
        assert all(one.name() == name for name, one in children().items())
        depths: list[int] = []
        execute = core.executor.execute_model

        def counted(step: SchedulerOutput) -> Future[ModelRunnerOutput]:
            depths.append(len(core._in_flight))
            return execute(step)

        monkeypatch.setattr(core.executor, "execute_model", counted)
        found = run(core, _REQUESTS)
        assert max(depths) == 1  # a step is under way when the next one starts: no stage idles
        assert found.num_preemptions
        assert found.num_cached_tokens
        workers = list(children().values())
    assert found.texts == wanted.texts
    assert not any(map(is_running, workers))


@pytest.mark.parametrize(("tensor", "stages"), [(2, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("choice", [FLOAT32, NATIVE], ids=str)
def test_ranks_give_what_one_process_gives(
    tmp_path: Path, choice: KernelChoice, tensor: int, stages: int
) -> None:
    """Greedy, sampled with log probabilities, after a grammar, and pooled, side by side.

    Stages change no bit. Sums over ranks come in another order, which bf16 shows.
    """
    if choice is NATIVE:
        native_library()
    folder = write_tiny_llama(tmp_path / "model", hidden_size=128)
    flags = {"dtype": choice.dtype, "kernels": choice.kernels, "max_num_batched_tokens": 64}
    layout = {"tensor_parallel_size": tensor, "pipeline_parallel_size": stages}
    asked = [*_REQUESTS, _SAMPLED, _DIGITS, *_POOLED]
    rounds = choice is NATIVE and tensor > 1
    with engine(folder, **flags, num_threads=1) as core:
        wanted = answers_of(core, asked)
        with engine(folder, **flags, **layout) as ranks:
            found = answers_of(ranks, asked)
        tie = dataclasses.replace(choice, tie=0.1 if rounds else 0.0)
        for item in _REQUESTS:
            ours, theirs = found[item.request_id].tokens, wanted[item.request_id].tokens
            tie.assert_same(ours, theirs, item.prompt_token_ids, probe(core))
    if not rounds:
        for name in ("sampled", "digits"):
            assert found[name].tokens == wanted[name].tokens
    precision = 0.05 if rounds else 1e-4
    for logprobs in (Answer.first_logprobs, Answer.all_prompt_logprobs):
        pairs = [logprobs(answers["sampled"]) for answers in (found, wanted)]
        assert pairs[0] == pytest.approx(pairs[1], abs=precision)
    first_token = ord("!")
    assert "".join(chr(first_token + token) for token in found["digits"].tokens[:6]).isdigit()
    for item in _POOLED:
        vectors = [
            np.frombuffer(answers[item.request_id].vector, "<f4") for answers in (found, wanted)
        ]
        assert float(vectors[0] @ vectors[1]) > 1 - precision


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
        wait_for(lambda: bool(select.select(executor.wake_descriptors, [], [], 0)[0]))
        with pytest.raises(RankError, match=r"Worker proc Worker_TP1 died .*exit code: -9"):
            executor.check_health()
        wait_for(lambda: not any(map(is_running, workers.values())))
    assert "last lines of Worker_TP1: " in caplog.text


def test_a_stopped_rank_is_named(folder: Path) -> None:
    with engine(folder, tensor_parallel_size=2) as core:
        workers = children()
        workers["Worker_TP1"].suspend()
        with pytest.raises(RankError, match=r"Worker_TP1 \(pid \d+\) has not moved .*stopped by"):
            run_all(core, _REQUESTS[:1])
        assert not any(map(is_running, workers.values()))


def test_a_rank_that_is_stopped_while_it_loads_is_named(folder: Path) -> None:
    """The others are there, and wait for it."""

    def with_one_stopped(config: EngineConfig) -> MultiprocExecutor:
        executor = MultiprocExecutor(config)
        children()["Worker_TP1"].suspend()
        return executor

    with pytest.raises(
        RankError, match=r"proc Worker_TP1 \(pid \d+\) has not moved .*init_device.*stopped by"
    ):
        EngineCore(
            engine_config(folder, kernels="reference", tensor_parallel_size=2), with_one_stopped
        )
    assert not children()


@pytest.mark.parametrize("stages", [1, 2])
def test_a_rank_that_computes_other_tokens_is_named(folder: Path, stages: int) -> None:
    """Its part of every sum is wrong from then on: no token of that step comes out."""
    with straying_engine(folder, "tokens", pipeline_parallel_size=stages) as core:
        core.add_request(_REQUESTS[0])
        while not (outputs := core.step().outputs):  # the prompt, which all were told alike
            pass
        assert len(outputs[0].new_token_ids) == 1
        first = "Worker_TP" if stages == 1 else "Worker_PP0_TP"
        wanted = rf"proc {first}1 disagrees with {first}0.* in step 2 it computed other"
        with pytest.raises(RankError, match=wanted):
            run_all(core, [])
    assert not children()


def test_a_rank_with_other_blocks_is_named(folder: Path) -> None:
    wanted = r"proc Worker_TP1 disagrees .* KV cache of 9 blocks where 10 were asked"
    with (
        pytest.raises(RankError, match=wanted),
        straying_engine(folder, "blocks", **_PRESSED),
    ):
        pass
    assert not children()


def test_ranks_tell_their_memory_and_times(folder: Path) -> None:
    with engine(folder, tensor_parallel_size=2, pipeline_parallel_size=2) as core:
        assert [rank.step_s for rank in core.executor.rank_snapshots()] == [None] * 4
        run_all(core, _REQUESTS[:1])
        told = core.executor.rank_snapshots
        # Of the last stage one rank answers; the other may still be ending its step.
        wait_for(lambda: len({rank.num_steps for rank in told()[2:]}) == 1)
        found = told()
        processes = children()
    assert [rank.name for rank in found] == list(processes)
    assert [rank.pid for rank in found] == [process.pid for process in processes.values()]
    assert [rank.state for rank in found] == ["running"] * 4
    for rank in found:
        assert rank.step_s is not None
        assert rank.waited_s is not None
        assert 0 < rank.waited_s < rank.step_s  # each has had to wait for another
        assert rank.held_bytes is not None
        assert rank.held_bytes > rank.weight_bytes > 0
        assert rank.kv_cache_bytes > 0


def test_a_rank_that_cannot_load_says_what_one_process_would(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "model")
    (folder / "model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(ModelError, match="is damaged"):
        EngineCore(engine_config(folder, kernels="reference", tensor_parallel_size=2))
    assert not children()


def test_tensor_ranks_run_tritons_kernels(folder: Path) -> None:
    """Under the interpreter, with gloo between the processes."""
    requests = [request("short", [5, 6, 7], 3), request("other", list(range(20, 40)), 2)]
    with engine(folder) as one:
        expected = run_all(one, requests)
    with engine(folder, kernels="triton", tensor_parallel_size=2) as two:
        assert run_all(two, requests) == expected


def test_ranks_sleep_together_and_give_the_same_tokens_when_they_wake(tmp_path: Path) -> None:
    native_library()
    folder = write_tiny_llama(tmp_path / "model", hidden_size=128)
    with engine(folder, dtype="bfloat16", kernels="native", tensor_parallel_size=2) as core:
        wanted = run_all(core, _REQUESTS)
        for level in (1, 2):
            core.prepare_sleep("abort")
            core.fall_asleep(level)
            core.wake_up()
            assert run_all(core, _REQUESTS) == wanted
        assert len(children()) == 2


def test_a_rank_that_cannot_wake_is_named_and_the_others_end(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "model")
    with engine(folder, tensor_parallel_size=2) as core:
        core.prepare_sleep("abort")
        core.fall_asleep(2)
        (folder / "model.safetensors").unlink()
        with pytest.raises(EngineError, match=r"^Worker_TP\d cannot wake up: .* no weights"):
            core.wake_up()
        assert not children()
