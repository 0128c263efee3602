"""Decoders that keep what transformers' own cache holds, in place of blocks of ours.

For layers with a state (Mamba, linear attention, convolutions) and for attention that cannot be
replaced: every request has a cache object of transformers, and runs alone. Our block pool counts
its tokens, so that no more requests run than memory has room for; nothing is shared between them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.kernels.kernel_set import KVCache, most_likely
from engine.kernels.step_batch import IntArray, StepBatch
from engine.kv_sizing import KVCacheSpec
from engine.model_config import ModelConfig, incompatible
from engine.model_files.checkpoint import checkpoint_files
from engine.models.transformers_check import logits_differ
from engine.models.transformers_config import find_text_decoder
from engine.models.transformers_weights import from_pretrained, held_bytes

_CACHE_WORDS = ("cache", "past_key_values", "cache_params")
_CHECKED_TOKENS = 24
_PARTS = (17, 21, _CHECKED_TOKENS)  # a prompt, a chunk behind it, and one more


@dataclass(frozen=True, slots=True)
class KeptBytes:
    """What one request keeps: for each of its tokens, and beside them whatever its length."""

    per_token: int
    state: int


class OwnCacheModel:
    """`model` is a loaded decoder of transformers with its own attention.

    With `reads_one_by_one` what follows a prompt's first part is computed token by token.
    """

    def __init__(self, architecture: str, model: Any, *, reads_one_by_one: bool = False) -> None:
        self.architecture = architecture
        self._model = model
        self._reads_one_by_one = reads_one_by_one
        parameters = inspect.signature(model.forward).parameters
        self._cache_word = next((word for word in _CACHE_WORDS if word in parameters), None)
        if self._cache_word is None:
            raise incompatible(architecture, "it keeps nothing between tokens")
        self._can_choose_rows = "logits_to_keep" in parameters
        self._takes_positions = "position_ids" in parameters
        self._caches: dict[int, Any] = {}
        self._lengths: dict[int, int] = {}  # tokens that each of the caches holds

    @property
    def weight_bytes(self) -> int:
        """Parameters and constant tables; what is tied counts once."""
        return held_bytes(self._model)

    def create_kv_cache(self, num_blocks: int) -> KVCache:
        """Empty: transformers makes room for a token when it comes."""
        return []

    def forget(self, rows: IntArray) -> None:
        """Let go of what requests of these rows of the batch have kept."""
        for row in rows.tolist():
            self._caches.pop(row, None)
            self._lengths.pop(row, None)

    @torch.inference_mode()
    def forward(self, batch: StepBatch, kv_cache: KVCache) -> Tensor:
        """Float32 logits [R, vocabulary] of the rows that ask for them."""
        return torch.cat([self._logits(*part) for part in self._parts(batch)])

    @torch.inference_mode()
    def hidden_states(self, batch: StepBatch, kv_cache: KVCache) -> Tensor:
        """Float32 [R, hidden] of the model below the head."""
        return torch.cat([self._hidden(*part) for part in self._parts(batch)])

    def greedy_tokens(self, batch: StepBatch, kv_cache: KVCache) -> IntArray:
        """The most likely token [R] of the rows that ask for logits."""
        tokens: IntArray = most_likely(self.forward(batch, kv_cache)).cpu().numpy()
        return tokens

    def _parts(self, batch: StepBatch) -> Iterator[tuple[int, Tensor, Tensor]]:
        """(row, token ids, places in them that ask for logits) of each sequence."""
        bounds = batch.query_start_loc
        rows = batch.rows if batch.rows is not None else -1 - np.arange(len(bounds) - 1)
        for number, row in enumerate(rows.tolist()):
            start, end = int(bounds[number]), int(bounds[number + 1])
            if not batch.num_computed[number]:
                self.forget(rows[number : number + 1])
            wanted = batch.logits_rows[(batch.logits_rows >= start) & (batch.logits_rows < end)]
            tokens = torch.from_numpy(batch.token_ids[start:end]).to(self._model.device)
            yield row, tokens, torch.from_numpy(wanted - start).to(self._model.device)
        self.forget(rows[rows < 0])

    def _logits(self, row: int, tokens: Tensor, wanted: Tensor) -> Tensor:
        found = []
        for piece, places in self._pieces(row, tokens, wanted):
            keep = {"logits_to_keep": places if len(places) else 1} if self._can_choose_rows else {}
            logits = self._run(self._model, row, piece, **keep).logits[0].float()
            if not self._can_choose_rows:
                logits = logits.index_select(0, places)
            found.append(logits[: len(places)])
        return torch.cat(found)

    def _hidden(self, row: int, tokens: Tensor, wanted: Tensor) -> Tensor:
        found = []
        for piece, places in self._pieces(row, tokens, wanted):
            hidden = self._run(self._model.base_model, row, piece).last_hidden_state[0]
            found.append(hidden.index_select(0, places).float())
        return torch.cat(found)

    def _pieces(self, row: int, tokens: Tensor, wanted: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """What is computed in one call, with the places in it that are asked for."""
        if not self._reads_one_by_one or row not in self._caches:
            yield tokens, wanted
            return
        for place in range(len(tokens)):
            yield tokens[place : place + 1], wanted[wanted == place] - place

    def _run(self, part: Any, row: int, tokens: Tensor, **asked: Any) -> Any:
        cache = self._caches.get(row)
        if cache is not None:
            asked[str(self._cache_word)] = cache
        start = self._lengths.get(row, 0)
        end = start + len(tokens)
        if self._takes_positions:
            asked["position_ids"] = torch.arange(start, end, device=tokens.device)[None]
        output = part(input_ids=tokens[None], use_cache=True, **asked)
        self._caches[row] = next(
            kept for word in _CACHE_WORDS if (kept := getattr(output, word, None)) is not None
        )
        self._lengths[row] = end
        return output

    def measure(self) -> KeptBytes:
        """Of a prompt that is run for it."""
        sizes = []
        for length in (_CHECKED_TOKENS // 2, _CHECKED_TOKENS):
            tokens = torch.zeros(length, dtype=torch.int64, device=self._model.device)
            with torch.inference_mode():
                self._run(self._model, -1, tokens)
            sizes.append(_tensor_bytes(self._caches[-1]))
            self.forget(np.array([-1]))
        per_token = (sizes[1] - sizes[0]) // (_CHECKED_TOKENS - _CHECKED_TOKENS // 2)
        return KeptBytes(per_token, sizes[1] - per_token * _CHECKED_TOKENS)


def _tensor_bytes(kept: Any) -> int:
    """Of all tensors in a cache of transformers, each counted once."""
    tensors: dict[int, Tensor] = {}
    seen: set[int] = set()

    def walk(value: Any) -> None:
        if isinstance(value, Tensor):
            tensors[id(value)] = value
        elif isinstance(value, Mapping):
            for one in value.values():
                walk(one)
        elif isinstance(value, list | tuple):
            for one in value:
                walk(one)
        elif type(value).__module__.startswith("transformers") and id(value) not in seen:
            seen.add(id(value))
            walk(vars(value) if hasattr(value, "__dict__") else None)

    walk(kept)
    return sum(tensor.nbytes for tensor in tensors.values())


def load_own_cache_model(
    config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    on_shard: Callable[[int, int], None],
) -> OwnCacheModel:
    """Load the checkpoint in `config.path`; ModelError unless its parts give the whole's logits."""
    files = checkpoint_files(Path(config.path))
    on_shard(0, len(files))
    decoder = find_text_decoder(config)
    model = from_pretrained(
        decoder.model_class, config, decoder.config, dtype, key_mapping=decoder.key_mapping
    ).to(device)
    on_shard(len(files), len(files))
    difference = ""
    for reads_one_by_one in (False, True):
        step = OwnCacheModel(config.architecture, model, reads_one_by_one=reads_one_by_one)
        difference = difference_in_parts(step, model)
        if not difference:
            return step
    raise incompatible(config.architecture, difference)


