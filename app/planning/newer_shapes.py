"""Shapes of models whose layers differ: hybrids, shared caches, latent attention, Gemma 4.

Their weights are not counted layer by layer: a RecordedSize is what transformers builds from the
same numbers, which a test repeats.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.planning.model_shapes import BuiltinShape, RecordedSize

TIED: Mapping[str, Any] = {"tie_word_embeddings": True}
_FULL, _SLIDING, _LINEAR = "full_attention", "sliding_attention", "linear_attention"
_GRANITE_ATTENTION = (5, 15, 25, 35)
_LFM2_ATTENTION = (2, 5, 8, 10, 12, 14)


def _each(layers: int, others: str, every: int) -> list[str]:
    """Full attention in each `every`-th layer."""
    return [others if (number + 1) % every else _FULL for number in range(layers)]


def _at(layers: int, others: str, full: tuple[int, ...]) -> list[str]:
    return [_FULL if number in full else others for number in range(layers)]


def decoder_config(
    architecture: str,
    hidden: int,
    layers: int,
    heads: tuple[int, int],
    vocab: int,
    positions: int,
    **more: Any,
) -> dict[str, Any]:
    """A config.json with the keys that every decoder has; `heads` are (query, key-value)."""
    return {
        "architectures": [architecture],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        **more,
    }


def _seeing(architecture: str, kind: str, text: dict[str, Any]) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "tie_word_embeddings": text["tie_word_embeddings"],
        "text_config": {**text, "model_type": kind},
        "vision_config": {"model_type": kind.removesuffix("_text")},
    }


def _gemma4(
    hidden: int,
    inner: int,
    layers: int,
    heads: tuple[int, int],
    positions: int,
    every: int,
    **more: Any,
) -> dict[str, Any]:
    text = decoder_config(
        "Gemma4ForCausalLM",
        hidden,
        layers,
        heads,
        262_144,
        positions,
        intermediate_size=inner,
        head_dim=256,
        global_head_dim=512,
        layer_types=_each(layers, _SLIDING, every),
        **TIED,
        **more,
    )
    return _seeing("Gemma4ForConditionalGeneration", "gemma4_text", text)


_PER_LAYER: Mapping[str, Any] = {
    "sliding_window": 512,
    "hidden_size_per_layer_input": 256,
    "vocab_size_per_layer_input": 262_144,
}
_NARROW_GLOBALS: Mapping[str, Any] = {
    "sliding_window": 1024,
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0,
}


def _qwen35(hidden: int, layers: int, heads: tuple[int, int, int], **more: Any) -> dict[str, Any]:
    """`heads` are those of attention, of its keys, and of the linear layers' values."""
    is_mixture = "num_experts" in more
    name = "Qwen3_5Moe" if is_mixture else "Qwen3_5"
    text = decoder_config(
        f"{name}ForCausalLM",
        hidden,
        layers,
        heads[:2],
        248_320,
        262_144,
        head_dim=256,
        layer_types=_each(layers, _LINEAR, 4),
        linear_conv_kernel_dim=4,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_num_key_heads=16,
        linear_num_value_heads=heads[2],
        **{"mamba_ssm_dtype": "float32", **more},
    )
    kind = "qwen3_5_moe_text" if is_mixture else "qwen3_5_text"
    return _seeing(f"{name}ForConditionalGeneration", kind, text)


def _qwen35_experts(number: int, size: int, chosen: int) -> dict[str, Any]:
    return {
        "num_experts": number,
        "moe_intermediate_size": size,
        "shared_expert_intermediate_size": size,
        "num_experts_per_tok": chosen,
    }


def _granite_hybrid(hidden: int, heads: tuple[int, int], mamba_heads: int, **more: Any) -> Any:
    return decoder_config(
        "GraniteMoeHybridForCausalLM",
        hidden,
        40,
        heads,
        100_352,
        131_072,
        layer_types=_at(40, _LINEAR, _GRANITE_ATTENTION),
        mamba_n_heads=mamba_heads,
        mamba_d_head=64,
        mamba_d_state=128,
        mamba_d_conv=4,
        mamba_n_groups=1,
        mamba_expand=2,
        **TIED,
        **more,
    )


