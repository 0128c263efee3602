"""What transformers' own configuration says about a decoder, and whether it can be served.

Refuses by name, before any weights are read, what cannot work with a paged cache of keys and
values. Code that a model's folder brings is never run. transformers is imported on use.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from typing import Any

from engine.errors import CorruptModelError, ModelError
from engine.model_config import ModelConfig, incompatible
from engine.model_families import plain_windows

_KINDS = ("full_attention", "sliding_attention")


def transformers_class(architecture: str) -> Any:
    """transformers' class of that name; ModelError unless it writes text by attention of ours."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    found = getattr(transformers, architecture, None)
    if not isinstance(found, type):
        raise ModelError(
            f"Model architecture {architecture} is not supported; neither this engine nor "
            f"transformers {transformers.__version__} has code for it. A newer transformers may, "
            "and code from a model repository is never run."
        )
    if architecture not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        raise incompatible(architecture, "it is no decoder that writes text")
    model_class: Any = found
    if model_class._is_stateful:
        raise incompatible(
            architecture, "it keeps a state between tokens (Mamba, linear attention)"
        )
    if not hasattr(sys.modules[found.__module__], "ALL_ATTENTION_FUNCTIONS"):
        raise incompatible(architecture, "its attention cannot be replaced by another one")
    return model_class


def effective_window(window: int | None, num_positions: int) -> int | None:
    """None for a window that no request can be longer than."""
    return None if window is None or window >= num_positions else int(window)


def load_config(model: ModelConfig) -> Any:
    """transformers' configuration object for the folder of `model`."""
    config_class = transformers_class(model.architecture).config_class
    without_head = {} if model.has_head else {"tie_word_embeddings": True}
    try:
        return config_class.from_pretrained(model.path, local_files_only=True, **without_head)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CorruptModelError(
            f"transformers cannot read {model.path}/config.json: {error}"
        ) from error


def with_transformers_facts(model: ModelConfig, max_model_len: int) -> ModelConfig:
    """`model` with what transformers makes of its config.json, defaults of the family included."""
    config = load_config(model)
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
    heads = int(config.num_attention_heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    return dataclasses.replace(
        model,
        vocab_size=int(config.vocab_size),
        hidden_size=int(config.hidden_size),
        num_hidden_layers=int(config.num_hidden_layers),
        num_attention_heads=heads,
        num_key_value_heads=1 if getattr(config, "multi_query", False) else kv_heads,
        head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
        kv_lora_rank=None,  # transformers hands out whole keys and values
        layer_windows=tuple(
            effective_window(window, model.max_position_embeddings)
            for window in _windows(model.architecture, config)
        ),
    )


def _require_plain_decoder(architecture: str, config: Any) -> None:
    if config.is_encoder_decoder or getattr(config, "add_cross_attention", False):
        raise incompatible(architecture, "it reads through an encoder, and only decoders work")
    if config.sub_configs:
        raise incompatible(
            architecture, f"it is made of several models ({', '.join(config.sub_configs)})"
        )
    if getattr(config, "attn_logit_softcapping", None):
        raise incompatible(architecture, "its attention takes softcap, which ours does not have")


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
