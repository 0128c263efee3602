"""What a plan counts of every decoder family is what transformers' own model and cache hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from app.errors import StokerError
from app.planning.layer_caches import LayerCache, LayerState
from app.planning.shape_reading import read_shape
from app.planning.weight_headers import folder_weights
from tests.models.decoder_families import decoder_families, tiny_decoder

_TOKENS = 20  # fewer than the windows of the tiny models
NOT_COUNTED = {
    "deepseek_v4": "compresses several tokens into one",
    "dory": "keeps two entries of a token",
    "hrm_text": "goes through its layers several times",
    "inkling2_loop_text": "goes through its layers several times",
    "inkling2_text": "keeps the inputs of four convolutions beside keys and values",
    "inkling_text": "keeps the inputs of four convolutions beside keys and values",
    "zaya": "keeps a state of its own kind beside keys and values",
}
"""Families that a plan refuses by name, and why it does not count them."""


@pytest.mark.parametrize("family", decoder_families())
def test_cache_and_weights_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    model = tiny_decoder(family)
    model.save_pretrained(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    if family in NOT_COUNTED:
        with pytest.raises(StokerError, match="whose memory `stoker plan` cannot count"):
            read_shape(raw, "tiny")
        return
    shape = read_shape(raw, "tiny")

    assert planned_values(shape.layer_caches) == kept_values(model)
    assert folder_weights(tmp_path, shape).num_bytes == bytes_of(model)


def planned_values(caches: tuple[LayerCache, ...]) -> tuple[int, int]:
    """Values of a token and of a state; transformers keeps one input of a convolution more."""
    states = [cache.state for cache in caches if cache.state is not None]
    return sum(cache.values_per_token for cache in caches), sum(map(_with_newest, states))


def _with_newest(state: LayerState) -> int:
    return state.num_values + state.channels


def kept_values(model: Any) -> tuple[int, int]:
    """The same of transformers' cache after a prompt."""
    prompt = torch.arange(3, 3 + _TOKENS).unsqueeze(0)
    with torch.no_grad():
        answer = model(input_ids=prompt, use_cache=True)
    cache = answer.get("past_key_values", answer.get("cache_params"))
    tokens = states = 0
    for layer in cache.layers:
        for name, value in vars(layer).items():
            if isinstance(value, torch.Tensor) and name in ("keys", "values", "indexer_keys"):
                tokens += value.numel()
            elif isinstance(value, dict):
                states += sum(k.numel() for k in value.values() if isinstance(k, torch.Tensor))
    states += sum(kept.numel() for kept in getattr(cache, "linear_cache", ()) if len(kept))
    assert tokens % _TOKENS == 0
    return tokens // _TOKENS, states


def bytes_of(model: Any) -> int:
    """Of all tensors that are saved, one that is tied counted once."""
    tensors = {t.data_ptr(): t for t in model.state_dict().values()}
    return sum(t.numel() * t.element_size() for t in tensors.values())
