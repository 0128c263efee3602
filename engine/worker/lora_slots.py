"""LoraSlots: the adapters that one worker holds, by slot of its model."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError

from engine.config import LoraConfig
from engine.errors import EngineError
from engine.kernels.kernel_set import ModelStep
from engine.kernels.low_rank import AdaptedStep
from engine.logger import get_logger
from engine.lora_adapters import LoraRequest, linear_shapes, read_adapter, require_fitting
from engine.model_config import ModelConfig
from engine.models.lora import FUSED_LINEARS, decoder_adapter, read_low_ranks
from engine.models.transformers_fallback import TransformersModel
from engine.rank_layout import RankPlace, layers_of

logger = get_logger(__name__)

_VALUE_BYTES = 2


class LoraSlots:
    """Loads adapters into a model's slots; slots are reused, `lora_id`s are not."""

    def __init__(
        self,
        config: LoraConfig,
        model_config: ModelConfig,
        model: ModelStep,
        place: RankPlace,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._config = config
        self._model_config = model_config
        self._model = model
        self._place = place
        self._device = device
        self._dtype = dtype
        self._slots: dict[int, int] = {}

    def slot(self, lora_id: int) -> int:
        """Where the adapter lies; -1 for 0, which is no adapter."""
        return self._slots[lora_id] if lora_id else -1

    def load(self, request: LoraRequest) -> str | None:
        """Load an adapter; what is in the way, for a person, or None."""
        try:
            self._load(request)
        except (EngineError, SafetensorError, OSError, MemoryError, RuntimeError) as error:
            logger.warning("LoRA adapter %s is not loaded: %s", request.name, error)
            return str(error)
        return None

    def remove(self, lora_id: int) -> None:
        """Free an adapter's slot; harmless where it is not loaded."""
        slot = self._slots.pop(lora_id, None)
        if slot is not None:
            self._adapted.remove_adapter(slot)

    @property
    def _adapted(self) -> AdaptedStep:
        model: AdaptedStep = self._model  # type: ignore[assignment]
        return model

    def _load(self, request: LoraRequest) -> None:
        folder, config = Path(request.path), self._model_config
        modules = read_adapter(folder, self._config.max_lora_rank)
        if isinstance(self._model, TransformersModel):
            self._model.require_fitting(modules, folder)
            found = read_low_ranks(folder, modules, self._dtype, self._device)
            adapter = self._model.adapter_of(found)
        else:
            require_fitting(modules, config, folder)
            found = read_low_ranks(folder, modules, self._dtype, self._device)
            adapter = decoder_adapter(found, config, self._place)
        slot = next(number for number in range(len(self._slots) + 1) if self._is_free(number))
        self._adapted.load_adapter(slot, adapter)
        self._slots[request.lora_id] = slot
        megabytes = sum(low_rank.num_bytes for low_rank in adapter.values()) / 1e6
        logger.info("Loaded LoRA adapter %s (%.1f MB) from %s", request.name, megabytes, folder)

    def _is_free(self, slot: int) -> bool:
        return slot not in self._slots.values()


def reserved_bytes(config: LoraConfig | None, model: ModelConfig, place: RankPlace) -> int:
    """What as many adapters as may be held take at their highest rank, on one rank."""
    if config is None:
        return 0
    shapes = linear_shapes(model)
    widths = sum(outputs + inputs for outputs, inputs in shapes.values())
    if model.implementation == "stoker":
        # Each output of a fused linear has a column for the ranks of all its parts.
        for names in FUSED_LINEARS.values():
            found = [shapes[name][0] for name in names if name in shapes]  # not those of experts
            widths += (len(names) - 1) * sum(found)
    layers = len(layers_of(model, place))
    each = widths * config.max_lora_rank * layers * _VALUE_BYTES // place.tensor_size
    return config.num_reserved * each
