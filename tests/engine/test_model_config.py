from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.errors import CorruptModelError, ModelError, ModelNotFoundError
from engine.model_config import ModelConfig, RopeScaling

RAW: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "eos_token_id": 2,
}


def folder_with(tmp_path: Path, **changes: Any) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({**RAW, **changes}))
    return tmp_path


def test_defaults_come_from_the_other_fields(tmp_path: Path) -> None:
    config = ModelConfig.from_folder(folder_with(tmp_path), "name")
    assert (config.head_dim, config.num_key_value_heads, config.rope_theta) == (16, 4, 10_000.0)
    assert config.eos_token_ids == (2,)
    assert config.rope_scaling is None


def test_old_and_new_rope_keys_are_read(tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 128}
    old = ModelConfig.from_folder(
        folder_with(tmp_path, rope_theta=500_000.0, rope_scaling=scaling), "name"
    )
    new = ModelConfig.from_folder(
        folder_with(tmp_path, rope_parameters={**scaling, "rope_theta": 500_000.0}), "name"
    )
    assert old == new
    assert old.rope_scaling == RopeScaling(
        rope_type="llama3", factor=8.0, original_max_position_embeddings=128
    )


@pytest.mark.parametrize(
    ("rope", "expected"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}, 1024),
        ({"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32}, 256),
        ({"rope_type": "yarn", "factor": 4.0}, 256),
        ({"rope_type": "llama3", "factor": 4.0, "original_max_position_embeddings": 256}, 256),
    ],
)
def test_yarn_lengthens_the_context(rope: dict[str, Any], expected: int, tmp_path: Path) -> None:
    folder = folder_with(tmp_path, rope_scaling=rope)
    for implementation in ("stoker", "transformers"):
        config = ModelConfig.from_folder(folder, "name", implementation)
        assert config.max_position_embeddings == expected


def test_generation_config_names_the_end_tokens(tmp_path: Path) -> None:
    folder = folder_with(tmp_path)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7]}))
    assert ModelConfig.from_folder(folder, "name").eos_token_ids == (2, 7)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"architectures": []}, ModelError, r"\(none named\) is not supported"),
        ({"hidden_size": None}, CorruptModelError, "incomplete or damaged"),
        ({"intermediate_size": [64, 96]}, CorruptModelError, "not a whole number"),
        ({"quantization_config": {"quant_method": "hqq"}}, ModelError, "hqq"),
    ],
)
def test_what_cannot_be_served_is_named(
    tmp_path: Path, changes: dict[str, Any], error: type[ModelError], message: str
) -> None:
    with pytest.raises(error, match=message):
        ModelConfig.from_folder(folder_with(tmp_path, **changes), "name")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "silu and gelu_pytorch_tanh"),
        ({"rope_scaling": {"type": "longrope", "factor": 2}}, "'longrope' is not supported"),
    ],
)
def test_what_our_code_does_not_run_goes_to_transformers(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    folder = folder_with(tmp_path, **changes)
    with pytest.raises(ModelError, match=message):
        ModelConfig.from_folder(folder, "name", "stoker")
    found = ModelConfig.from_folder(folder, "name")

    assert found.implementation == "transformers"
    assert message.split()[-1] in (found.own_obstacle or "")


def test_layers_that_differ_are_no_damage(tmp_path: Path) -> None:
    changes = {"architectures": ["Gemma3nForConditionalGeneration"], "num_key_value_heads": [2, 1]}
    with pytest.raises(
        ModelError, match="num_key_value_heads differs from layer to layer"
    ) as caught:
        ModelConfig.from_folder(folder_with(tmp_path, **changes), "name")
    assert not isinstance(caught.value, CorruptModelError)


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="No such model folder"):
        ModelConfig.from_folder(tmp_path / "nothing", "name")
    with pytest.raises(ModelNotFoundError, match=r"no config\.json"):
        ModelConfig.from_folder(tmp_path, "name")
    (tmp_path / "config.json").write_text("{broken")
    with pytest.raises(CorruptModelError, match="not valid JSON"):
        ModelConfig.from_folder(tmp_path, "name")


def test_gemma_checkpoints_leave_out_what_the_family_has_in_common(tmp_path: Path) -> None:
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    }
    raw = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": text,
        "vision_config": {"hidden_size": 1152, "num_attention_heads": 16},
        "eos_token_id": [1, 106],
    }
    (tmp_path / "config.json").write_text(json.dumps(raw))
    config = ModelConfig.from_folder(tmp_path, "gemma")
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (8, 4, 256)
    assert (config.vocab_size, config.max_position_embeddings) == (262_208, 131_072)
    assert (config.rope_theta, config.local_rope_theta) == (1_000_000.0, 10_000.0)
    assert config.rope_scaling is not None
    assert config.rope_scaling.factor == 8.0
    assert config.layer_windows[:6] == (1024,) * 5 + (None,)
    assert config.layer_windows.count(None) == 5
    assert (config.query_scale, config.eos_token_ids) == (256**-0.5, (1, 106))
    assert config.tie_word_embeddings
