"""What the model families do differently from Llama, read from the raw config.json.

One function per family gives the fields of ModelConfig that it sets. Defaults that a family's
checkpoints leave out are those of transformers' configuration class. Standard library only.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import CorruptModelError, ModelError

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionConfig:
    """What a prompt's images are to a model with a tower: square pictures that become tokens.

    Each is `tokens_per_image` tokens of the id `image_token_id`, which see each other whole.
    """

    image_token_id: int
    tokens_per_image: int
    image_size: int  # pixels of a side
    num_channels: int = 3

    @property
    def pixel_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of what the tower takes."""
        return self.num_channels, self.image_size, self.image_size

    @property
    def pixel_bytes(self) -> int:
        """Memory of one image as the tower takes it, in float32."""
        return math.prod(self.pixel_shape) * 4


_GEMMA3_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131_072,
    "query_pre_attn_scalar": 256,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}


_GEMMA_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 256_000,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
_GEMMA2_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 256_000,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
_GPT_OSS_DEFAULTS: Mapping[str, Any] = {
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
    "attention_bias": True,
    "sliding_window": 128,
    "rope_theta": 150_000.0,
    "num_experts_per_tok": 4,
    "max_position_embeddings": 131_072,
}
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "GemmaForCausalLM": _GEMMA_DEFAULTS,
    "Gemma2ForCausalLM": _GEMMA2_DEFAULTS,
    "Gemma3ForCausalLM": _GEMMA3_DEFAULTS,
    "Gemma3ForConditionalGeneration": _GEMMA3_DEFAULTS,
    "GptOssForCausalLM": _GPT_OSS_DEFAULTS,
    "MixtralForCausalLM": {
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "num_experts_per_tok": 2,
    },
}
"""What a null means too; a value of these families that is not here must be given."""
_DEFAULT_CAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}  # of Gemma 2


@dataclass(frozen=True, slots=True)
class ExpertLayers:
    """Feed-forward blocks of which each token goes through a few, the same in every layer.

    The shares of a token's experts add up to 1 where `is_normalized`; else they are shares among
    all of them.
    """

    number: int
    per_token: int
    is_normalized: bool = True
    has_router_bias: bool = False


def text_part(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The text decoder's settings of a checkpoint that also sees or hears."""
    part = raw.get("text_config")
    if not isinstance(part, dict):
        return dict(raw)
    # An outer null says nothing about the part.
    outer = {key: value for key, value in raw.items() if value is not None}
    whole = {key: outer[key] for key in ("architectures",) if key in outer}
    return {**outer, **part, **whole}


TEXT_DECODERS: Mapping[str, str] = {
    "gemma3n_text": "Gemma3nForCausalLM",
    "gemma4_text": "Gemma4ForCausalLM",
    "llama": "LlamaForCausalLM",
    "llama4_text": "Llama4ForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2_5_vl": "Qwen2ForCausalLM",
    "qwen2_5_vl_text": "Qwen2ForCausalLM",
    "qwen2_vl": "Qwen2ForCausalLM",
    "qwen2_vl_text": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen3_vl_text": "Qwen3ForCausalLM",
}
"""What writes the text of a model that also sees, by the `model_type` of that part."""

_LLAMA_SIZES: Mapping[str, Any] = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
}
_MISTRAL_SIZES: Mapping[str, Any] = {
    **_LLAMA_SIZES,
    "intermediate_size": 14_336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
}


def text_architecture(
    architecture: str, raw: Mapping[str, Any], decoders: Mapping[str, str] = TEXT_DECODERS
) -> str:
    """The decoder that a model which also sees has for its text; else `architecture` itself.

    `raw` is the text part; `decoders` go by its `model_type`.
    """
    if not architecture.endswith("ForConditionalGeneration"):
        return architecture
    return decoders.get(str(raw.get("model_type")), architecture)


def with_default_sizes(architecture: str, raw: Mapping[str, Any]) -> dict[str, Any]:
    """`raw` with the sizes that the text part of a model which also sees may leave out."""
    sizes = {"LlamaForCausalLM": _LLAMA_SIZES, "MistralForCausalLM": _MISTRAL_SIZES}
    return {**sizes.get(architecture, {}), **raw}


def with_family_defaults(architecture: str, raw: Mapping[str, Any]) -> dict[str, Any]:
    """`raw` with the values that this family's checkpoints may leave out."""
    if architecture == "GemmaForCausalLM" and raw.get("hidden_act") == "gelu":
        raw = {**raw, "hidden_act": None}  # the first checkpoints say so, and mean the default
    if architecture in _DEFAULTS:
        given = {key: value for key, value in raw.items() if value is not None}
        return {**raw, **_DEFAULTS[architecture], **given}
    if architecture == "Qwen3ForCausalLM":
        return {"head_dim": 128, **raw}
    return dict(raw)


