"""What transformers' own configuration says about a decoder, and whether it can be served.

Refuses by name, before any weights are read, what cannot work with a paged cache of keys and
values. Code that a model's folder brings is never run. transformers is imported on use.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import CorruptModelError, ModelError
from engine.model_config import ModelConfig, incompatible
from engine.model_families import kv_sources, plain_windows
from engine.model_files.json_objects import read_json

_KINDS = ("full_attention", "sliding_attention")
_TEXT_PARTS = {
    r"^model\.(language_model|text_model)\.": "model.",
    r"^(language_model|text_model)\.model\.": "model.",
    r"^language_model\.lm_head": "lm_head",
}
"""Where a model that also sees or hears has its text decoder, in older and newer checkpoints."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """transformers' class of a decoder that writes text, and its configuration.

    `key_mapping` renames the tensors of a model that also sees or hears, whose text part it is.
    """

    model_class: Any
    config: Any
    key_mapping: dict[str, str]


def find_decoder(model: ModelConfig) -> Decoder:
    """Of the folder of `model`; ModelError unless its attention can be ours."""
    decoder = find_text_decoder(model)
    _require_replaceable(decoder.model_class)
    return decoder


def find_text_decoder(model: ModelConfig) -> Decoder:
    """Of the folder of `model`, whatever its layers are; ModelError unless it writes text."""
    found = _class_named(model.architecture)
    config = _read_config(model, _config_class(model, found))
    part = getattr(config, "text_config", None)
    if part is None and model.architecture in _text_classes():
        return Decoder(found, config, {})
    name = None if part is None else _text_class_of(part)
    if part is None or name is None:
        raise incompatible(model.architecture, "it is no decoder that writes text")
    part.tie_word_embeddings = config.tie_word_embeddings  # the head belongs to the whole
    return Decoder(_class_named(name), part, _TEXT_PARTS)


def _config_class(model: ModelConfig, model_class: Any) -> Any:
    """Of config.json's own family, where several ones share a model's class."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    kind = str(read_json(Path(model.path) / "config.json").get("model_type"))
    if MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind) == model.architecture:
        return CONFIG_MAPPING[kind]
    return model_class.config_class


def _text_classes() -> set[str]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())


def _text_class_of(part: Any) -> str | None:
    """Name of the class that writes text by this configuration, unless it is the whole again."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    name: str | None = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(part.model_type)
    return name if name is not None and not name.endswith("ConditionalGeneration") else None


def _class_named(architecture: str) -> Any:
    import transformers

    found = getattr(transformers, architecture, None)
    if not isinstance(found, type):
        raise ModelError(
            f"Model architecture {architecture} is not supported; neither this engine nor "
            f"transformers {transformers.__version__} has code for it. A newer transformers may, "
            "and code from a model repository is never run."
        )
    return found


def _require_replaceable(model_class: Any) -> None:
    """Of a class whose attention is a function that can be another one, and that has no state."""
    architecture = model_class.__name__
    if model_class._is_stateful:
        raise incompatible(
            architecture, "it keeps a state between tokens (Mamba, linear attention)"
        )
    if not hasattr(sys.modules[model_class.__module__], "ALL_ATTENTION_FUNCTIONS"):
        raise incompatible(architecture, "its attention cannot be replaced by another one")


def effective_window(window: int | None, num_positions: int) -> int | None:
    """None for a window that no request can be longer than."""
    return None if window is None or window >= num_positions else int(window)


def _read_config(model: ModelConfig, config_class: Any) -> Any:
    without_head = {} if model.has_head else {"tie_word_embeddings": True}
    try:
        return config_class.from_pretrained(model.path, local_files_only=True, **without_head)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CorruptModelError(
            f"transformers cannot read {model.path}/config.json: {error}"
        ) from error


def with_transformers_facts(model: ModelConfig, max_model_len: int) -> ModelConfig:
    """`model` with what transformers makes of its config.json, defaults of the family included."""
    config = find_decoder(model).config
    try:
        _require_plain_decoder(model.architecture, config)
        _require_fixed_positions(model.architecture, config, max_model_len)
        return _completed(model, config)
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        # RuntimeError is what transformers raises for values that differ from layer to layer.
        raise incompatible(
            model.architecture, f"its configuration is unlike that of plain decoders ({error})"
        ) from error


def _completed(model: ModelConfig, config: Any) -> ModelConfig:
    """Every page of the cache has room for the widest layer."""
    layers = config.per_layer_config if config.is_heterogeneous else [config]
    shapes = [_kv_shape(layer) for layer in layers]
    return dataclasses.replace(
        model,
        vocab_size=int(config.vocab_size),
        hidden_size=int(config.hidden_size),
        num_hidden_layers=int(config.num_hidden_layers),
        num_attention_heads=int(layers[0].num_attention_heads),
        num_key_value_heads=max(heads for heads, _ in shapes),
        head_dim=max(head_dim for _, head_dim in shapes),
        kv_lora_rank=None,  # transformers hands out whole keys and values
        kv_sources=kv_sources(
            {
                "num_hidden_layers": config.num_hidden_layers,
                "num_kv_shared_layers": getattr(config, "num_kv_shared_layers", None),
                "layer_types": getattr(config, "layer_types", None),
            }
        ),
        layer_windows=tuple(
            effective_window(window, model.max_position_embeddings)
            for window in _windows(model.architecture, config)
        ),
    )


def _kv_shape(config: Any) -> tuple[int, int]:
    """Heads, and numbers of a head, that a layer of this configuration stores."""
    heads = int(config.num_attention_heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    if getattr(config, "kv_lora_rank", None):
        # Compressed ones are unfolded for every head.
        wide = int(config.qk_nope_head_dim) + int(config.qk_rope_head_dim)
        return max(heads, kv_heads), max(wide, int(config.v_head_dim))
    head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    head_dim = max(head_dim, int(getattr(config, "v_head_dim", None) or 0))
    return 1 if getattr(config, "multi_query", False) else kv_heads, head_dim


def _require_plain_decoder(architecture: str, config: Any) -> None:
    if config.is_encoder_decoder or getattr(config, "add_cross_attention", False):
        raise incompatible(architecture, "it reads through an encoder, and only decoders work")


def _require_fixed_positions(architecture: str, config: Any, max_model_len: int) -> None:
    """`longrope` turns every token of a batch differently once one of them is far enough along."""
    for rope in _ropes(config):
        limit = int(rope.get("original_max_position_embeddings") or config.max_position_embeddings)
        if rope.get("rope_type") == "longrope" and max_model_len > limit:
            raise incompatible(
                architecture,
                f"beyond {limit} tokens its position encoding depends on the other requests. "
                f"Give --max-model-len {limit} (asked for: {max_model_len})",
            )


def _ropes(config: Any) -> Iterator[dict[str, Any]]:
    """The rotary settings, of each kind of layer where they differ."""
    settings = getattr(config, "rope_parameters", None) or {}
    yield settings
    yield from (part for part in settings.values() if isinstance(part, dict))


def _windows(architecture: str, config: Any) -> tuple[int | None, ...]:
    kinds = getattr(config, "layer_types", None)
    unknown = sorted(set(kinds or ()).difference(_KINDS))
    if unknown:
        raise incompatible(architecture, f"it has layers of the kind {', '.join(unknown)}")
    settings = {
        "num_hidden_layers": config.num_hidden_layers,
        "sliding_window": getattr(config, "sliding_window", None),
        "use_sliding_window": getattr(config, "use_sliding_window", True),
        "layer_types": kinds,
    }
    return plain_windows(settings)
