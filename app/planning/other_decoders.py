"""Decoders that `stoker plan` counts although our engine has no code of its own for them.

Which they are, the text decoder inside a model that also sees or hears, and their configurations in
the words of today.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.model_families import OWN_CACHE_DECODERS, TEXT_DECODERS, text_architecture
from engine.model_support import TRANSFORMERS_DECODERS

RawConfig = Mapping[str, Any]

_NOT_COMPARED = frozenset(
    (
        *("DeepseekV4ForCausalLM", "HrmTextForCausalLM", "Inkling2ForCausalLM"),
        *("Inkling2LoopForCausalLM", "InklingForCausalLM", "ZayaForCausalLM"),
    )
)
OTHER_DECODERS = (TRANSFORMERS_DECODERS | OWN_CACHE_DECODERS) - _NOT_COMPARED
"""The cache of each of them was compared with that of transformers."""

_OF_TEXT_PARTS: Mapping[str, str] = {
    **TEXT_DECODERS,
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "kimi_k2": "DeepseekV3ForCausalLM",
    "ernie4_5": "Ernie4_5ForCausalLM",
    "ernie4_5_moe": "Ernie4_5_MoeForCausalLM",
    "falcon_h1": "FalconH1ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma4_unified_text": "Gemma4UnifiedForCausalLM",
    "glm": "GlmForCausalLM",
    "glm4": "Glm4ForCausalLM",
    "glm4v_text": "Glm4ForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "glm4v_moe_text": "Glm4MoeForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "granite": "GraniteForCausalLM",
    "granitemoehybrid": "GraniteMoeHybridForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "lfm2_moe": "Lfm2MoeForCausalLM",
    "minimax_m3_vl_text": "MiniMaxM3VLForCausalLM",
    "ministral": "MinistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "nemotron_h": "NemotronHForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "olmo3": "Olmo3ForCausalLM",
    "phi": "PhiForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen3_vl_moe_text": "Qwen3MoeForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
}
"""By the model_type of the text part of a model that also sees or hears."""

_OLD_NAMES: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("n_embd", "d_model"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads", "attention_heads"),
    "max_position_embeddings": ("n_positions", "n_ctx", "max_seq_len", "model_max_length"),
    "intermediate_size": ("ffn_hidden_size", "ffn_dim", "n_inner"),
}
_WITHOUT_LIMIT = 2048
"""Positions of a model that names none, as Mamba's: what vLLM takes then."""


def decoder_of(architecture: str, text: RawConfig) -> str:
    """The architecture of the text decoder; `architecture` itself where that is one."""
    return text_architecture(architecture, text, _OF_TEXT_PARTS)


def in_plain_words(text: RawConfig) -> dict[str, Any]:
    """`text` with the names and numbers that every decoder has."""
    plain = {key: value for key, value in text.items() if value is not None}
    for name, old_names in _OLD_NAMES.items():
        given = [plain[old] for old in (name, *old_names) if old in plain]
        plain |= {name: given[0]} if given else {}
    sizes = plain.get("intermediate_size")
    if isinstance(sizes, list) and sizes:  # one for each layer
        plain["intermediate_size"] = max(sizes)
    pattern = plain.get("hybrid_layer_pattern")  # MiMo
    if pattern and "layer_types" not in plain:
        names = ("full_attention", "sliding_attention")
        plain["layer_types"] = [names[bool(kind)] for kind in pattern]
    if kinds := plain.get("layers_block_type") or plain.get("hybrid_override_pattern"):
        plain.setdefault("num_hidden_layers", len(kinds))  # Nemotron-H
    plain.setdefault("max_position_embeddings", _WITHOUT_LIMIT)
    if "num_attention_heads" not in plain:  # Mamba
        plain |= {"num_attention_heads": 1, "num_key_value_heads": 1}
    return {"intermediate_size": 4 * int(plain["hidden_size"]), **plain}