def _nemotron_h(
    hidden: int,
    heads: tuple[int, int],
    mamba: tuple[int, int],
    pattern: str,
    positions: int,
    **more: Any,
) -> dict[str, Any]:
    return decoder_config(
        "NemotronHForCausalLM",
        hidden,
        len(pattern),
        heads,
        131_072,
        positions,
        hybrid_override_pattern=pattern,
        head_dim=128,
        mamba_num_heads=mamba[0],
        mamba_head_dim=mamba[1],
        ssm_state_size=128,
        n_groups=8,
        conv_kernel=4,
        **more,
    )


def _latent(rank: int, rope: int, nope: int, value: int, query: int | None) -> Mapping[str, Any]:
    return {
        "kv_lora_rank": rank,
        "qk_rope_head_dim": rope,
        "qk_nope_head_dim": nope,
        "v_head_dim": value,
        "q_lora_rank": query,
    }


NEWER_SHAPES: Mapping[str, BuiltinShape] = {
    "gemma-4-e2b": BuiltinShape(
        "google/gemma-4-E2B-it",
        _gemma4(
            *(1536, 6144, 35, (8, 1), 131_072, 5),
            num_kv_shared_layers=20,
            use_double_wide_mlp=True,
            **_PER_LAYER,
        ),
        RecordedSize(5_104_297_504, tower=475_728_160),
    ),
    "gemma-4-e4b": BuiltinShape(
        "google/gemma-4-E4B-it",
        _gemma4(*(2560, 10_240, 42, (8, 2), 131_072, 6), num_kv_shared_layers=18, **_PER_LAYER),
        RecordedSize(7_941_100_832, tower=478_087_456),
    ),
    "gemma-4-26b-a4b": BuiltinShape(
        "google/gemma-4-26B-A4B-it",
        _gemma4(
            *(2816, 2112, 30, (16, 8), 262_144, 6),
            num_global_key_value_heads=2,
            enable_moe_block=True,
            num_experts=128,
            top_k_experts=8,
            moe_intermediate_size=704,
            **_NARROW_GLOBALS,
        ),
        RecordedSize(25_805_933_872, experts=22_837_985_280, tower=572_792_112),
    ),
    "gemma-4-31b": BuiltinShape(
        "google/gemma-4-31B-it",
        _gemma4(
            *(5376, 21_504, 60, (32, 16), 262_144, 6),
            num_global_key_value_heads=4,
            **_NARROW_GLOBALS,
        ),
        RecordedSize(31_273_086_512, tower=575_741_232),
    ),
    "qwen3-next-80b-a3b": BuiltinShape(
        "Qwen/Qwen3-Next-80B-A3B-Instruct",
        decoder_config(
            *("Qwen3NextForCausalLM", 2048, 48, (16, 2), 151_936, 262_144),
            intermediate_size=5632,
            head_dim=256,
            full_attention_interval=4,
            linear_conv_kernel_dim=4,
            linear_key_head_dim=128,
            linear_value_head_dim=128,
            linear_num_key_heads=16,
            linear_num_value_heads=32,
            **_qwen35_experts(512, 512, 10),
        ),
        RecordedSize(79_674_391_296, experts=77_309_411_328),
    ),
    "qwen3.5-4b": BuiltinShape(
        "Qwen/Qwen3.5-4B",
        _qwen35(2560, 32, (16, 4, 32), intermediate_size=9216, **TIED),
        RecordedSize(4_654_682_352, tower=448_931_056),
    ),
    "qwen3.5-9b": BuiltinShape(
        "Qwen/Qwen3.5-9B",
        _qwen35(4096, 32, (16, 4, 32), intermediate_size=12_288),
        RecordedSize(9_409_813_744, tower=456_010_480),
    ),
    "qwen3.5-27b": BuiltinShape(
        "Qwen/Qwen3.5-27B",
        _qwen35(5120, 64, (24, 4, 48), intermediate_size=17_408),
        RecordedSize(27_356_728_560, tower=460_730_096),
    ),
    "qwen3.5-35b-a3b": BuiltinShape(
        "Qwen/Qwen3.5-35B-A3B",
        _qwen35(2048, 40, (16, 2, 32), **_qwen35_experts(256, 512, 8)),
        RecordedSize(35_107_181_936, experts=32_212_254_720, tower=446_571_248),
    ),
    "qwen3.6-35b-a3b": BuiltinShape(
        "Qwen/Qwen3.6-35B-A3B",
        _qwen35(2048, 40, (16, 2, 32), **_qwen35_experts(256, 512, 8)),
        RecordedSize(35_107_181_936, experts=32_212_254_720, tower=446_571_248),
    ),
    "qwen3.6-27b": BuiltinShape(
        "Qwen/Qwen3.6-27B",
        _qwen35(5120, 64, (24, 4, 48), intermediate_size=17_408),
        RecordedSize(27_356_728_560, tower=460_730_096),
    ),
    "qwen3.5-122b-a10b": BuiltinShape(
        "Qwen/Qwen3.5-122B-A10B",
        _qwen35(3072, 48, (32, 2, 64), **_qwen35_experts(256, 1024, 8)),
        RecordedSize(122_562_817_776, experts=115_964_116_992, tower=451_290_864),
    ),
    "qwen3.5-397b-a17b": BuiltinShape(
        "Qwen/Qwen3.5-397B-A17B",
        _qwen35(4096, 60, (32, 2, 64), **_qwen35_experts(512, 1024, 10)),
        RecordedSize(396_802_360_816, experts=386_547_056_640, tower=456_010_480),
    ),
    "glm-4.5-air": BuiltinShape(
        "zai-org/GLM-4.5-Air",
        decoder_config(
            *("Glm4MoeForCausalLM", 4096, 46, (96, 8), 151_552, 131_072),
            intermediate_size=10_944,
            head_dim=128,
            moe_intermediate_size=1408,
            n_routed_experts=128,
            num_experts_per_tok=8,
            n_shared_experts=1,
            first_k_dense_replace=1,
            attention_bias=True,
        ),
        RecordedSize(106_852_245_504, experts=99_656_663_040),
    ),
    "glm-4.7-flash": BuiltinShape(
        "zai-org/GLM-4.7-Flash",
        decoder_config(
            *("Glm4MoeLiteForCausalLM", 2048, 47, (20, 20), 154_880, 202_752),
            intermediate_size=10_240,
            moe_intermediate_size=1536,
            n_routed_experts=64,
            num_experts_per_tok=4,
            n_shared_experts=1,
            first_k_dense_replace=1,
            **_latent(512, 64, 192, 256, 768),
        ),
        RecordedSize(29_943_390_976, experts=27_783_069_696),
    ),
    "kimi-linear-48b-a3b": BuiltinShape(
        "moonshotai/Kimi-Linear-48B-A3B-Instruct",
        decoder_config(
            *("KimiLinearForCausalLM", 2304, 27, (32, 32), 163_840, 1_048_576),
            intermediate_size=9216,
            moe_intermediate_size=1024,
            num_experts=256,
            num_experts_per_token=8,
            layer_types=[*_each(26, _LINEAR, 4), _FULL],
            linear_head_dim=128,
            linear_num_heads=32,
            linear_conv_kernel_dim=4,
            **_latent(512, 64, 128, 128, None),
        ),
        RecordedSize(49_122_675_072, experts=47_110_422_528),
    ),
    "deepseek-v2-lite": BuiltinShape(
        "deepseek-ai/DeepSeek-V2-Lite-Chat",
        decoder_config(
            *("DeepseekV2ForCausalLM", 2048, 27, (16, 16), 102_400, 163_840),
            intermediate_size=10_944,
            moe_intermediate_size=1408,
            n_routed_experts=64,
            num_experts_per_tok=6,
            n_shared_experts=2,
            first_k_dense_replace=1,
            **_latent(512, 64, 128, 128, None),
        ),
        RecordedSize(15_706_484_224, experts=14_394_851_328),
    ),
    "minicpm3-4b": BuiltinShape(
        "openbmb/MiniCPM3-4B",
        decoder_config(
            *("MiniCPM3ForCausalLM", 2560, 62, (40, 40), 73_448, 32_768),
            intermediate_size=6400,
            **{**TIED, **_latent(256, 32, 64, 64, 768)},
        ),
        RecordedSize(4_073_875_968),
    ),
    "llama-4-scout": BuiltinShape(
        "meta-llama/Llama-4-Scout-17B-16E-Instruct",
        _seeing(
            "Llama4ForConditionalGeneration",
            "llama4_text",
            decoder_config(
                *("Llama4ForCausalLM", 5120, 48, (40, 8), 202_048, 10_485_760),
                intermediate_size=8192,
                intermediate_size_mlp=16_384,
                head_dim=128,
                num_local_experts=16,
                num_experts_per_tok=1,
                attention_chunk_size=8192,
            ),
        ),
        RecordedSize(108_225_039_360, experts=96_636_764_160, tower=455_178_240),
    ),
    "jamba-mini": BuiltinShape(
        "ai21labs/AI21-Jamba-Mini-1.7",
        decoder_config(
            *("JambaForCausalLM", 4096, 32, (32, 8), 65_536, 262_144),
            intermediate_size=14_336,
            num_experts=16,
            num_experts_per_tok=2,
            expert_layer_period=2,
            expert_layer_offset=1,
            attn_layer_period=8,
            attn_layer_offset=4,
            mamba_d_state=16,
            mamba_d_conv=4,
            mamba_expand=2,
            mamba_dt_rank=256,
        ),
        RecordedSize(51_570_323_328, experts=45_097_156_608),
    ),
    "bamba-9b": BuiltinShape(
        "ibm-ai-platform/Bamba-9B-v2",
        decoder_config(
            *("BambaForCausalLM", 4096, 32, (32, 8), 128_256, 262_144),
            intermediate_size=14_336,
            attn_layer_indices=[9, 18, 27],
            mamba_n_heads=128,
            mamba_d_head=64,
            mamba_d_state=128,
            mamba_d_conv=4,
            mamba_n_groups=1,
            mamba_expand=2,
        ),
        RecordedSize(9_780_235_392),
    ),
    "granite-4.0-h-tiny": BuiltinShape(
        "ibm-granite/granite-4.0-h-tiny",
        _granite_hybrid(
            *(1536, (12, 4), 48),
            intermediate_size=512,
            num_local_experts=64,
            num_experts_per_tok=6,
            shared_intermediate_size=1024,
        ),
        RecordedSize(6_939_037_248, experts=6_039_797_760),
    ),
    "granite-4.0-h-small": BuiltinShape(
        "ibm-granite/granite-4.0-h-small",
        _granite_hybrid(
            *(4096, (32, 8), 128),
            intermediate_size=768,
            num_local_experts=72,
            num_experts_per_tok=10,
            shared_intermediate_size=1536,
        ),
        RecordedSize(32_207_337_984, experts=27_179_089_920),
    ),
    "nemotron-h-8b": BuiltinShape(
        "nvidia/Nemotron-H-8B-Base-8K",
        _nemotron_h(
            *(4096, (32, 8), (128, 64)),
            "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
            8192,
            intermediate_size=21_504,
        ),
        RecordedSize(8_100_852_736),
    ),
    "nemotron-nano-9b-v2": BuiltinShape(
        "nvidia/NVIDIA-Nemotron-Nano-9B-v2",
        _nemotron_h(
            *(4480, (40, 8), (128, 80)),
            "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
            131_072,
            intermediate_size=15_680,
        ),
        RecordedSize(8_888_227_328),
    ),
    "nemotron-3-nano-30b-a3b": BuiltinShape(
        "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        _nemotron_h(
            *(2688, (32, 2), (64, 64)),
            "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
            262_144,
            intermediate_size=1856,
            n_routed_experts=128,
            num_experts_per_tok=6,
            moe_intermediate_size=1856,
            moe_shared_expert_intermediate_size=3712,
            n_shared_experts=1,
        ),
        RecordedSize(31_577_937_344, experts=29_374_808_064),
    ),
    "falcon-h1-7b": BuiltinShape(
        "tiiuae/Falcon-H1-7B-Instruct",
        decoder_config(
            *("FalconH1ForCausalLM", 3072, 44, (12, 2), 130_049, 262_144),
            intermediate_size=12_288,
            head_dim=128,
            mamba_d_ssm=3072,
            mamba_n_heads=24,
            mamba_d_head=128,
            mamba_d_state=256,
            mamba_d_conv=4,
            mamba_n_groups=1,
        ),
        RecordedSize(7_585_519_712),
    ),
    "lfm2-1.2b": BuiltinShape(
        "LiquidAI/LFM2-1.2B",
        decoder_config(
            *("Lfm2ForCausalLM", 2048, 16, (32, 8), 65_536, 128_000),
            intermediate_size=12_288,
            layer_types=_at(16, "conv", _LFM2_ATTENTION),
            conv_L_cache=3,
            **TIED,
        ),
        RecordedSize(1_170_340_608),
    ),
}