def family_fields(architecture: str, raw: Mapping[str, Any]) -> Fields:
    """Fields of ModelConfig in which `architecture` differs from a plain decoder."""
    return _FAMILIES[architecture](raw) if architecture in _FAMILIES else {}


def require_own_code(architecture: str, raw: Mapping[str, Any]) -> None:
    """Raise ModelError for a checkpoint of a family of ours that our code would get wrong."""
    if raw.get("model_type") == "exaone":
        raise ModelError("The tensors of an exaone checkpoint have names of their own.")
    if raw.get("use_bidirectional_attention"):
        raise ModelError(f"{architecture} with attention both ways (an encoder) is not supported.")
    if architecture == "Qwen3MoeForCausalLM" and not _all_have_experts(raw):
        raise ModelError("Layers without experts among those with some are not supported.")
    if architecture == "GptOssForCausalLM":
        _require_usual_gate(raw)
    if not architecture.startswith("Gemma3"):
        return
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        if raw.get(name):
            raise ModelError(f"{name} {raw[name]!r} is not supported for Gemma 3; only null is.")


def _all_have_experts(raw: Mapping[str, Any]) -> bool:
    return not raw.get("mlp_only_layers") and int(raw.get("decoder_sparse_step") or 1) == 1


def _require_usual_gate(raw: Mapping[str, Any]) -> None:
    for name, usual in (("swiglu_alpha", 1.702), ("swiglu_limit", 7.0)):
        if float(raw.get(name) or usual) != usual:
            raise ModelError(f"{name} {raw[name]!r} is not supported for gpt-oss; {usual} is.")


_REPLACEABLE_LAYERS = frozenset(("full_attention", "sliding_attention"))
_MANY_POSITIONS = 32_768  # of models that have no limit of their own
OWN_CACHE_DECODERS = frozenset(
    (
        *("AXK2ForCausalLM", "BailingHybridForCausalLM", "BambaForCausalLM", "BloomForCausalLM"),
        *("DeepseekV32ForCausalLM", "DeepseekV4ForCausalLM", "DiffLlamaForCausalLM"),
        *("DogeForCausalLM", "FalconForCausalLM", "FalconH1ForCausalLM"),
        *("FalconMambaForCausalLM", "GPTNeoForCausalLM", "GPTNeoXJapaneseForCausalLM"),
        *("GlmMoeDsaForCausalLM", "GraniteMoeHybridForCausalLM", "HYV4ForCausalLM"),
        *("HrmTextForCausalLM", "Inkling2ForCausalLM", "Inkling2LoopForCausalLM"),
        *("InklingForCausalLM", "JambaForCausalLM", "JetMoeForCausalLM", "KimiLinearForCausalLM"),
        *("LaraMiniForCausalLM", "Lfm2ForCausalLM", "Lfm2MoeForCausalLM", "Lfm3ForCausalLM"),
        *("Llama4ForCausalLM", "LongcatFlashForCausalLM", "Mamba2ForCausalLM"),
        *("MambaForCausalLM", "MiMoV2FlashForCausalLM", "MiniMaxForCausalLM", "MptForCausalLM"),
        *("NemotronHForCausalLM", "OlmoHybridForCausalLM", "Qwen3NextForCausalLM"),
        *("Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM", "XGLMForCausalLM", "Zamba2ForCausalLM"),
        "ZayaForCausalLM",
    )
)
"""Decoders with a state between tokens, or with attention that cannot be ours: they keep what they
need in transformers' own cache.
"""


NOT_CARRIED: Mapping[str, str] = {
    "DoryForCausalLM": "with a cache it gives other logits than without one",
}
"""Decoders whose answers would be wrong by so little that a 16-bit check would not see it."""


def keeps_own_cache(architecture: str, raw: Mapping[str, Any]) -> bool:
    """Whether transformers' cache holds what a request keeps, in place of blocks of ours."""
    kinds = raw.get("layer_types") or raw.get("layers_block_type") or ()
    named = text_architecture(architecture, raw)
    return named in OWN_CACHE_DECODERS or not _REPLACEABLE_LAYERS.issuperset(kinds)


def with_any_layers(raw: Mapping[str, Any]) -> dict[str, Any]:
    """`raw` with what decoders without attention leave out; none of it counts for their cache."""
    kinds = raw.get("layer_types") or raw.get("layers_block_type") or (None,)
    heads = {"num_attention_heads", "num_key_value_heads", "head_dim"}
    return {
        "num_hidden_layers": len(kinds),
        "max_position_embeddings": _MANY_POSITIONS,
        **{key: value for key, value in raw.items() if key not in heads},
        "num_attention_heads": 1,
    }


