"""Turns a raw config.json into a ModelShape, or refuses it by name: nothing is guessed.

Only architectures whose attention layers are known are read. Owns no files and no network.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.errors import StokerError, UsageError
from app.planning.layer_caches import UnknownLayerError, layer_caches
from app.planning.model_shapes import Experts, LatentAttention, ModelShape, RawConfig, VisionTower
from app.planning.other_decoders import (
    OTHER_DECODERS,
    decoder_of,
    in_plain_words,
)
from engine.errors import ModelError
from engine.model_config import checkpoint_traits, decoder_numbers
from engine.model_families import (
    alternating_windows,
    family_fields,
    is_supported,
    plain_windows,
    qwen_windows,
    supported_architectures,
    text_part,
    with_family_defaults,
)
from engine.model_files.config_values import check_decoder
from engine.model_files.weight_quantization import read_quantization
from engine.model_support import find_support

_LOADABLE = frozenset(
    {
        *("awq", "gptq", "fp8", "compressed-tensors", "mxfp4", "fbgemm_fp8", "modelopt"),
        *("modelopt_fp4", "quark", "moe_wna16", "torchao"),
    }
)
_PACKED_ALIKE = ("awq", "gptq", "compressed-tensors")

# Models for embeddings that are a decoder without its head.
_DECODERS_OF = {"Gemma3TextModel": "Gemma3ForCausalLM"}


@dataclass(frozen=True, slots=True)
class _Family:
    """How an architecture differs from Llama; `windows` gives one window for each layer."""

    windows: Callable[[RawConfig], tuple[int | None, ...]]
    traits: Mapping[str, Any]
    experts: Callable[[RawConfig], Experts | None] | None = None


def read_shape(raw: RawConfig, name: str) -> ModelShape:
    """The shape in a config.json; StokerError names what cannot be counted, and why."""
    architecture = (raw.get("architectures") or ["(none named)"])[0]
    text = text_part(raw)
    if (decoder := _DECODERS_OF.get(architecture)) is not None:
        shape = read_shape({**text, "architectures": [decoder]}, name)
        return dataclasses.replace(shape, architecture=architecture, support=find_support(raw))
    if text.get("is_encoder_decoder"):
        raise _refused(f"{name} ({architecture}) has an encoder; only decoders are counted")
    decoder = decoder_of(architecture, text)
    family = _FAMILIES.get(decoder)
    is_plain = family is None
    if family is None:
        family = _other_family(decoder, architecture, name)
    try:
        if is_plain:
            text = in_plain_words(text)
        text = with_family_defaults(decoder, text)
        check_decoder(text, f"the config.json of {name}")
        return _read(text, raw, family, architecture, name, is_plain=is_plain)
    except ModelError as error:
        raise _refused(str(error).rstrip(".")) from error
    except UnknownLayerError as error:
        raise _refused(
            f"{name} ({architecture}) has layers of a kind ({error}) whose memory `stoker plan` "
            "cannot count"
        ) from error
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise _refused(f"the config.json of {name} is incomplete or damaged: {error!r}") from error


def _read(
    text: RawConfig,
    raw: RawConfig,
    family: _Family,
    architecture: str,
    name: str,
    *,
    is_plain: bool,
) -> ModelShape:
    numbers, caches = decoder_numbers(text), layer_caches(text, family.windows(text))
    method, cache_dtype = _quantization(raw, name)
    bias = bool(text.get("attention_bias", False))
    traits = {"has_qkv_bias": bias, "has_output_bias": bias, **family.traits}
    if is_supported(architecture):
        traits |= _own_traits(family_fields(architecture, text))
    if raw.get("vision_config") or raw.get("audio_config"):
        traits |= _tower(raw, architecture)
    return ModelShape(
        name=name,
        architecture=architecture,
        hidden_size=numbers["hidden_size"],
        intermediate_size=numbers["intermediate_size"],
        num_layers=numbers["num_hidden_layers"],
        num_heads=numbers["num_attention_heads"],
        num_kv_heads=1 if text.get("multi_query") else numbers["num_key_value_heads"],
        head_dim=numbers["head_dim"],
        vocab_size=numbers["vocab_size"],
        max_model_len=numbers["max_position_embeddings"],
        layer_windows=tuple(cache.window for cache in caches),
        has_mlp_bias=bool(text.get("mlp_bias", False)),
        latent=_latent(text) if text.get("kv_lora_rank") else None,
        experts=family.experts(text) if family.experts else None,
        quantization=method,
        declared_kv_dtype=cache_dtype,
        **_packing(raw, method),
        support=find_support(raw),
        is_plain=is_plain,
        layer_caches=caches,
        **checkpoint_traits(text),
        **traits,
    )


def _quantization(raw: RawConfig, name: str) -> tuple[str | None, str | None]:
    """(method, cache format that the checkpoint declares)."""
    config = raw.get("quantization_config") or raw.get("compression_config")
    if not config:
        return None, None
    method = str(config.get("quant_method", "unknown"))
    if method not in _LOADABLE:
        raise _refused(
            f"{name} is quantised by {method}, which vLLM 0.30.0 does not load; it loads "
            f"{', '.join(sorted(_LOADABLE))}"
        )
    scheme = config.get("kv_cache_scheme") or {}
    is_fp8 = scheme.get("num_bits") == 8 or config.get("kv_cache_quant_algo") == "FP8"
    return method, "fp8" if is_fp8 else None


def _packing(raw: RawConfig, method: str | None) -> dict[str, Any]:
    """Bits and groups of a format whose linears are packed alike all through."""
    if method not in _PACKED_ALIKE:
        return {}
    found = read_quantization(raw)
    if found is None or len(found.bits) != 1:
        return {}
    group = found.group_sizes[0] if found.group_sizes else None
    return {"packed_bits": found.bits[0], "packed_group": group}


def _latent(text: RawConfig) -> LatentAttention:
    rank = text.get("q_lora_rank")
    return LatentAttention(
        kv_lora_rank=int(text["kv_lora_rank"]),
        rope_dim=int(text["qk_rope_head_dim"]),
        nope_dim=int(text["qk_nope_head_dim"]),
        value_dim=int(text["v_head_dim"]),
        q_lora_rank=None if rank is None else int(rank),
    )


def _tower(raw: RawConfig, architecture: str) -> dict[str, Any]:
    vision = raw.get("vision_config") or {}
    needed = ("hidden_size", "intermediate_size", "num_hidden_layers", "image_size", "patch_size")
    if architecture != "Gemma3ForConditionalGeneration" or any(key not in vision for key in needed):
        return {"has_unknown_tower": True}
    return {
        "vision": VisionTower(
            hidden_size=int(vision["hidden_size"]),
            intermediate_size=int(vision["intermediate_size"]),
            num_layers=int(vision["num_hidden_layers"]),
            image_size=int(vision["image_size"]),
            patch_size=int(vision["patch_size"]),
            tokens_per_image=int(raw.get("mm_tokens_per_image") or 256),
        )
    }


def _own_traits(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What the engine knows of its own families."""
    return {
        "has_qkv_bias": bool(fields.get("attention_bias", False)),
        "has_output_bias": bool(fields.get("attention_output_bias", False)),
        "has_qk_norm": bool(fields.get("qk_norm", False)),
        "norms_per_layer": 4 if fields.get("has_sandwich_norms") else 2,
    }


