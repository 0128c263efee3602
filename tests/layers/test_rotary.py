"""Frequencies of each scaling against transformers' own."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from engine.layers.rotary import RotaryTable, inverse_frequencies
from engine.model_config import ModelConfig, RopeScaling
from tests.models.tiny_llama import LINEAR_ROPE, LLAMA3_ROPE
from tests.tiny_model import write_tiny_llama

HEAD_DIM = 64


@pytest.fixture
def config(tmp_path: Path) -> ModelConfig:
    return dataclasses.replace(
        ModelConfig.from_folder(write_tiny_llama(tmp_path / "m"), "m"), head_dim=HEAD_DIM
    )


@pytest.mark.parametrize("rope", [None, LINEAR_ROPE, LLAMA3_ROPE])
def test_frequencies_equal_transformers(rope: dict[str, Any] | None, config: ModelConfig) -> None:
    scaling = None
    if rope is not None:
        fields = {name: value for name, value in rope.items() if name != "rope_theta"}
        scaling = RopeScaling(**fields)
    ours = inverse_frequencies(dataclasses.replace(config, rope_scaling=scaling))
    settings: dict[str, Any] = {"head_dim": HEAD_DIM, "max_position_embeddings": 256}
    parameters = rope or {"rope_type": "default", "rope_theta": 10000.0}
    theirs = LlamaRotaryEmbedding(LlamaConfig(**settings, rope_parameters=parameters))
    torch.testing.assert_close(ours, theirs.inv_freq)


def test_the_table_turns_by_position_times_frequency(config: ModelConfig) -> None:
    table = RotaryTable(config, 20, torch.float32, torch.device("cpu"))
    cos, sin = table.lookup(torch.tensor([7, 0]))
    angles = 7 * inverse_frequencies(config)
    torch.testing.assert_close(cos[0, 0], torch.cat((angles, angles)).cos())
    torch.testing.assert_close(sin[0, 0], torch.cat((-angles.sin(), angles.sin())))
    assert torch.equal(cos[1], torch.ones(1, HEAD_DIM))
