"""The worker with `--quantization`: what it logs, GGUF, what is refused, the real model."""

from __future__ import annotations

import argparse
import dataclasses
import logging
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from engine.args import EngineArgs
from engine.config import EngineConfig
from engine.env import HostDevice
from engine.errors import ConfigError
from engine.kernels.kernel_set import ModelStep
from engine.model_config import ModelConfig
from engine.models.gguf_convert import convert_gguf
from engine.worker.uniproc_executor import UniProcExecutor
from engine.worker.worker import Worker
from tests.default_model import default_model_folder
from tests.kernels.paged_sequences import PagedSequences
from tests.models.gguf_file_maker import byte_tokens, write_gguf
from tests.models.tiny_models import save_tiny_llama
from tests.tiny_model import write_tiny_llama
from tests.worker.driver import engine_config

HOST = HostDevice("cpu", "cpu", None)


pytestmark = pytest.mark.usefixtures("native_threads")


def start(
    folder: Path, quantization: str, dtype: str = "bfloat16", backend: str = "native"
) -> UniProcExecutor:
    executor = UniProcExecutor(
        engine_config(folder, dtype=dtype, kernels=backend, quantization=quantization)
    )
    executor.load_model()
    assert executor.determine_available_memory() > 0
    executor.initialize_kv_cache(400)
    return executor


def loaded_model(executor: UniProcExecutor) -> ModelStep:
    worker = executor._worker
    assert isinstance(worker, Worker)
    return worker._model


def test_the_log_names_the_formats(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("engine")
    logger.addHandler(caplog.handler)
    caplog.set_level("INFO", "engine")
    start(write_tiny_llama(tmp_path / "tiny", hidden_size=128), "int4")
    logger.removeHandler(caplog.handler)
    assert "Packing weights (layers in int4, head in int8) took" in caplog.text


def test_the_reference_set_says_that_it_saves_nothing(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("engine")
    logger.addHandler(caplog.handler)
    start(folder, "int8", backend="reference")
    logger.removeHandler(caplog.handler)
    assert "it saves neither memory nor time" in caplog.text


def test_a_gguf_file_is_quantized_like_any_other(tmp_path: Path) -> None:
    oracle = save_tiny_llama(
        tmp_path / "plain", vocab_size=len(byte_tokens()), hidden_size=128, tie_word_embeddings=True
    )
    source = write_gguf(tmp_path / "tiny.gguf", oracle)
    convert_gguf(source, tmp_path / "converted", lambda *state: None)
    prompts = [list(range(5, 65))]
    plain, converted = (
        PagedSequences(loaded_model(start(tmp_path / name, "int8")), prompts, 16).run([[60]])[0]
        for name in ("plain", "converted")
    )
    assert torch.equal(plain, converted)


def config_for(folder: Path, *words: str, implementation: str = "stoker") -> EngineConfig:
    parser = argparse.ArgumentParser()
    EngineArgs.add_cli_args(parser)
    model = dataclasses.replace(
        ModelConfig.from_folder(folder, "tiny"), implementation=implementation
    )
    return EngineArgs.from_cli(parser.parse_args(words)).create_engine_config(model, HOST)


def test_the_flag(folder: Path) -> None:
    assert config_for(folder).device.quantization == "none"
    assert config_for(folder, "-q", "int4").device.quantization == "int4"
    assert config_for(folder, "--quantization", "int8").device.quantization == "int8"
    on_gpu = config_for(folder, "-q", "fp8_per_block", "--device", "cuda", "--dtype", "bfloat16")
    assert on_gpu.device.quantization == "fp8_per_block"


def test_what_cannot_be_quantized_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="int4 is not there on the device cuda; use int8 or fp8"):
        config_for(folder, "-q", "int4", "--device", "cuda")
    with pytest.raises(ConfigError, match="fp8 is not there on the device cpu; use int8 or int4"):
        config_for(folder, "-q", "fp8")
    with pytest.raises(ConfigError, match="cuda with --kernels reference; use int8 or int4"):
        config_for(folder, "-q", "fp8", "--device", "cuda", "--kernels", "reference")
    with pytest.raises(ConfigError, match="--quantization int4 is not there for LlamaForCausalLM"):
        config_for(folder, "-q", "int4", implementation="transformers")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_default_model_agrees_with_its_twin_on_real_text(repo_root: Path) -> None:
    folder = default_model_folder()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer.encode((repo_root / "docs" / "architecture.md").read_text()).ids[:300]
    steps = [[100]] * 3
    ours, theirs, plain = (
        PagedSequences(loaded_model(executor), [ids], 16).run(steps)[0]
        for executor in (
            start(folder, "int8"),
            start(folder, "int8", "float32", "reference"),
            start(folder, "none"),
        )
    )
    assert (ours - theirs).norm() / theirs.norm() < 0.06
    assert (ours.argmax(-1) == theirs.argmax(-1)).float().mean() >= 0.9
    assert (ours.argmax(-1) == plain.argmax(-1)).float().mean() >= 0.9
    losses = [
        float(torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:])))
        for logits in (ours, plain)
    ]
    assert losses[0] - losses[1] < 0.04
