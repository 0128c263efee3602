from __future__ import annotations

from pathlib import Path

import pytest

from engine.args import EngineArgs
from engine.config import EngineConfig
from engine.env import HostDevice
from engine.model_config import ModelConfig
from engine.speculative_config import NO_DRAFTS
from tests.tiny_model import write_tiny_llama
from tests.worker.kernel_choices import choice

__all__ = ["choice", "engine_config"]


@pytest.fixture(scope="session")
def wider_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose sizes all kernel sets can run."""
    return write_tiny_llama(tmp_path_factory.mktemp("wider"), hidden_size=128)


def engine_config(folder: Path, **flags: object) -> EngineConfig:
    """Config of the tiny model in float32 on the CPU, with a small cache.

    Without drafts: how many are tried follows from how long steps take, and tests count steps and
    preemptions.
    """
    usual = {
        "dtype": "float32",
        "kv_cache_memory_bytes": 1 << 20,
        "speculative_config": NO_DRAFTS,
    }
    args = EngineArgs(**{**usual, **flags})  # type: ignore[arg-type]
    model = ModelConfig.from_folder(folder, "tiny")
    return args.create_engine_config(model, HostDevice("cpu", "cpu", None))
