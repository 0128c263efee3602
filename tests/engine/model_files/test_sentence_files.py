"""Files of sentence-transformers, older and newer ones, and what is refused in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.errors import CorruptModelError, ModelError
from engine.model_files.sentence_files import DenseFile, SentenceFiles, read_sentence_files

TRANSFORMER = {"path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
DENSE = {"path": "2_Dense", "type": "sentence_transformers.models.Dense"}
NORMALIZE = {"path": "3_Normalize", "type": "sentence_transformers.models.Normalize"}


def write(folder: Path, files: dict[str, Any]) -> Path:
    defaults = {
        "modules.json": [TRANSFORMER, POOLING, DENSE, NORMALIZE],
        "1_Pooling/config.json": {
            "pooling_mode_cls_token": True,
            "pooling_mode_mean_tokens": False,
        },
        "2_Dense/config.json": {
            "in_features": 8,
            "out_features": 4,
            "activation_function": "torch.nn.modules.activation.Tanh",
        },
    }
    for name, value in {**defaults, **files}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(value))
    return folder


def test_a_folder_without_modules_has_nothing(tmp_path: Path) -> None:
    assert read_sentence_files(tmp_path) == SentenceFiles()


def test_older_words(tmp_path: Path) -> None:
    files = {
        "sentence_bert_config.json": {"max_seq_length": 128, "do_lower_case": True},
        "config_sentence_transformers.json": {
            "prompts": {"query": "q: ", "none": None},
            "default_prompt_name": "query",
        },
    }
    assert read_sentence_files(write(tmp_path, files)) == SentenceFiles(
        pooling_type="CLS",
        dense=(DenseFile(folder="2_Dense", in_features=8, out_features=4, activation="Tanh"),),
        prompts={"query": "q: ", "none": ""},
        default_prompt="query",
        max_seq_length=128,
        lowers_case=True,
    )


@pytest.mark.parametrize(("length", "expected"), [(96, 96), (10**30, None), (None, None)])
def test_newer_words(length: int | None, expected: int | None, tmp_path: Path) -> None:
    files = {
        "modules.json": [
            TRANSFORMER,
            {"path": "1_Pooling", "type": "sentence_transformers.sentence_transformer.Pooling"},
        ],
        "1_Pooling/config.json": {"pooling_mode": "weightedmean", "include_prompt": False},
        "tokenizer_config.json": {"model_max_length": length},
    }
    found = read_sentence_files(write(tmp_path, files))
    assert (found.pooling_type, found.pools_prompt, found.dense) == ("WEIGHTED_MEAN", False, ())
    assert found.max_seq_length == expected


BOTH = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}


@pytest.mark.parametrize(
    ("files", "kind", "message"),
    [
        ({"modules.json": {}}, CorruptModelError, "holds dict, not a list"),
        ({"modules.json": [1]}, CorruptModelError, "a module is 1, not an object"),
        ({"modules.json": [{"type": 3}]}, CorruptModelError, "type is 3, not a text"),
        ({"modules.json": []}, ModelError, "names no Pooling"),
        ({"modules.json": [TRANSFORMER, DENSE]}, ModelError, "Dense at place 1"),
        ({"modules.json": [{**TRANSFORMER, "path": "0_T"}]}, ModelError, "begins with Transformer"),
        (
            {"modules.json": [TRANSFORMER, {**POOLING, "path": "../../1_Pooling"}]},
            CorruptModelError,
            "leads out of the model's folder",
        ),
        (
            {"modules.json": [TRANSFORMER, POOLING, {"type": "x.LSTM", "path": "2"}]},
            ModelError,
            "module LSTM at place 2",
        ),
        ({"1_Pooling/config.json": BOTH}, ModelError, "pools by cls and mean"),
        ({"1_Pooling/config.json": {"pooling_mode": "best"}}, ModelError, "pools by best"),
        (
            {"1_Pooling/config.json": {"pooling_mode": [["mean"]]}},
            CorruptModelError,
            r"1_Pooling/config.json: pooling_mode is \['mean'\], not a text",
        ),
        (
            {"config_sentence_transformers.json": {"default_prompt_name": ["x"]}},
            CorruptModelError,
            r"default_prompt_name is \['x'\], not a text",
        ),
        ({"2_Dense/config.json": {"in_features": "8"}}, CorruptModelError, "in_features is '8'"),
        ({"2_Dense/config.json": {"in_features": 8}}, CorruptModelError, "out_features is None"),
        (
            {"2_Dense/config.json": {"activation_function": "os.system"}},
            ModelError,
            "sentence_embedding with system is not supported",
        ),
        (
            {"config_sentence_transformers.json": {"default_prompt_name": "query"}},
            CorruptModelError,
            "default_prompt_name is 'query', and its prompts are none",
        ),
        (
            {"config_sentence_transformers.json": {"prompts": {"a": 3}}},
            CorruptModelError,
            r"prompts\.a is 3, not a text",
        ),
        (
            {"sentence_bert_config.json": {"max_seq_length": 0}},
            CorruptModelError,
            "max_seq_length is 0",
        ),
    ],
)
def test_what_cannot_be_run_is_named(
    files: dict[str, Any], kind: type[ModelError], message: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=message):
        read_sentence_files(write(tmp_path, files))