def _own_windows(text: RawConfig) -> tuple[int | None, ...]:
    fields = family_fields(text["architectures"][0], text)
    windows: tuple[int | None, ...] = fields.get("layer_windows") or _full(text)
    return windows


def _every(default: int) -> Callable[[RawConfig], tuple[int | None, ...]]:
    """Each n-th layer has full attention, the others a window."""
    return lambda text: alternating_windows(text, default)


def _other_family(decoder: str, architecture: str, name: str) -> _Family:
    """A decoder without a rule of its own here: layers and experts in the usual words."""
    if decoder not in OTHER_DECODERS:
        raise _refused(
            f"{name} is a {architecture}, whose memory `stoker plan` cannot count; it knows "
            f"{', '.join(_FAMILIES)}, and {len(OTHER_DECODERS)} more decoders of transformers"
        )
    return _Family(plain_windows, {}, _any_experts)


def _full(text: RawConfig) -> tuple[int | None, ...]:
    return (None,) * int(text["num_hidden_layers"])


def _first(text: RawConfig, *names: str) -> int:
    """The value of the first key that is there; KeyError names the usual one."""
    for name in names:
        if text.get(name) is not None:
            return int(text[name])
    raise KeyError(names[0])


_NUM_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_PER_TOKEN = ("num_experts_per_tok", "moe_k", "moe_top_k", "moe_topk", "num_experts_per_token")


