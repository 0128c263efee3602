"""Writes tiny GGUF files from a transformers Llama, the way llama.cpp's converter lays them out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "Ġ hello"]
SPECIAL = ["<|end|>", "<|start|>"]


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
    """`fields` replace or add tokenizer entries: pre, tokenizer, rope_scaling."""
    config = model.config
    writer = gguf.GGUFWriter(path, fields.get("architecture", "llama"))
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    _add_tokenizer(writer, fields)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = weight.numpy().astype(np.float32)
        if "q_proj" in name:
            values = permuted(values, config.num_attention_heads)
        if "k_proj" in name:
            values = permuted(values, config.num_key_value_heads)
        kind = quantization if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(gguf_name(name), gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_name(name: str) -> str:
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
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    return f"blk.{number}.{parts[rest]}.{kind}"


def sentencepiece_tokens() -> list[str]:
    """Control tokens, the 256 bytes, and a few pieces."""
    pieces = ["▁", "h", "e", "l", "o", "he", "ll", "hell", "hello", "▁hello"]
    return ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]


def _add_sentencepiece(writer: Any) -> None:
    tokens = sentencepiece_tokens()
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(number) for number in range(len(tokens))])
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259))
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def _add_tokenizer(writer: Any, fields: dict[str, Any]) -> None:
    if fields.get("tokenizer") == "llama":
        _add_sentencepiece(writer)
        return
    tokens = byte_tokens()
    writer.add_tokenizer_model(fields.get("tokenizer", "gpt2"))
    writer.add_tokenizer_pre(fields.get("pre", "smollm"))
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_chat_template("{{ messages[0].content }}")
