"""The shape of a small dense model; no file behind it."""

from __future__ import annotations

from engine.model_config import ModelConfig

MODEL = ModelConfig(
    path="/models/m",
    served_name="m",
    architecture="LlamaForCausalLM",
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=4096,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    rope_scaling=None,
    tie_word_embeddings=True,
    attention_bias=False,
    mlp_bias=False,
    dtype="bfloat16",
    eos_token_ids=(2,),
)
