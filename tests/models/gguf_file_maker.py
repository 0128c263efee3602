"""Writes tiny GGUF files from transformers models, the way llama.cpp's converter lays them out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "Ġ hello"]
SPECIAL = ["<|end|>", "<|start|>"]
ARCHITECTURES = {"mistral": "llama", "gemma3_text": "gemma3"}  # the others keep their names


def byte_tokens() -> list[str]:
    from tokenizers.pre_tokenizers import ByteLevel

    merged = [merge.replace(" ", "") for merge in MERGES]
    return [*SPECIAL, *sorted(ByteLevel.alphabet()), *merged]


def permuted(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Interleave the halves of each head."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return np.asarray(halves.swapaxes(1, 2).reshape(weight.shape))


def write_gguf(
    path: Path,
    model: Any,
    quantization: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    **fields: Any,
) -> Path:
    """`fields` change the file: architecture, those of `_add_tokenizer`, and `replaced`, which
    holds (data, type) of tensors that replace the model's or are added to them.
    """
    config = model.config
    architecture = ARCHITECTURES.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, fields.get("architecture", architecture))
    _add_shape(writer, config)
    _add_tokenizer(writer, fields)
    replaced = dict(fields.get("replaced", {}))
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = _stored_values(name, weight.numpy().astype(np.float32), architecture, config)
        kind = quantization if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        stored = gguf_name(name, architecture)
        replaced.setdefault(stored, (gguf.quants.quantize(values, kind), kind))
    for name, (data, kind) in replaced.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _stored_values(
    name: str, values: np.ndarray[Any, Any], architecture: str, config: Any
) -> np.ndarray[Any, Any]:
    if architecture == "llama" and "q_proj" in name:
        return permuted(values, config.num_attention_heads)
    if architecture == "llama" and "k_proj" in name:
        return permuted(values, config.num_key_value_heads)
    if architecture == "gemma3" and name.endswith("norm.weight"):
        return np.asarray(values + np.float32(1))
    return values


def _add_shape(writer: Any, config: Any) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if config.model_type in ("qwen3", "gemma3_text"):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if config.model_type in ("mistral", "gemma3_text"):
        writer.add_sliding_window(config.sliding_window)


def gguf_name(name: str, architecture: str) -> str:
    stem, _, kind = name.rpartition(".")
    names = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
    }
    if stem in names:
        return f"{names[stem]}.{kind}"
    _, _, number, rest = stem.split(".", 3)
    parts = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    if architecture == "gemma3":
        parts |= {
            "post_attention_layernorm": "post_attention_norm",
            "pre_feedforward_layernorm": "ffn_norm",
            "post_feedforward_layernorm": "post_ffw_norm",
        }
    return f"blk.{number}.{parts[rest]}.{kind}"


GEMMA_SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
GEMMA_USER_DEFINED = ["\n", "\n\n", "  ", "   ", "\t\t", "<image>"]
GEMMA_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.role }}\n"
    "{{ m.content }}<end_of_turn>\n{% endfor %}<start_of_turn>model\n"
)


def sentencepiece_tokens() -> list[str]:
    """Control tokens, the 256 bytes, and a few pieces."""
    return ["<unk>", "<s>", "</s>", *_BYTES, *_PIECES]


def gemma_tokens() -> list[str]:
    return [*GEMMA_SPECIAL, *_BYTES, *GEMMA_USER_DEFINED, *_PIECES]


_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_PIECES = ["▁", "h", "e", "l", "o", "he", "ll", "hell", "hello", "▁hello"]


def _add_sentencepiece(writer: Any, special: list[str], user_defined: list[str]) -> None:
    tokens = [*special, *_BYTES, *user_defined, *_PIECES]
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(number) for number in range(len(tokens))])
    kinds = [3] * len(special) + [6] * 256 + [4] * len(user_defined) + [1] * len(_PIECES)
    kinds[special.index("<unk>")] = 2
    writer.add_token_types(kinds)
    writer.add_unk_token_id(special.index("<unk>"))


def _add_gemma_tokenizer(writer: Any) -> None:
    _add_sentencepiece(writer, GEMMA_SPECIAL, GEMMA_USER_DEFINED)
    writer.add_pad_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(GEMMA_TEMPLATE)


def _add_tokenizer(writer: Any, fields: dict[str, Any]) -> None:
    """`tokenizer` is gpt2 (unless said otherwise), llama or gemma; `pre` and `eot` go with gpt2."""
    if fields.get("tokenizer") == "gemma":
        _add_gemma_tokenizer(writer)
        return
    if fields.get("tokenizer") == "llama":
        _add_sentencepiece(writer, ["<unk>", "<s>", "</s>"], [])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        return
    tokens = byte_tokens()
    writer.add_tokenizer_model(fields.get("tokenizer", "gpt2"))
    writer.add_tokenizer_pre(fields.get("pre", "smollm"))
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    if "eot" in fields:
        writer.add_eot_token_id(fields["eot"])
    writer.add_chat_template("{{ messages[0].content }}")
