"""What is read of an adapter's folder, and what is refused, with the words for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from engine.errors import CorruptModelError, ModelError, ModelNotFoundError
from engine.lora_adapters import (
    AdapterModule,
    absolute_folder,
    parse_lora_module,
    read_adapter,
    require_fitting,
)
from engine.model_config import ModelConfig
from tests.tiny_model import write_tiny_llama

QUERY = "base_model.model.model.layers.0.self_attn.q_proj"


def write(folder: Path, tensors: dict[str, torch.Tensor] | None = None, **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 6, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps({**settings, **config}))
    save_file(tensors or matrices(QUERY), folder / "adapter_model.safetensors")
    return folder


def matrices(name: str, rank: int = 4, inputs: int = 64, outputs: int = 64) -> dict[str, Any]:
    return {
        f"{name}.lora_A.weight": torch.ones(rank, inputs),
        f"{name}.lora_B.weight": torch.ones(outputs, rank),
    }


def read(folder: Path) -> list[AdapterModule]:
    return read_adapter(folder, 16)


def test_a_plain_adapter(tmp_path: Path) -> None:
    (module,) = read(write(tmp_path / "a"))
    assert (module.name, module.place) == (
        "model.layers.0.self_attn.q_proj",
        (0, "self_attn.q_proj"),
    )
    assert (module.rank, module.inputs, module.outputs, module.scaling) == (4, 64, 64, 1.5)


@pytest.mark.parametrize(
    ("config", "scaling"),
    [
        ({"use_rslora": True}, 3.0),
        ({"alpha_pattern": {"q_proj": 8}}, 2.0),
        ({"alpha_pattern": {r"layers\.[0-2]\.self_attn\..*": 4}}, 1.0),
        ({"alpha_pattern": {"k_proj": 8}}, 1.5),
    ],
)
def test_the_scaling_is_that_of_peft(
    config: dict[str, Any], scaling: float, tmp_path: Path
) -> None:
    (module,) = read(write(tmp_path / "a", **config))
    assert module.scaling == scaling


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="No such adapter folder"):
        read(tmp_path / "none")
    with pytest.raises(ModelNotFoundError, match=r"no adapter_config.json"):
        read(tmp_path)
    folder = write(tmp_path / "a")
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(ModelNotFoundError, match=r"holds no adapter_model.safetensors"):
        read(folder)
    (folder / "adapter_model.bin").touch()
    with pytest.raises(ModelError, match="pickle"):
        read(folder)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"peft_type": "IA3"}, "of the kind IA3"),
        ({"use_dora": True}, "a DoRA"),
        ({"bias": "all"}, "changes biases"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save \['lm_head'\]"),
        ({"layer_replication": [[0, 2]]}, "repeats layers"),
        ({"target_parameters": ["experts.w"]}, "bare parameters"),
    ],
)
def test_other_kinds_are_refused(config: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=rf"{reason}.*only plain LoRA is supported"):
        read(write(tmp_path / "a", **config))


def test_a_rank_above_the_limit_says_what_to_type(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", matrices(QUERY, rank=32))
    with pytest.raises(ModelError, match=r"rank 32 .*above --max-lora-rank 16; .*-rank 32"):
        read(folder)


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({"base_model.model.lm_head.weight": torch.ones(2, 2)}, "none of a plain LoRA"),
        ({f"{QUERY}.lora_A.weight": torch.ones(4, 64)}, "only one of the two matrices"),
        (
            {**matrices(QUERY), f"{QUERY}.lora_B.weight": torch.ones(64, 5)},
            "have the ranks 4 and 5",
        ),
        ({**matrices(QUERY), f"{QUERY}.lora_B.weight": torch.ones(64)}, r"F32 \[64\]"),
        (matrices("a." * 150 + "b"), "a module in 301 characters; it can have 300"),
    ],
)
def test_damaged_tensors_are_named(
    tensors: dict[str, torch.Tensor], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=reason):
        read(write(tmp_path / "a", tensors))


@pytest.mark.parametrize("pattern", ["(.+)+x", "[", "a" * 300, "(x){9}", "x{99999999999}"])
def test_an_expression_that_could_hang_is_refused(pattern: str, tmp_path: Path) -> None:
    with pytest.raises(CorruptModelError, match="alpha_pattern"):
        read(write(tmp_path / "a", alpha_pattern={pattern: 3}))


@pytest.mark.parametrize("patterns", [["q_proj"], "q_proj", 3])
def test_patterns_that_are_no_object_are_refused(patterns: object, tmp_path: Path) -> None:
    with pytest.raises(CorruptModelError, match=r"alpha_pattern is .* not an object"):
        read(write(tmp_path / "a", alpha_pattern=patterns))


def test_a_folder_is_named_from_the_root_on() -> None:
    assert absolute_folder("~") == str(Path.home())
    for path in ("~nosuchuser/x", "~\0/x"):
        assert absolute_folder(path) == f"{Path.cwd()}/{path}"


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        (matrices(QUERY, inputs=128), r"maps 128 to 64 values, that of tiny 32 to 32"),
        (matrices(QUERY.replace(".0.", ".77.")), r"changes layer 77, and tiny has 2"),
        (matrices("base_model.model.lm_head"), r"changes lm_head, which .*these can: q_proj, k_pr"),
        (matrices(QUERY.replace("q_proj", "qkv")), r"self_attn.qkv, which LlamaForCausalLM"),
    ],
)
def test_an_adapter_of_another_model_is_refused(
    tensors: dict[str, torch.Tensor], reason: str, tmp_path: Path
) -> None:
    model = ModelConfig.from_folder(write_tiny_llama(tmp_path / "tiny"), "tiny")
    folder = write(tmp_path / "a", tensors)
    with pytest.raises(ModelError, match=reason):
        require_fitting(read(folder), model, folder)


def test_both_forms_of_a_module(tmp_path: Path) -> None:
    assert parse_lora_module("sql=/a=b") == ("sql", "/a=b")
    assert parse_lora_module('{"name": "x", "path": "p", "base_model_name": "m"}') == ("x", "p")
    for text in ("sql", "=p", "sql=", "{", '{"name": "x"}', '{"name": 1, "path": "p"}'):
        with pytest.raises(ValueError, match=r"NAME=PATH|no JSON object|must be texts"):
            parse_lora_module(text)
