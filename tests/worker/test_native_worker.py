"""The worker on the native kernel set: start-up, threads, and the real default model."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from engine.errors import ConfigError
from engine.kernels.kernel_set import ModelStep
from engine.worker.uniproc_executor import UniProcExecutor
from engine.worker.worker import Worker
from tests.default_model import default_model_folder
from tests.kernels.paged_sequences import PagedSequences
from tests.worker.driver import Driver, engine_config

pytestmark = pytest.mark.usefixtures("native_threads")


def start(folder: Path, dtype: str = "bfloat16", backend: str = "auto") -> UniProcExecutor:
    executor = UniProcExecutor(engine_config(folder, dtype=dtype, kernels=backend))
    executor.load_model()
    assert executor.determine_available_memory() > 0
    executor.initialize_kv_cache(400)
    return executor


def test_the_log_names_the_set_and_torch_keeps_one_thread(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("engine").addHandler(caplog.handler)
    caplog.set_level("INFO", "engine")
    start(folder)
    logging.getLogger("engine").removeHandler(caplog.handler)
    text = caplog.text
    assert "Using NATIVE attention backend out of potential backends: ['NATIVE', 'REFERENCE']." in (
        text
    )
    assert torch.get_num_threads() == 1


def test_native_that_cannot_run_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"native cannot be used.*dtype is float32"):
        start(folder, dtype="float32", backend="native")


def loaded_model(executor: UniProcExecutor) -> ModelStep:
    worker = executor._worker
    assert isinstance(worker, Worker)
    return worker._model


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_default_model_agrees_with_float32_on_real_text(repo_root: Path) -> None:
    folder = default_model_folder()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = "".join((repo_root / name).read_text() for name in ("docs/architecture.md", "LICENSE"))
    ids = tokenizer.encode(text).ids
    prompts = [ids[start : start + 400] for start in range(0, 1600, 400)]
    steps = [[400] * len(prompts)]
    native = loaded_model(start(folder, backend="native"))
    ours = torch.cat(PagedSequences(native, prompts, 16).run(steps))
    reference = loaded_model(start(folder, dtype="float32", backend="reference"))
    exact = torch.cat(PagedSequences(reference, prompts, 16).run(steps))
    assert (ours.argmax(-1) == exact.argmax(-1)).float().mean() >= 0.96
    assert (ours - exact).norm() / exact.norm() < 0.02


@pytest.mark.slow
def test_the_default_model_knows_the_capital_of_france() -> None:
    folder = default_model_folder()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    question = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    driver = Driver(start(folder, backend="native"), 16)
    driver.add("q", tokenizer.encode(question).ids)
    (answer,) = driver.generate(["q"], 8)
    assert tokenizer.decode(answer).startswith("The capital of France is Paris.")
