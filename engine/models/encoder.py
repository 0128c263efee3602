"""Encoders: models whose tokens see all others, run by transformers' modelling code.

Nothing is kept between steps: a text comes whole, and its KV is of no use to the next one. Owns
the batches that texts of different lengths are padded to.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.errors import CorruptModelError
from engine.kernels.kernel_set import KVCache, most_likely
from engine.kernels.step_batch import IntArray, StepBatch
from engine.model_config import ModelConfig, incompatible
from engine.model_files.checkpoint import checkpoint_files
from engine.models.transformers_weights import from_pretrained, held_bytes

_MOST_PADDING = 0.25  # of the tokens of a batch


class EncoderModel:
    """`model` is a loaded encoder of transformers without a head; its vectors are its logits."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._pad = int(getattr(model.config, "pad_token_id", None) or 0)

    @property
    def weight_bytes(self) -> int:
        """Parameters and constant tables; what is tied counts once."""
        return held_bytes(self._model)

    def create_kv_cache(self, num_blocks: int) -> KVCache:
        """Empty, whatever is asked for."""
        return []

    def forward(self, batch: StepBatch, kv_cache: KVCache) -> Tensor:
        """The same as `hidden_states`, since there is no head."""
        return self.hidden_states(batch, kv_cache)

    @torch.inference_mode()
    def hidden_states(self, batch: StepBatch, kv_cache: KVCache) -> Tensor:
        """Float32 [R, hidden] of the rows that ask for logits; every text of the step is whole."""
        assert not batch.num_computed.any(), "an encoder's texts are never split"
        bounds = batch.query_start_loc
        found: list[Tensor] = [torch.empty(0)] * (len(bounds) - 1)
        for places in _padded_batches(np.diff(bounds)):
            texts = [batch.token_ids[bounds[place] : bounds[place + 1]] for place in places]
            for place, rows in zip(places, self._run(texts), strict=True):
                found[place] = rows
        rows = torch.from_numpy(batch.logits_rows).to(self._model.device)
        return torch.cat(found).index_select(0, rows)

    def greedy_tokens(self, batch: StepBatch, kv_cache: KVCache) -> IntArray:
        """No tokens, but NO_TOKEN where the vectors are no numbers."""
        tokens: IntArray = most_likely(self.forward(batch, kv_cache)).cpu().numpy()
        return tokens

    def _run(self, texts: list[IntArray]) -> list[Tensor]:
        """Float32 [T, hidden] of each text, padded on the right to the longest."""
        lengths = np.array([len(text) for text in texts])
        token_ids = np.full((len(texts), lengths.max()), self._pad, dtype=np.int64)
        mask = np.arange(lengths.max()) < lengths[:, None]
        token_ids[mask] = np.concatenate(texts)
        device = self._model.device
        hidden = self._model(
            input_ids=torch.from_numpy(token_ids).to(device),
            attention_mask=torch.from_numpy(mask.astype(np.int64)).to(device),
        ).last_hidden_state.float()
        return [rows[:length] for rows, length in zip(hidden, lengths.tolist(), strict=True)]


def _padded_batches(lengths: IntArray) -> Iterator[list[int]]:
    """Places of texts of similar lengths, so that little of a batch is padding."""
    group: list[int] = []
    total = 0
    for place in np.argsort(-lengths, kind="stable").tolist():
        width = int(lengths[group[0]]) if group else 0
        grown = total + int(lengths[place])
        if group and width * (len(group) + 1) - grown > _MOST_PADDING * width * (len(group) + 1):
            yield group
            group, grown = [], int(lengths[place])
        group.append(place)
        total = grown
    if group:
        yield group


def load_encoder(
    config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    on_shard: Callable[[int, int], None],
) -> EncoderModel:
    """Load the checkpoint in `config.path` without its head, if it has one."""
    from transformers import AutoConfig, AutoModel
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    files = checkpoint_files(Path(config.path))
    on_shard(0, len(files))
    try:
        settings = AutoConfig.from_pretrained(config.path, local_files_only=True)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CorruptModelError(
            f"transformers cannot read {config.path}/config.json: {error}"
        ) from error
    if type(settings) not in MODEL_MAPPING:
        raise incompatible(config.architecture, "it has no code for the model without its head")
    model_class: Any = MODEL_MAPPING[type(settings)]
    # A pooler is a head over the first token, which nothing here asks for.
    has_pooler = "add_pooling_layer" in inspect.signature(model_class).parameters
    options = {"add_pooling_layer": False} if has_pooler else {}
    model = from_pretrained(AutoModel, config, settings, dtype, **options)
    on_shard(len(files), len(files))
    return EncoderModel(model.to(device))
