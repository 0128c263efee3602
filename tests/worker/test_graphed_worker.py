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
from engine.worker.offload import storages_of
from engine.worker.uniproc_executor import UniProcExecutor
from engine.worker.worker import Worker
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


def started(
    folder: Path, kernels: str, sizes: tuple[int, ...] = (2, 8), **compilation: Any
) -> UniProcExecutor:
    config = dataclasses.replace(
        engine_config(folder, kernels=kernels, num_threads=1),
        compilation=CompilationConfig(cudagraph_capture_sizes=sizes, **compilation),
    )
    executor = UniProcExecutor(config)
    executor.load_model()
    assert executor.determine_available_memory() > 0
    executor.initialize_kv_cache(60)
    return executor


def generated_by(executor: UniProcExecutor) -> list[list[int]]:
    """Greedy and seeded tokens of two requests that run side by side."""
    driver = Driver(executor, 16)
    driver.add("a", PROMPTS["a"])
    driver.add("b", PROMPTS["b"], SEEDED)
    return driver.generate(["a", "b"], 4)


def generated(folder: Path, kernels: str, **compilation: Any) -> list[list[int]]:
    return generated_by(started(folder, kernels, **compilation))


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


def held_bytes(worker: Worker) -> int:
    return sum(map(len, storages_of(worker._model, worker._device)))


def test_sleep_takes_weights_and_graphs_and_waking_records_them_anew(
    folder: Path, device: RecordingDevice, logged: pytest.LogCaptureFixture
) -> None:
    executor = started(folder, "triton", sizes=(2,))
    wanted = generated_by(executor)
    worker = executor._worker
    assert worker is not None
    for level in (1, 2):
        assert held_bytes(worker) >= worker._model.weight_bytes
        executor.call_workers("sleep", level)
        assert held_bytes(worker) == 0 if level == 1 else worker._is_dropped
        assert worker._kv_cache == []

        num_recorded = len(device.graph_sizes)
        executor.call_workers("wake_up", ["weights"])
        assert len(device.graph_sizes) == num_recorded  # there is nothing to record them over yet
        executor.call_workers("wake_up", ["kv_cache"])
        assert len(device.graph_sizes) > num_recorded
        replays = device.replays
        assert generated_by(executor) == wanted
        assert device.replays > replays
    assert "Sleep mode freed" in logged.text
