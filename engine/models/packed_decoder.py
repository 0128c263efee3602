"""A native decoder from the packed weights of an earlier start, else from the checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from engine.kernels.native.library import RankMemory
from engine.kernels.native.model_step import NativeKernels, NativeModelStep
from engine.kernels.native.packed_cache import PackedCache, packed_key
from engine.kv_sizing import KVCacheSpec, format_gib
from engine.logger import get_logger
from engine.model_config import ModelConfig
from engine.model_files.checkpoint import checkpoint_files
from engine.models.decoder_native import (
    LayerInputs,
    build_native_decoder,
    packing_facts,
    read_native_decoder,
    weighs_errors,
)
from engine.models.weights import DecoderWeights
from engine.rank_layout import WHOLE, RankPlace

logger = get_logger(__name__)


def load_native_decoder(
    config: ModelConfig,
    load: Callable[[], DecoderWeights],
    kernels: NativeKernels,
    num_positions: int,
    spec: KVCacheSpec,
    cache: PackedCache,
    place: RankPlace = WHOLE,
    ranks: RankMemory | None = None,
) -> NativeModelStep:
    """`load` is called when `cache` has nothing for this checkpoint as it is now."""
    files = checkpoint_files(Path(config.path))
    key = packed_key(files, packing_facts(config, kernels, place), kernels.build)
    found = cache.open(key)
    if found is not None:
        start = time.monotonic()
        try:
            model = read_native_decoder(config, found, kernels, num_positions, spec, place, ranks)
        except OSError as error:
            logger.warning("Packed weights are not used: %s.", error)
        else:
            size, seconds = format_gib(model.weight_bytes), time.monotonic() - start
            logger.info("Reading packed weights (%s GiB) took %.2f seconds", size, seconds)
            return model
    weights = load()
    inputs: list[LayerInputs] = []
    if weighs_errors(config, kernels, place):
        from engine.models.measured_inputs import measure_inputs  # other starts need none of it

        inputs = measure_inputs(config, weights, spec)
    model = build_native_decoder(
        config, weights, kernels, num_positions, spec, place, ranks, inputs
    )
    cache.store_later(key, model.packed_parts)
    return model
