"""Decoders that `stoker plan` counts although our engine has no code of its own for them.

Which they are, the text decoder inside a model that also sees or hears, and their configurations in
the words of today.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.model_support import TRANSFORMERS_DECODERS

RawConfig = Mapping[str, Any]

_MORE_DECODERS = frozenset(
    {
        *("AXK1ForCausalLM", "AXK2ForCausalLM", "BailingHybridForCausalLM", "BambaForCausalLM"),
        *("BloomForCausalLM", "DeepseekV32ForCausalLM", "DiffLlamaForCausalLM", "DogeForCausalLM"),
        *("Dots1ForCausalLM", "FalconForCausalLM", "FalconH1ForCausalLM", "FalconMambaForCausalLM"),
        *("FlintForCausalLM", "GPTNeoForCausalLM", "GPTNeoXJapaneseForCausalLM"),
        *("Gemma3nForCausalLM", "Gemma4ForCausalLM", "Gemma4UnifiedForCausalLM"),
        *("Glm4MoeLiteForCausalLM", "GlmMoeDsaForCausalLM", "GraniteMoeHybridForCausalLM"),
        *("GraniteMoeSWAForCausalLM", "GraniteSWAForCausalLM", "HYV4ForCausalLM"),
        *("JambaForCausalLM", "JetMoeForCausalLM", "KimiLinearForCausalLM"),
        *("LaraMiniForCausalLM", "Lfm2ForCausalLM", "Lfm2MoeForCausalLM", "Lfm3ForCausalLM"),
        *("Llama4ForCausalLM", "LongcatFlashForCausalLM", "Mamba2ForCausalLM", "MambaForCausalLM"),
        *("MiMoV2FlashForCausalLM", "MiniCPM3ForCausalLM", "MiniMaxForCausalLM", "MptForCausalLM"),
        *("NemotronHForCausalLM", "OlmoHybridForCausalLM", "PhimoeForCausalLM"),
        *("Qwen3NextForCausalLM", "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"),
        *("VaultGemmaForCausalLM", "XGLMForCausalLM", "YoutuForCausalLM", "Zamba2ForCausalLM"),
    }
)
OTHER_DECODERS = TRANSFORMERS_DECODERS | _MORE_DECODERS
"""The cache of each of them was compared with that of transformers."""

_OF_TEXT_PARTS: Mapping[str, str] = {
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "kimi_k2": "DeepseekV3ForCausalLM",
    "ernie4_5": "Ernie4_5ForCausalLM",
    "ernie4_5_moe": "Ernie4_5_MoeForCausalLM",
    "falcon_h1": "FalconH1ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma3n_text": "Gemma3nForCausalLM",
    "gemma4_text": "Gemma4ForCausalLM",
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
    "llama": "LlamaForCausalLM",
    "llama4_text": "Llama4ForCausalLM",
    "minimax_m3_vl_text": "MiniMaxM3VLForCausalLM",
    "ministral": "MinistralForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "nemotron_h": "NemotronHForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "olmo3": "Olmo3ForCausalLM",
    "phi": "PhiForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2_vl": "Qwen2ForCausalLM",
    "qwen2_vl_text": "Qwen2ForCausalLM",
    "qwen2_5_vl": "Qwen2ForCausalLM",
    "qwen2_5_vl_text": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_vl_text": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen3_vl_moe_text": "Qwen3MoeForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
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
    if architecture.endswith("ForConditionalGeneration"):
        return _OF_TEXT_PARTS.get(str(text.get("model_type")), architecture)
    return architecture


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
