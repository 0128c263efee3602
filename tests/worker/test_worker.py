"""What a worker checks before it loads anything."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from engine.config import DeviceConfig, ParallelConfig
from engine.errors import ConfigError
from engine.rank_layout import RankPlace
from engine.worker.rank_links import RankLinks
from engine.worker.worker import Worker
from tests.worker.driver import engine_config


def test_more_ranks_than_gpus_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    config = dataclasses.replace(
        engine_config(folder),
        device=DeviceConfig(device="cuda", dtype="float32", kernels="reference"),
        parallel=ParallelConfig(executor_backend="mp", tensor_parallel_size=2),
    )
    worker = Worker(config, RankLinks(RankPlace(1, 2), local_rank=1))
    with pytest.raises(ConfigError, match=r"need 2 GPUs on this machine, one for each rank, and 1"):
        worker.init_device()