def difference_in_parts(step: OwnCacheModel, model: Any) -> str:
    """Why a prompt in parts is not what it is in one piece; empty if it is."""
    last = model.config.vocab_size - 1
    tokens = np.linspace(0, last, _CHECKED_TOKENS, dtype=np.int64)
    try:
        with torch.inference_mode():
            ids = torch.from_numpy(tokens)[None].to(model.device)
            own = model(input_ids=ids, use_cache=False).logits[0].float()
        parts = [
            step.forward(_part_of(tokens, start, end), [])
            for start, end in zip((0, *_PARTS), _PARTS, strict=False)
        ]
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError) as error:
        return f"its first step failed ({error})"
    finally:
        step.forget(np.array([0]))
    return logits_differ(torch.cat(parts), own, model.dtype, "in parts", "in one piece")


def _part_of(tokens: IntArray, start: int, end: int) -> StepBatch:
    """Of one sequence in row 0; all of it asks for logits."""
    return StepBatch(
        token_ids=tokens[start:end],
        positions=np.arange(start, end),
        slot_mapping=np.zeros((1, end - start), dtype=np.int64),
        query_start_loc=np.array([0, end - start]),
        num_computed=np.array([start]),
        block_table=np.zeros((1, 1, 1), dtype=np.int64),
        logits_rows=np.arange(end - start),
        rows=np.array([0]),
    )


def counted_spec(kept: KeptBytes, block_size: int, dtype_bytes: int) -> KVCacheSpec:
    """Blocks as large as what transformers keeps of as many tokens; at least of one number."""
    values = max(1, -(-kept.per_token // (2 * dtype_bytes)))
    return KVCacheSpec(
        block_size, num_kv_heads=1, head_dim=values, num_layers=1, dtype_bytes=dtype_bytes
    )
