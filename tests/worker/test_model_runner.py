"""ModelRunner through UniProcExecutor on a tiny model, with every choice of kernels.

Differences, batches, seeds, preemption.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.core.executor import create_executor
from engine.errors import MemoryBudgetError
from engine.machine.sizes import GIB
from engine.sampling_params import SamplingParams
from engine.worker.model_runner import dummy_batch
from engine.worker.uniproc_executor import UniProcExecutor
from tests.worker.driver import Driver, engine_config
from tests.worker.kernel_choices import FLOAT32, KernelChoice, exact_only

PROMPTS = [list(range(5, 5 + n)) for n in (1, 16, 17, 40, 63)]


@pytest.fixture
def driver(folder: Path, choice: KernelChoice) -> Driver:
    return new_driver(folder, choice)


def new_driver(folder: Path, choice: KernelChoice, block_size: int = 16) -> Driver:
    config = engine_config(folder, block_size=block_size, max_model_len=256, **choice.flags)
    executor = create_executor(config)
    assert isinstance(executor, UniProcExecutor)
    executor.load_model()
    assert executor.determine_available_memory() > 0
    executor.initialize_kv_cache(3000 // block_size)
    return Driver(executor, block_size)


def test_together_equals_alone_whatever_the_chunks_and_blocks(
    folder: Path, choice: KernelChoice
) -> None:
    names = [str(n) for n in range(len(PROMPTS))]
    alone = []
    first = new_driver(folder, choice)
    for name, prompt in zip(names, PROMPTS, strict=True):
        first.add(name, prompt)
        alone += first.generate([name], 20)
    assert len({tuple(tokens) for tokens in alone}) > 1
    usual, second, third = choice.block_sizes
    for block_size, chunk in ((usual, 1000), (usual, 7), (second, 16), (third, 5)):
        driver = new_driver(folder, choice, block_size)
        for name, prompt in zip(names, PROMPTS, strict=True):
            driver.add(name, prompt)
        together = driver.generate(names, 20, chunk)
        for found, wanted, prompt in zip(together, alone, PROMPTS, strict=True):
            choice.assert_same(found, wanted, prompt, first.probe)


def test_an_unfinished_prompt_gets_no_token(driver: Driver) -> None:
    driver.add("long", PROMPTS[3])
    driver.add("short", PROMPTS[1])
    output = driver.step({"short": 16, "long": 30})
    assert output.req_ids == ["short", "long"]
    assert [len(tokens) for tokens in output.sampled_token_ids] == [1, 0]
    output = driver.step({"long": 10, "short": 1})
    assert output.req_ids == ["long", "short"]
    assert [len(tokens) for tokens in output.sampled_token_ids] == [1, 1]


def test_a_preempted_request_goes_on_as_if_nothing_had_happened(
    driver: Driver, choice: KernelChoice
) -> None:
    driver.add("plain", PROMPTS[3])
    (expected,) = driver.generate(["plain"], 12)
    driver.add("victim", PROMPTS[3])
    driver.add("other", PROMPTS[2])
    for count in (30, 10, 1, 1, 1):
        driver.step({"other": driver.remaining("other"), "victim": count})
    driver.preempt("victim")
    for _ in range(2):
        driver.step({"other": 1})
    found, _ = driver.generate(["victim", "other"], 12)
    choice.assert_same(found, expected, PROMPTS[3], driver.probe)


@exact_only
def test_a_seed_gives_the_same_tokens_in_any_company(driver: Driver) -> None:
    params = SamplingParams(temperature=1.0, seed=-5)
    driver.add("alone", PROMPTS[2], params)
    (expected,) = driver.generate(["alone"], 24)
    driver.add("other", PROMPTS[4], SamplingParams(temperature=1.5, top_p=0.9))
    driver.add("again", PROMPTS[2], params)
    driver.add("different", PROMPTS[2], SamplingParams(temperature=1.0, seed=6))
    results = driver.generate(["other", "again", "different"], 24)
    assert results[1] == expected
    assert results[2] != expected


@exact_only
def test_company_that_needs_the_logits_changes_no_greedy_token(driver: Driver) -> None:
    driver.add("alone", PROMPTS[3])
    (expected,) = driver.generate(["alone"], 24)
    driver.add("greedy", PROMPTS[3])
    driver.add("random", PROMPTS[3], SamplingParams(temperature=1.0, seed=1))
    driver.add("watched", PROMPTS[3], SamplingParams(temperature=0.0, logprobs=1))
    greedy, random, watched = driver.generate(["greedy", "random", "watched"], 24)
    assert greedy == watched == expected != random


def test_requests_without_a_seed_differ(driver: Driver) -> None:
    for name in ("a", "b"):
        driver.add(name, PROMPTS[2], SamplingParams(temperature=1.0))
    first, second = driver.generate(["a", "b"], 24)
    assert first != second


def test_min_tokens_holds_back_eos_and_stop_ids(driver: Driver) -> None:
    driver.add("free", PROMPTS[2])
    (free,) = driver.generate(["free"], 6)
    params = SamplingParams(temperature=0.0, min_tokens=3, stop_token_ids=(free[1],))
    driver.add("held", PROMPTS[2], params, eos=(free[0],))
    (held,) = driver.generate(["held"], 6)
    assert not set(held[:3]) & {free[0], free[1]}


def test_rows_are_reused_after_requests_finish(driver: Driver) -> None:
    for number in range(100):  # more than max_num_seqs
        driver.add(str(number), PROMPTS[0])
        driver.generate([str(number)], 1)


def test_an_empty_step_only_drops_finished_requests(driver: Driver) -> None:
    driver.add("a", PROMPTS[1])
    driver.generate(["a"], 1)
    output = driver.step({})
    assert (output.req_ids, output.sampled_token_ids) == ([], [])


def test_errors_arrive_through_the_future(folder: Path, choice: KernelChoice) -> None:
    from engine.sched.scheduler_output import CachedRequestData, NewRequestData, SchedulerOutput

    executor = UniProcExecutor(engine_config(folder, max_model_len=256, **choice.flags))
    executor.load_model()
    executor.initialize_kv_cache(2)
    request = NewRequestData("far", [1] * 40, 40, [[1, 2, 3]], 0, SamplingParams(temperature=0.0))
    step = SchedulerOutput([request], CachedRequestData(), {"far": 40}, 40, [])
    with pytest.raises((RuntimeError, IndexError)):  # blocks 2 and 3 do not exist
        executor.execute_model(step).result()
    executor.shutdown()
    executor.shutdown()


def test_a_cache_that_does_not_fit_is_refused(folder: Path, choice: KernelChoice) -> None:
    executor = UniProcExecutor(engine_config(folder, max_model_len=256, **choice.flags))
    executor.load_model()
    blocks = (1 << 50) // executor.get_kv_cache_spec().bytes_per_block
    with pytest.raises(MemoryBudgetError, match="cannot be allocated"):
        executor.initialize_kv_cache(blocks)


def test_startup_lines_have_vllms_shape(
    folder: Path, capfd: pytest.CaptureFixture[str], log_lines: Callable[[], list[str]]
) -> None:
    executor = UniProcExecutor(engine_config(folder, max_model_len=256, **FLOAT32.flags))
    executor.load_model()
    text = "\n".join(log_lines())
    assert "Starting to load model tiny..." in text
    assert "Using REFERENCE attention backend out of potential backends: ['REFERENCE']." in text
    assert "Loading weights took 0." in text
    assert "Model loading took 0.0 GiB memory and 0." in text
    assert "Loading safetensors checkpoint shards: 100% Completed | 1/1" in capfd.readouterr().out


@pytest.fixture
def log_lines(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    caplog.set_level("INFO", "engine")
    caplog.handler.setLevel("INFO")
    logger = logging.getLogger("engine")
    logger.addHandler(caplog.handler)
    yield lambda: [record.getMessage() for record in caplog.records]
    logger.removeHandler(caplog.handler)


def test_threads_follow_the_configuration(folder: Path) -> None:
    before = torch.get_num_threads()
    executor = UniProcExecutor(engine_config(folder, max_model_len=256, num_threads=1))
    try:
        executor.load_model()
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_a_large_cache_costs_no_memory_until_it_is_used(folder: Path, choice: KernelChoice) -> None:
    import psutil

    executor = UniProcExecutor(engine_config(folder, max_model_len=256, **choice.flags))
    executor.load_model()
    before = psutil.Process().memory_info().rss
    executor.initialize_kv_cache(4 * GIB // executor.get_kv_cache_spec().bytes_per_block)
    assert psutil.Process().memory_info().rss - before < GIB // 4


@pytest.mark.parametrize(("tokens", "seqs"), [(1, 4), (10, 3), (2048, 128)])
def test_dummy_batches_share_the_tokens(tokens: int, seqs: int) -> None:
    batch = dummy_batch(tokens, seqs, 16, 1)
    lengths = np.diff(batch.query_start_loc)
    assert lengths.sum() == tokens == len(batch.token_ids)
    assert lengths.max() - lengths.min() <= 1
    assert batch.slot_mapping.max() < 16


@pytest.mark.parametrize("length", [2, 5, 7])
def test_made_up_prompts_are_not_longer_than_the_model(
    folder: Path, choice: KernelChoice, length: int
) -> None:
    executor = UniProcExecutor(engine_config(folder, max_model_len=length, **choice.flags))
    executor.load_model()

    assert executor.determine_available_memory() > 0