_ENCODER_TYPES = frozenset(
    (
        *("albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra"),
        *("ernie", "eurobert", "jina_embeddings_v3", "modernbert", "mpnet", "nomic_bert"),
        *("roberta", "xlm-roberta", "xlm-roberta-xl"),
    )
)
"""Words of `model_type` whose attention looks both ways."""

_PADDED_POSITIONS = frozenset(("camembert", "mpnet", "roberta", "xlm-roberta", "xlm-roberta-xl"))
"""Those whose first positions, up to the padding token's id, stand for no token."""

_ENCODER_HEADS = ("Model", "ForMaskedLM", "ForPreTraining")


def is_encoder(architecture: str, raw: Mapping[str, Any]) -> bool:
    """Whether every token sees all others: such a model makes vectors, and no text.

    ModelError for one with a head that gives something else.
    """
    kind = raw.get("model_type")
    if kind not in _ENCODER_TYPES:
        return bool(raw.get("use_bidirectional_attention")) and "Gemma3" in architecture
    if not architecture.endswith(_ENCODER_HEADS):
        raise ModelError(
            f"{architecture} has a head for something else than text or embeddings; of {kind} "
            f"models this engine serves those that end in {', '.join(_ENCODER_HEADS)}."
        )
    return True


def encoder_positions(raw: Mapping[str, Any]) -> int:
    """How many tokens a text may have; `raw` in today's words."""
    positions = int(raw["max_position_embeddings"])
    if raw.get("model_type") not in _PADDED_POSITIONS:
        return positions
    return max(1, positions - int(raw.get("pad_token_id", 1)) - 1)


def with_head(architecture: str) -> str:
    """The name that a decoder without its head (`Qwen3Model`) has with it."""
    if not architecture.endswith("Model") or architecture.endswith("LMHeadModel"):
        return architecture
    return f"{architecture.removesuffix('Model').removesuffix('Text')}ForCausalLM"


def is_supported(architecture: str) -> bool:
    """Whether this engine has code of its own for the architecture."""
    return architecture in _FAMILIES


def supported_architectures() -> list[str]:
    """Names as config.json writes them."""
    return list(_FAMILIES)


def _llama(raw: Mapping[str, Any]) -> Fields:
    has_bias = bool(raw.get("attention_bias", False))
    return {"attention_bias": has_bias, "attention_output_bias": has_bias}


def _mistral(raw: Mapping[str, Any]) -> Fields:
    window = raw.get("sliding_window")
    return {"layer_windows": (window,) * int(raw["num_hidden_layers"])}


def _qwen2(raw: Mapping[str, Any]) -> Fields:
    return {"attention_bias": True, "layer_windows": qwen_windows(raw)}


def _qwen3(raw: Mapping[str, Any]) -> Fields:
    return {**_llama(raw), "qk_norm": True, "layer_windows": qwen_windows(raw)}


def _gemma3(raw: Mapping[str, Any]) -> Fields:
    return {
        **_gemma(raw),
        "qk_norm": True,
        "has_sandwich_norms": True,
        "query_scale": float(raw["query_pre_attn_scalar"]) ** -0.5,
        "local_rope_theta": _local_theta(raw),
        "layer_windows": gemma3_windows(raw),
    }


def _seeing_gemma3(raw: Mapping[str, Any]) -> Fields:
    tower = raw.get("vision_config")
    if not tower:
        return _gemma3(raw)
    vision = VisionConfig(
        image_token_id=int(raw.get("image_token_index") or raw.get("image_token_id") or 262_144),
        tokens_per_image=int(raw.get("mm_tokens_per_image") or 256),
        image_size=int(tower.get("image_size") or 224),
        num_channels=int(tower.get("num_channels") or 3),
    )
    return {**_gemma3(raw), "vision": vision}


def _seed_oss(raw: Mapping[str, Any]) -> Fields:
    return {
        "attention_bias": bool(raw.get("attention_bias", True)),
        "attention_output_bias": bool(raw.get("attention_out_bias", False)),
    }


def _ministral(raw: Mapping[str, Any]) -> Fields:
    return {"layer_windows": plain_windows(raw)}


def _gemma(raw: Mapping[str, Any]) -> Fields:
    return {
        **_llama(raw),
        "norm_offset": 1.0,
        "embedding_scale": float(raw["hidden_size"]) ** 0.5,
    }


def _gemma2(raw: Mapping[str, Any]) -> Fields:
    caps = {**_DEFAULT_CAPS, **raw}  # null is none
    return {
        **_gemma(raw),
        "has_sandwich_norms": True,
        "query_scale": float(raw["query_pre_attn_scalar"]) ** -0.5,
        "layer_windows": alternating_windows(raw, 2),
        "score_cap": _cap(caps["attn_logit_softcapping"]),
        "logit_cap": _cap(caps["final_logit_softcapping"]),
    }


def _cap(value: Any) -> float | None:
    return float(value) if value else None


