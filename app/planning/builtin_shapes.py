"""Shapes that are known by name: what matters here of each model's public config.json.

No weights, no network. `app.planning.weight_counts` counts the weights of those in this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.planning.model_shapes import BuiltinShape
from app.planning.newer_shapes import NEWER_SHAPES, TIED, decoder_config


def _decoder(
    architecture: str,
    hidden: int,
    feed_forward: int,
    layers: int,
    heads: tuple[int, int],
    vocab: int,
    positions: int,
    **more: Any,
) -> dict[str, Any]:
    """A decoder_config with dense layers."""
    size = {"intermediate_size": feed_forward}
    return decoder_config(architecture, hidden, layers, heads, vocab, positions, **size, **more)


_LLAMA, _QWEN2, _QWEN3 = "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"
_MISTRAL = "MistralForCausalLM"
_HEAD_128 = {"head_dim": 128}
_SIGLIP = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "image_size": 896,
    "patch_size": 14,
}


def _gemma3(
    hidden: int, feed_forward: int, layers: int, heads: tuple[int, int], head_dim: int
) -> dict[str, Any]:
    text = _decoder(
        "Gemma3ForConditionalGeneration",
        hidden,
        feed_forward,
        layers,
        heads,
        262_208,
        131_072,
        head_dim=head_dim,
        sliding_window=1024,
        tie_word_embeddings=True,
    )
    return {
        "architectures": text["architectures"],
        "text_config": text,
        "vision_config": _SIGLIP,
    }


def _small_gemma3(hidden: int, feed_forward: int, layers: int) -> dict[str, Any]:
    more = {"head_dim": 256, "sliding_window": 512, **TIED}
    name = "Gemma3ForCausalLM"
    return _decoder(name, hidden, feed_forward, layers, (4, 1), 262_144, 32_768, **more)


_EMBEDDING_GEMMA = _decoder(
    "Gemma3TextModel",
    768,
    1152,
    24,
    (3, 1),
    262_144,
    2048,
    head_dim=256,
    sliding_window=512,
    tie_word_embeddings=True,
    use_bidirectional_attention=True,
)


def _qwen3_moe(hidden: int, expert: int, layers: int, heads: tuple[int, int]) -> dict[str, Any]:
    more = {
        **_HEAD_128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": expert,
    }
    return _decoder("Qwen3MoeForCausalLM", hidden, 6144, layers, heads, 151_936, 40_960, **more)


def _gpt_oss(layers: int, experts: int) -> dict[str, Any]:
    more = {
        "head_dim": 64,
        "num_local_experts": experts,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "attention_bias": True,
        "quantization_config": {"quant_method": "mxfp4"},
    }
    return _decoder("GptOssForCausalLM", 2880, 2880, layers, (64, 8), 201_088, 131_072, **more)


_DEEPSEEK_V3 = _decoder(
    "DeepseekV3ForCausalLM",
    7168,
    18_432,
    61,
    (128, 128),
    129_280,
    163_840,
    q_lora_rank=1536,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    n_routed_experts=256,
    num_experts_per_tok=8,
    n_shared_experts=1,
    moe_intermediate_size=2048,
    first_k_dense_replace=3,
    quantization_config={"quant_method": "fp8"},
)

_MIXTRAL = {
    **_decoder("MixtralForCausalLM", 4096, 14_336, 32, (32, 8), 32_000, 32_768),
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}

_COUNTED_SHAPES: Mapping[str, BuiltinShape] = {
    "smollm2-135m": BuiltinShape(
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        _decoder(_LLAMA, 576, 1536, 30, (9, 3), 49_152, 8192, **TIED),
    ),
    "llama-2-7b": BuiltinShape(
        "meta-llama/Llama-2-7b-chat-hf",
        _decoder(_LLAMA, 4096, 11_008, 32, (32, 32), 32_000, 4096, torch_dtype="float16"),
    ),
    "llama-3-8b": BuiltinShape(
        "meta-llama/Meta-Llama-3-8B-Instruct",
        _decoder(_LLAMA, 4096, 14_336, 32, (32, 8), 128_256, 8192),
    ),
    "llama-3.1-8b": BuiltinShape(
        "meta-llama/Llama-3.1-8B-Instruct",
        _decoder(_LLAMA, 4096, 14_336, 32, (32, 8), 128_256, 131_072),
    ),
    "llama-3.2-1b": BuiltinShape(
        "meta-llama/Llama-3.2-1B-Instruct",
        _decoder(_LLAMA, 2048, 8192, 16, (32, 8), 128_256, 131_072, head_dim=64, **TIED),
    ),
    "llama-3.2-3b": BuiltinShape(
        "meta-llama/Llama-3.2-3B-Instruct",
        _decoder(_LLAMA, 3072, 8192, 28, (24, 8), 128_256, 131_072, **_HEAD_128, **TIED),
    ),
    "llama-3.3-70b": BuiltinShape(
        "meta-llama/Llama-3.3-70B-Instruct",
        _decoder(_LLAMA, 8192, 28_672, 80, (64, 8), 128_256, 131_072),
    ),
    "qwen2-7b": BuiltinShape(
        "Qwen/Qwen2-7B-Instruct",
        _decoder(_QWEN2, 3584, 18_944, 28, (28, 4), 152_064, 32_768),
    ),
    "qwen2.5-0.5b": BuiltinShape(
        "Qwen/Qwen2.5-0.5B-Instruct",
        _decoder(_QWEN2, 896, 4864, 24, (14, 2), 151_936, 32_768, **TIED),
    ),
    "qwen2.5-1.5b": BuiltinShape(
        "Qwen/Qwen2.5-1.5B-Instruct",
        _decoder(_QWEN2, 1536, 8960, 28, (12, 2), 151_936, 32_768, **TIED),
    ),
    "qwen2.5-7b": BuiltinShape(
        "Qwen/Qwen2.5-7B-Instruct",
        _decoder(_QWEN2, 3584, 18_944, 28, (28, 4), 152_064, 32_768),
    ),
    "qwen2.5-coder-7b": BuiltinShape(
        "Qwen/Qwen2.5-Coder-7B-Instruct",
        _decoder(_QWEN2, 3584, 18_944, 28, (28, 4), 152_064, 32_768),
    ),
    "qwen2.5-3b": BuiltinShape(
        "Qwen/Qwen2.5-3B-Instruct",
        _decoder(_QWEN2, 2048, 11_008, 36, (16, 2), 151_936, 32_768, **TIED),
    ),
    "qwen2.5-14b": BuiltinShape(
        "Qwen/Qwen2.5-14B-Instruct",
        _decoder(_QWEN2, 5120, 13_824, 48, (40, 8), 152_064, 32_768),
    ),
    "qwen2.5-32b": BuiltinShape(
        "Qwen/Qwen2.5-32B-Instruct",
        _decoder(_QWEN2, 5120, 27_648, 64, (40, 8), 152_064, 32_768),
    ),
    "qwen2.5-72b": BuiltinShape(
        "Qwen/Qwen2.5-72B-Instruct",
        _decoder(_QWEN2, 8192, 29_568, 80, (64, 8), 152_064, 32_768),
    ),
    "qwen3-0.6b": BuiltinShape(
        "Qwen/Qwen3-0.6B",
        _decoder(_QWEN3, 1024, 3072, 28, (16, 8), 151_936, 40_960, **_HEAD_128, **TIED),
    ),
    "qwen3-1.7b": BuiltinShape(
        "Qwen/Qwen3-1.7B",
        _decoder(_QWEN3, 2048, 6144, 28, (16, 8), 151_936, 40_960, **_HEAD_128, **TIED),
    ),
    "qwen3-4b": BuiltinShape(
        "Qwen/Qwen3-4B",
        _decoder(_QWEN3, 2560, 9728, 36, (32, 8), 151_936, 40_960, **_HEAD_128, **TIED),
    ),
    "qwen3-8b": BuiltinShape(
        "Qwen/Qwen3-8B",
        _decoder(_QWEN3, 4096, 12_288, 36, (32, 8), 151_936, 40_960, **_HEAD_128),
    ),
    "qwen3-14b": BuiltinShape(
        "Qwen/Qwen3-14B",
        _decoder(_QWEN3, 5120, 17_408, 40, (40, 8), 151_936, 40_960, **_HEAD_128),
    ),
    "qwen3-32b": BuiltinShape(
        "Qwen/Qwen3-32B",
        _decoder(_QWEN3, 5120, 25_600, 64, (64, 8), 151_936, 40_960, **_HEAD_128),
    ),
    "qwen3-30b-a3b": BuiltinShape("Qwen/Qwen3-30B-A3B", _qwen3_moe(2048, 768, 48, (32, 4))),
    "qwen3-coder-30b-a3b": BuiltinShape(
        "Qwen/Qwen3-Coder-30B-A3B-Instruct",
        {**_qwen3_moe(2048, 768, 48, (32, 4)), "max_position_embeddings": 262_144},
    ),
    "qwen3-235b-a22b": BuiltinShape("Qwen/Qwen3-235B-A22B", _qwen3_moe(4096, 1536, 94, (64, 4))),
    "gemma-3-270m": BuiltinShape("google/gemma-3-270m-it", _small_gemma3(640, 2048, 18)),
    "embeddinggemma-300m": BuiltinShape("google/embeddinggemma-300m", _EMBEDDING_GEMMA),
    "gemma-3-1b": BuiltinShape("google/gemma-3-1b-it", _small_gemma3(1152, 6912, 26)),
    "gemma-3-4b": BuiltinShape("google/gemma-3-4b-it", _gemma3(2560, 10_240, 34, (8, 4), 256)),
    "gemma-3-12b": BuiltinShape("google/gemma-3-12b-it", _gemma3(3840, 15_360, 48, (16, 8), 256)),
    "gemma-3-27b": BuiltinShape("google/gemma-3-27b-it", _gemma3(5376, 21_504, 62, (32, 16), 128)),
    "mistral-7b": BuiltinShape(
        "mistralai/Mistral-7B-Instruct-v0.3",
        _decoder(_MISTRAL, 4096, 14_336, 32, (32, 8), 32_768, 32_768),
    ),
    "mistral-small-24b": BuiltinShape(
        "mistralai/Mistral-Small-24B-Instruct-2501",
        _decoder(_MISTRAL, 5120, 32_768, 40, (32, 8), 131_072, 32_768, **_HEAD_128),
    ),
    "mixtral-8x7b": BuiltinShape("mistralai/Mixtral-8x7B-Instruct-v0.1", _MIXTRAL),
    "phi-4-mini": BuiltinShape(
        "microsoft/Phi-4-mini-instruct",
        _decoder("Phi3ForCausalLM", 3072, 8192, 32, (24, 8), 200_064, 131_072, **TIED),
    ),
    "phi-4": BuiltinShape(
        "microsoft/phi-4", _decoder("Phi3ForCausalLM", 5120, 17_920, 40, (40, 10), 100_352, 16_384)
    ),
    "deepseek-v3": BuiltinShape("deepseek-ai/DeepSeek-V3", _DEEPSEEK_V3),
    "gpt-oss-20b": BuiltinShape("openai/gpt-oss-20b", _gpt_oss(24, 32)),
    "gpt-oss-120b": BuiltinShape("openai/gpt-oss-120b", _gpt_oss(36, 128)),
}

BUILTIN_SHAPES: Mapping[str, BuiltinShape] = {**_COUNTED_SHAPES, **NEWER_SHAPES}
