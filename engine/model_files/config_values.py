"""Checks of what a config.json says: types, and limits far above every model that exists.

A wrong value would else be an error deep inside, a division by zero, or gigabytes of layers. Keys
that are not known here pass, null too: both are the reader's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.errors import CorruptModelError
from engine.model_families import text_part
from engine.model_files.bounds import of_type, real_number, whole_number, word
from engine.model_files.json_objects import parse_json, read_json

MOST_LAYERS = 4096
_WIDTH = 1 << 24  # of a vector or a table: 16 million
_EXPERTS = 1 << 16
_LENGTH = 1 << 40
_TINY, _HUGE = 1e-30, 1e30

COUNTS: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), (1, MOST_LAYERS)),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), (1, 1 << 16)),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model"), (1, _WIDTH)),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), (1, _LENGTH)),
    "max_seq_len": (1, _LENGTH),
    "num_key_value_heads": (1, 1 << 16),
    "head_dim": (1, 1 << 16),
    "intermediate_size": (1, _WIDTH),
    "vocab_size": (1, 1 << 28),
    "sliding_window": (0, _LENGTH),
    "max_window_layers": (0, _LENGTH),
    "sliding_window_pattern": (1, MOST_LAYERS),
    "_sliding_window_pattern": (1, MOST_LAYERS),
    "kv_lora_rank": (0, _WIDTH),
    "q_lora_rank": (0, _WIDTH),
    "qk_rope_head_dim": (0, 1 << 16),
    "qk_nope_head_dim": (0, 1 << 16),
    "v_head_dim": (0, 1 << 16),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts"), (0, _EXPERTS)),
    "num_experts_per_tok": (0, _EXPERTS),
    "n_shared_experts": (0, _EXPERTS),
    "first_k_dense_replace": (0, MOST_LAYERS),
    "num_nextn_predict_layers": (0, 64),
    "decoder_sparse_step": (0, MOST_LAYERS),
    "moe_intermediate_size": (0, _WIDTH),
    "shared_expert_intermediate_size": (0, _WIDTH),
}
"""Whole numbers with the least and the most that they can be."""

_REALS: Mapping[str, tuple[float, float]] = {
    "rms_norm_eps": (0.0, 1.0),
    "rope_theta": (_TINY, _HUGE),
    "rope_local_base_freq": (_TINY, _HUGE),
    "query_pre_attn_scalar": (_TINY, _HUGE),
}
_ROPE_REALS = ("factor", "low_freq_factor", "high_freq_factor", "rope_theta")
_OBJECTS = (
    *("rope_parameters", "rope_scaling", "quantization_config", "compression_config"),
    *("text_config", "vision_config", "audio_config"),
)
_VISION_COUNTS = ("hidden_size", "intermediate_size", "num_hidden_layers")
_VISION_SIDES = ("image_size", "patch_size")  # in pixels, one or two
_WORDS = ("hidden_act", "hidden_activation", "model_type")
_WORDS_OR_OBJECTS = ("dtype", "torch_dtype")  # one for each part, in some


def read_config(path: Path) -> dict[str, Any]:
    """The checked config.json of a model folder; CorruptModelError names the value at fault."""
    return checked_config(read_json(path), str(path))


def parse_config(text: bytes, source: str) -> dict[str, Any]:
    """The same of a text that lies elsewhere; `source` names it in errors."""
    return checked_config(parse_json(text, source), source)


def checked_config(raw: dict[str, Any], source: str) -> dict[str, Any]:
    """`raw` as it is, if it has the form of a config.json: objects, lists and names where they are.

    Numbers are `check_decoder`'s, once it is known that they are those of a decoder.
    """
    for name in _OBJECTS:
        if raw.get(name) is not None:
            of_type(raw[name], f"{source}: {name}", dict, "an object")
    text = text_part(raw)
    for part in (raw, text):
        _check_architectures(part.get("architectures"), source)
    for name in _OBJECTS:
        if text.get(name) is not None:
            of_type(text[name], f"{source}: {name}", dict, "an object")
    for kind in of_type(text.get("layer_types") or [], f"{source}: layer_types", list, "a list"):
        word(kind, f"{source}: one of layer_types")
    for name in (*_WORDS, *_WORDS_OR_OBJECTS):
        value = text.get(name)
        if value is not None and not (name in _WORDS_OR_OBJECTS and isinstance(value, dict)):
            word(value, f"{source}: {name}")
    if raw.get("vision_config"):
        _check_vision(raw["vision_config"], f"{source}: vision_config")
    for name in ("quantization_config", "compression_config"):
        settings = text.get(name) or {}
        if settings.get("quant_method") is not None:
            word(settings["quant_method"], f"{source}: {name}.quant_method")
        scheme = settings.get("kv_cache_scheme")
        if scheme is not None:
            of_type(scheme, f"{source}: {name}.kv_cache_scheme", dict, "an object")
    return raw


def check_decoder(raw: Mapping[str, Any], source: str) -> None:
    """The numbers of one decoder, a family's defaults among them; CorruptModelError names one."""
    for name, (low, high) in COUNTS.items():
        if raw.get(name) is not None:
            whole_number(raw[name], f"{source}: {name}", low, high)
    for name, limits in _REALS.items():
        if raw.get(name) is not None:
            real_number(raw[name], f"{source}: {name}", *limits)
    for name in ("rope_parameters", "rope_scaling"):
        _check_rope(raw.get(name) or {}, f"{source}: {name}")
    for name in ("bos_token_id", "eos_token_id"):
        ids = raw.get(name)
        for one in ids if isinstance(ids, list) else [ids]:
            if one is not None:
                whole_number(one, f"{source}: {name}", -1, 1 << 31)
    _check_layer_types(raw, source)
    _check_heads(raw, source)