def _mixtral(raw: Mapping[str, Any]) -> Fields:
    return {**_mistral(raw), "experts": _experts(raw, is_normalized=True)}


def _qwen3_moe(raw: Mapping[str, Any]) -> Fields:
    window = raw.get("sliding_window") if raw.get("use_sliding_window") else None
    return {
        **_llama(raw),
        "qk_norm": True,
        "layer_windows": (window,) * int(raw["num_hidden_layers"]),
        "intermediate_size": int(raw["moe_intermediate_size"]),
        "experts": _experts(raw, is_normalized=bool(raw.get("norm_topk_prob", False))),
    }


def _gpt_oss(raw: Mapping[str, Any]) -> Fields:
    return {
        **_llama(raw),
        "layer_windows": alternating_windows(raw, 2),
        "has_sinks": True,
        "mlp_bias": True,
        "hidden_act": "clamped_swiglu",
        "experts": dataclasses.replace(_experts(raw, is_normalized=True), has_router_bias=True),
    }


def _experts(raw: Mapping[str, Any], *, is_normalized: bool) -> ExpertLayers:
    number = int(raw.get("num_local_experts") or raw["num_experts"])
    per_token = int(raw["num_experts_per_tok"])
    if not 1 <= per_token <= number:
        raise CorruptModelError(
            f"config.json: num_experts_per_tok {per_token} is not from 1 to the {number} experts."
        )
    return ExpertLayers(number, per_token, is_normalized)


_FAMILIES: dict[str, Callable[[Mapping[str, Any]], Fields]] = {
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "GemmaForCausalLM": _gemma,
    "Gemma2ForCausalLM": _gemma2,
    "Gemma3ForCausalLM": _gemma3,
    "Gemma3ForConditionalGeneration": _seeing_gemma3,
    "GptOssForCausalLM": _gpt_oss,
    "MinistralForCausalLM": _ministral,
    "MixtralForCausalLM": _mixtral,
    "Qwen3MoeForCausalLM": _qwen3_moe,
    "SeedOssForCausalLM": _seed_oss,
}


def qwen_windows(raw: Mapping[str, Any]) -> tuple[int | None, ...]:
    """The window of each layer: from `max_window_layers` on, where windows are used at all."""
    layers = int(raw["num_hidden_layers"])
    window = raw.get("sliding_window") if raw.get("use_sliding_window") else None
    first = int(raw.get("max_window_layers", 28))
    return _windows(raw, window, [number >= first for number in range(layers)])


def alternating_windows(raw: Mapping[str, Any], every: int) -> tuple[int | None, ...]:
    """Each layer has a window but for each `every`-th, unless the checkpoint says otherwise."""
    pattern = raw.get("sliding_window_pattern") or raw.get("_sliding_window_pattern")
    every = int(pattern or every)
    layers = int(raw["num_hidden_layers"])
    is_sliding = [bool((number + 1) % every) for number in range(layers)]
    return _windows(raw, raw.get("sliding_window"), is_sliding)


def gemma3_windows(raw: Mapping[str, Any]) -> tuple[int | None, ...]:
    """Each sixth layer has full attention."""
    return alternating_windows(raw, 6)


def plain_windows(raw: Mapping[str, Any]) -> tuple[int | None, ...]:
    """One window for all layers, or for those that `layer_types` names, as transformers has it."""
    layers = int(raw["num_hidden_layers"])
    is_used = bool(raw.get("use_sliding_window", True))
    window = raw.get("sliding_window") if is_used or raw.get("layer_types") else None
    return _windows(raw, window, [True] * layers)


def kv_sources(raw: Mapping[str, Any]) -> tuple[int, ...]:
    """Each layer's own number, but for the last `num_kv_shared_layers`: these read the keys and
    values of the last layer of their kind before them (Gemma 3n and 4).
    """
    layers, shared = int(raw["num_hidden_layers"]), int(raw.get("num_kv_shared_layers") or 0)
    kinds = raw.get("layer_types") or []
    first = layers - shared
    own = range(min(first, len(kinds)))
    last_of = {kinds[number]: number for number in own}
    return tuple(
        number if number < first or number >= len(kinds) else last_of.get(kinds[number], number)
        for number in range(layers)
    )


def _windows(
    raw: Mapping[str, Any], window: int | None, is_sliding: list[bool]
) -> tuple[int | None, ...]:
    """`layer_types` of newer checkpoints is the answer; else the family's rule."""
    kinds = raw.get("layer_types")
    if kinds:
        is_sliding = [kind == "sliding_attention" for kind in kinds]
    return tuple(window if sliding else None for sliding in is_sliding)


def _local_theta(raw: Mapping[str, Any]) -> float:
    rope = raw.get("rope_parameters") or {}
    local = rope.get("sliding_attention") or {}
    return float(local.get("rope_theta", raw["rope_local_base_freq"]))
