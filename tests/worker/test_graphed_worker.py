"""A worker whose device records graphs: from the flags to the tokens."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import tests.interpreted_triton  # noqa: F401  (before any kernel)
from engine.config import CompilationConfig, DeviceConfig
from engine.kernels import selection
from engine.kernels.triton.kernels import TritonKernels
from engine.kernels.triton.targets import INTERPRETED
from engine.sampling_params import SamplingParams
from engine.worker import worker
from engine.worker.uniproc_executor import UniProcExecutor
from tests.fakes.graph_device import RecordingDevice
from tests.worker.driver import Driver, engine_config

PROMPTS = {"a": [5, 6, 7, 8, 9], "b": [40, 41]}
SEEDED = SamplingParams(temperature=0.9, top_k=30, top_p=0.9, seed=4)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> RecordingDevice:
    """Takes the place of a GPU: this machine's CPU, which can record."""
    found = RecordingDevice()

    def kernels(asked: DeviceConfig) -> TritonKernels:
        return TritonKernels(INTERPRETED, found.launch)

    monkeypatch.setattr(selection, "_triton_kernels", kernels)
    monkeypatch.setattr(worker, "_graph_device", lambda asked: found)
    return found


def generated(folder: Path, kernels: str, **compilation: Any) -> list[list[int]]:
    """Greedy and seeded tokens of two requests that run side by side."""
    config = dataclasses.replace(
        engine_config(folder, kernels=kernels, num_threads=1),
        compilation=CompilationConfig(cudagraph_capture_sizes=(2, 8), **compilation),
    )
    executor = UniProcExecutor(config)
    executor.load_model()
    assert executor.determine_available_memory() > 0
    executor.initialize_kv_cache(60)
    driver = Driver(executor, 16)
    driver.add("a", PROMPTS["a"])
    driver.add("b", PROMPTS["b"], SEEDED)
    return driver.generate(["a", "b"], 4)


def test_tokens_from_graphs_are_those_of_plain_torch(
    folder: Path, device: RecordingDevice, logged: pytest.LogCaptureFixture
) -> None:
    assert generated(folder, "triton") == generated(folder, "reference")
    # The prompts are seven tokens: three pieces around two layers' attention. Then three decodes.
    assert device.replays == 3 + 3
    assert "Graph capturing finished in" in logged.text


def test_eager_records_nothing_and_says_so(
    folder: Path, device: RecordingDevice, logged: pytest.LogCaptureFixture
) -> None:
    assert generated(folder, "triton", enforce_eager=True) == generated(folder, "reference")
    assert (device.replays, device.graph_sizes) == (0, [])
    assert "Enforce eager set, disabling CUDAGraphs" in logged.text
