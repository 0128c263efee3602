"""Frequencies of each scaling against transformers' own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from engine.layers.rotary import RotaryTable, inverse_frequencies
from engine.model_config import rope_scaling
from tests.models.tiny_models import LINEAR_ROPE, LLAMA3_ROPE, YARN_ROPE

HEAD_DIM = 64


@pytest.mark.parametrize(
    "rope",
    [
        None,
        LINEAR_ROPE,
        LLAMA3_ROPE,
        YARN_ROPE,
        {**YARN_ROPE, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
        {**YARN_ROPE, "attention_factor": 1.5},
        {**YARN_ROPE, "mscale": 0.7, "mscale_all_dim": 1.2},
    ],
)
def test_frequencies_equal_transformers(rope: dict[str, Any] | None) -> None:
    scaling = None if rope is None else rope_scaling(rope, 256)
    ours = inverse_frequencies(HEAD_DIM, 10_000.0, scaling)
    settings: dict[str, Any] = {"head_dim": HEAD_DIM, "max_position_embeddings": 256}
    parameters = rope or {"rope_type": "default", "rope_theta": 10000.0}
    theirs = LlamaRotaryEmbedding(LlamaConfig(**settings, rope_parameters=parameters))
    torch.testing.assert_close(ours, theirs.inv_freq)
    length = 1.0 if scaling is None else scaling.length
    assert length == pytest.approx(theirs.attention_scaling)


def test_the_table_turns_by_position_times_frequency() -> None:
    frequencies = inverse_frequencies(HEAD_DIM, 10_000.0, None)
    table = RotaryTable(frequencies, 20, torch.float32, torch.device("cpu"))
    cos, sin = table.lookup(torch.tensor([7, 0]))
    angles = 7 * frequencies
    torch.testing.assert_close(cos[0, 0], torch.cat((angles, angles)).cos())
    torch.testing.assert_close(sin[0, 0], torch.cat((-angles.sin(), angles.sin())))
    assert torch.equal(cos[1], torch.ones(1, HEAD_DIM))