def _any_experts(text: RawConfig) -> Experts | None:
    """Of a decoder that may have some, in whichever words."""
    if any(all(text.get(name) is None for name in names) for names in (_NUM_EXPERTS, _PER_TOKEN)):
        return None
    shared = int(text.get("shared_expert_intermediate_size") or 0)
    return Experts(
        number=_first(text, *_NUM_EXPERTS),
        per_token=_first(text, *_PER_TOKEN),
        size=_first(text, "moe_intermediate_size", "intermediate_size"),
        shared_size=shared,
        first_dense_layers=int(text.get("first_k_dense_replace") or 0),
    )


def _mixtral_experts(text: RawConfig) -> Experts:
    return Experts(
        number=_first(text, "num_local_experts", "num_experts"),
        per_token=int(text["num_experts_per_tok"]),
        size=int(text["intermediate_size"]),
    )


def _gpt_oss_experts(text: RawConfig) -> Experts:
    return Experts(
        number=_first(text, "num_local_experts", "num_experts"),
        per_token=int(text["num_experts_per_tok"]),
        size=int(text["intermediate_size"]),
        has_bias=True,
        has_router_bias=True,
    )


def _qwen_experts(text: RawConfig) -> Experts:
    if text.get("mlp_only_layers") or int(text.get("decoder_sparse_step", 1)) != 1:
        raise _refused("a mixture of experts in some layers only is not counted for Qwen")
    return Experts(
        number=_first(text, "num_experts", "num_local_experts"),
        per_token=int(text["num_experts_per_tok"]),
        size=int(text["moe_intermediate_size"]),
        shared_size=int(text.get("shared_expert_intermediate_size") or 0),
        has_shared_gate=bool(text.get("shared_expert_intermediate_size")),
    )


def _deepseek_experts(text: RawConfig) -> Experts:
    size = int(text["moe_intermediate_size"])
    return Experts(
        number=_first(text, "n_routed_experts", "num_local_experts"),
        per_token=int(text["num_experts_per_tok"]),
        size=size,
        shared_size=size * int(text.get("n_shared_experts") or 0),
        has_router_bias=text["architectures"][0] == "DeepseekV3ForCausalLM",
        first_dense_layers=int(text.get("first_k_dense_replace") or 0),
    )


_QWEN2_BIAS = {"has_qkv_bias": True, "has_output_bias": False}

_FAMILIES: Mapping[str, _Family] = {
    **dict.fromkeys(supported_architectures(), _Family(_own_windows, {})),
    "Phi3ForCausalLM": _Family(plain_windows, {}),
    "LlavaForConditionalGeneration": _Family(plain_windows, {}),
    "Gemma2ForCausalLM": _Family(_every(2), {"norms_per_layer": 4}),
    "MixtralForCausalLM": _Family(plain_windows, {}, _mixtral_experts),
    "Qwen2MoeForCausalLM": _Family(qwen_windows, _QWEN2_BIAS, _qwen_experts),
    "Qwen3MoeForCausalLM": _Family(qwen_windows, {"has_qk_norm": True}, _qwen_experts),
    "GptOssForCausalLM": _Family(_every(2), {"has_sinks": True}, _gpt_oss_experts),
    "DeepseekV2ForCausalLM": _Family(_full, {}, _deepseek_experts),
    "DeepseekV3ForCausalLM": _Family(_full, {}, _deepseek_experts),
}


def _refused(message: str) -> StokerError:
    return UsageError(
        message, hint="give a model that is known, or measure: `stoker plan NAME --from-log FILE`"
    )