def _check_architectures(value: object, source: str) -> None:
    if value is None:
        return
    for name in of_type(value, f"{source}: architectures", list, "a list"):
        word(name, f"{source}: one of architectures")


def _check_rope(rope: Mapping[str, Any], what: str) -> None:
    """One set of parameters, or one for each kind of layer."""
    for name in _ROPE_REALS:
        if rope.get(name) is not None:
            real_number(rope[name], f"{what}.{name}", _TINY, _HUGE)
    length = "original_max_position_embeddings"
    if rope.get(length) is not None:
        whole_number(rope[length], f"{what}.{length}", 1, _LENGTH)
    for kind in ("full_attention", "sliding_attention"):
        if rope.get(kind) is not None:
            inner = of_type(rope[kind], f"{what}.{kind}", dict, "an object")
            _check_rope({k: v for k, v in inner.items() if not isinstance(v, dict)}, what)


def _check_layer_types(raw: Mapping[str, Any], source: str) -> None:
    kinds, layers = raw.get("layer_types"), raw.get("num_hidden_layers")
    if kinds is None:
        return
    # Layers that predict further tokens may stand behind the others.
    most = (layers or 0) + (raw.get("num_nextn_predict_layers") or 0)
    if kinds and layers is not None and not layers <= len(kinds) <= most:
        raise CorruptModelError(
            f"{source}: layer_types names {len(kinds):,} layers, num_hidden_layers is {layers:,}."
        )


def _check_heads(raw: Mapping[str, Any], source: str) -> None:
    heads, hidden = raw.get("num_attention_heads"), raw.get("hidden_size")
    shared = raw.get("num_key_value_heads")
    if heads and hidden and not raw.get("head_dim") and heads > hidden:
        raise CorruptModelError(
            f"{source}: {heads:,} num_attention_heads do not fit into a hidden_size of {hidden:,}."
        )
    if heads and shared and heads % shared:
        raise CorruptModelError(
            f"{source}: num_attention_heads ({heads:,}) is no multiple of num_key_value_heads "
            f"({shared:,})."
        )


def _check_vision(vision: Mapping[str, Any], source: str) -> None:
    for name in _VISION_COUNTS:
        if vision.get(name) is not None:
            whole_number(vision[name], f"{source}: {name}", *COUNTS[name])
    for name in _VISION_SIDES:
        sides = vision.get(name)
        for side in sides if isinstance(sides, list) else [sides]:
            if side is not None and not isinstance(side, dict):
                whole_number(side, f"{source}: {name}", 1, 1 << 20)
