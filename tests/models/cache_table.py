"""What a plan counts of a decoder's cache, beside what transformers' own cache holds.

`python -m tests.models.cache_table` writes the table of docs/models.md anew.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from app.planning.layer_caches import LayerCache, LayerState
from app.planning.shape_reading import read_shape
from tests.models.decoder_families import decoder_families, tiny_config, tiny_decoder
from tests.places import ROOT

DOCUMENT = ROOT / "docs" / "models.md"
HEADER = (
    "| family | plan: KV bytes of a token | transformers' | plan: state of a request "
    "| transformers' |"
)
_RULE = "|---|---|---|---|---|"
_FLOAT32 = 4
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


def row_of(family: str) -> str:
    """The family's line of the table: bytes of a tiny model in float32."""
    if family in NOT_COUNTED:
        return f"| {family} | refused: it {NOT_COUNTED[family]} | - | - | - |"
    with tempfile.TemporaryDirectory() as folder:
        tiny_config(family).save_pretrained(folder)
        raw = json.loads((Path(folder) / "config.json").read_text())
    planned = planned_values(read_shape(raw, family).layer_caches)
    kept = kept_values(tiny_decoder(family))
    cells = [f"{_FLOAT32 * value:,}" for pair in zip(planned, kept, strict=True) for value in pair]
    return f"| {family} | {' | '.join(cells)} |"


def documented_rows() -> list[str]:
    """The lines of the table in docs/models.md."""
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    start = lines.index(HEADER) + 2
    end = next(n for n in range(start, len(lines)) if not lines[n].startswith("|"))
    return lines[start:end]


def main() -> None:
    """Write the table into the document."""
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    start = lines.index(HEADER)
    end = next(n for n in range(start, len(lines)) if not lines[n].startswith("|"))
    lines[start:end] = [HEADER, _RULE, *map(row_of, decoder_families())]
    DOCUMENT.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
