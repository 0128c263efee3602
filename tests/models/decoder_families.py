"""A tiny random model of every decoder family of the installed transformers.

`decoder_families` names them by transformers' `model_type`, `tiny_decoder` builds one. Left out is
what only reads, translates, hears or sees, what has no cache of transformers' own, and what the
installed release cannot build.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

DOCUMENTED = "5.24."
"""The release of transformers whose families stand in docs/models.md."""

documented_release = pytest.mark.skipif(
    not transformers.__version__.startswith(DOCUMENTED),
    reason=f"docs/models.md is of transformers {DOCUMENTED}",
)

WINDOW = 48
SMALL: Mapping[str, Any] = {
    "vocab_size": 128,
    "unpadded_vocab_size": 128,
    "zero_expert_num": 2,
    "moe_topk": 2,
    "hidden_size": 64,
    "n_embd": 64,
    "d_model": 64,
    "intermediate_size": 96,
    "ffn_dim": 96,
    "ffn_hidden_size": 96,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "expert_ffn_hidden_size": 32,
    "num_hidden_layers": 4,
    "num_layers": 4,
    "n_layer": 4,
    "n_layers": 4,
    "num_attention_heads": 4,
    "attention_heads": 4,
    "num_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "n_positions": 512,
    "n_ctx": 512,
    "sliding_window": WINDOW,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "num_experts_per_token": 2,
    "num_expert_group": 1,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": 32,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "mamba_d_state": 16,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "ssm_state_size": 16,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 128,
    "index_head_dim": 16,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_MLA = {"head_dim": 8, "num_key_value_heads": 4}
_DELTA = {**_MLA, "linear_head_dim": 16, "linear_num_heads": 4}

_READERS = frozenset(  # encoders, which only their old use as decoders makes one
    {
        *("bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie"),
        *("megatron-bert", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer"),
        *("xlm-roberta", "xlm-roberta-xl", "xmod", "xlm", "cohere_compass_text"),
    }
)
_OF_SEVERAL_PARTS = frozenset(  # their text part has a name of its own, or they hear and see
    {
        *("blt", "dots3_note", "emu3", "fuyu", "gemma3", "gemma3n", "gemma4", "gemma4_assistant"),
        *("gemma4_unified", "gemma4_unified_assistant", "git", "got_ocr2", "llama4", "mllama"),
        *(
            "moshi",
            "moss_transcribe_diarize",
            "musicgen",
            "musicgen_melody",
            "phi4_multimodal",
            "qwen3_5",
            "qwen3_5_moe",
        ),
        *("qwen4_exp", "trocr"),
    }
)
_WITHOUT_CACHE = frozenset(
    {"cpmant", "ctrl", "openai-gpt", "recurrent_gemma", "reformer", "rwkv", "xlnet", "xlstm"}
)
_NOT_BUILT = frozenset({"dbrx", "dots3_note_text", "qwen4_exp_text", "zamba"})
_LEFT_OUT = _READERS | _OF_SEVERAL_PARTS | _WITHOUT_CACHE | _NOT_BUILT

_OF_OWN: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(("axk1", "axk2", "deepseek_v3", "deepseek_v32"), _MLA),
    **dict.fromkeys(("glm4_moe_lite", "glm_moe_dsa", "longcat_flash", "minicpm3"), _MLA),
    **dict.fromkeys(("sarvam_mla", "youtu"), _MLA),
    **dict.fromkeys(("kimi_linear", "bailing_hybrid"), _DELTA),
    "bamba": {"attn_layer_indices": [1, 3]},
    "deepseek_v2": {**_MLA, "num_experts_per_tok": 2},
    "codegen": {"rotary_dim": 8},
    "dots1": {
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "falcon_h1": {"mamba_d_ssm": 128},
    "gemma3n_text": {
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "gptj": {"rotary_dim": 8},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "mamba2": {"head_dim": 16, "num_heads": 8, "state_size": 16, "n_groups": 2},
    "ministral": {"head_dim": 16},
    "nemotron": {"num_key_value_heads": 2},
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "attention_head_dim": 32,
        "mamba_d_state": 16,
        "n_mamba_heads": 2,
        "mamba_headdim": 64,
    },
    "zaya": {"num_experts_per_tok": 1},
}


def decoder_families() -> list[str]:
    """The model types of all decoders here, in the alphabet's order."""
    return [
        name
        for name in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
        if name not in _LEFT_OUT and name in CONFIG_MAPPING and not _has_encoder(name)
    ]


def _has_encoder(model_type: str) -> bool:
    return bool(getattr(CONFIG_MAPPING[model_type], "is_encoder_decoder", False))


def tiny_config(model_type: str, **changes: Any) -> Any:
    """transformers' configuration of the family, as small as it can be."""
    config_class = CONFIG_MAPPING[model_type]
    known = config_class().to_dict()
    own = _OF_OWN.get(model_type, {})
    given = {k: v for k, v in SMALL.items() if known.get(k) is not None}
    if (kinds := known.get("layer_types")) and "layers_block_type" not in own:
        given["layer_types"] = _four_of(kinds)
    config = config_class(**{**given, **own, **changes})
    config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]]
    return config


def tiny_decoder(model_type: str, **changes: Any) -> Any:
    """A random model in float32, ready to run."""
    config = tiny_config(model_type, **changes)
    torch.manual_seed(7)
    model = getattr(transformers, config.architectures[0])(config)
    model.train(False)
    return model


def _four_of(kinds: list[str]) -> list[str]:
    """Every kind of layer once, and the last one again until there are four."""
    distinct = list(dict.fromkeys(kinds))
    return (distinct + [distinct[-1]] * 4)[: max(4, len(distinct))]
