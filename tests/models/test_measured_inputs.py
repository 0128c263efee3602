"""int4 weighs its errors by the inputs that a decoder's linears were measured to read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.models.measured_inputs import measure_inputs
from engine.models.registry import load_weights
from engine.worker.kv_cache import cache_spec
from tests.benchmarks.bench_kernel_accuracy import loaded_step
from tests.kernels.native_models import (
    GEMMA3,
    group_windows,
    native_model,
    random_prompts,
    relative_error,
    save_rounded,
)
from tests.kernels.paged_sequences import PagedSequences
from tests.models.tiny_models import raise_channels
from tests.worker.driver import engine_config

LOUD = (3, 70)  # channels of the residual stream whose norm weights are many times the others'


@pytest.mark.parametrize("changes", [{}, {**GEMMA3, "sliding_window": 24}], ids=["llama", "gemma3"])
def test_what_is_measured_tells_the_loud_channels(changes: dict[str, Any], tmp_path: Path) -> None:
    save_rounded(tmp_path, hidden_size=96, **changes)
    raise_channels(tmp_path, LOUD, 40.0)
    config = engine_config(tmp_path, dtype="bfloat16")
    weights = load_weights(config.model, torch.bfloat16, torch.device("cpu"), lambda *state: None)
    layers = measure_inputs(config.model, weights, cache_spec(config))
    assert len(layers) == len(weights.layers) == config.model.num_hidden_layers
    for inputs, layer in zip(layers, weights.layers, strict=True):
        for name, linear in (
            ("qkv", layer.qkv),
            ("output", layer.output),
            ("gate_up", layer.gate_up),
            ("down", layer.down),
        ):
            found = inputs[f"{name}_inputs"]
            assert found.shape == linear.weight.shape[1:]
            assert found.dtype == torch.bfloat16
            assert float(found.float().mean()) == pytest.approx(1, rel=0.01)
            assert (found > 0).all()
        for name in ("qkv_inputs", "gate_up_inputs"):
            assert sorted(inputs[name].topk(2).indices.tolist()) == list(LOUD)


def test_a_model_with_loud_channels_loses_less(tmp_path: Path) -> None:
    save_rounded(tmp_path, hidden_size=96)
    raise_channels(tmp_path, LOUD, 40.0)
    prompts, windows = random_prompts(100), group_windows(tmp_path)
    exact, plain, weighed = (
        PagedSequences(model, prompts, 16, windows=windows).run([[100]])[0]
        for model in (
            native_model(tmp_path),
            native_model(tmp_path, quantization="int4"),
            loaded_step(tmp_path, "bfloat16", "native", "int4"),
        )
    )
    assert relative_error(weighed, exact) < 0.8 * relative_error(plain, exact)
