"""--speculative-config: what it says, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.args import EngineArgs
from engine.env import HostDevice
from engine.errors import ConfigError
from engine.model_config import ModelConfig
from engine.speculative_config import SpeculativeConfig, parse_speculative_config
from tests.core.conftest import engine_config
from tests.tiny_model import write_tiny_llama


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ('{"method": "ngram"}', 1, 16),
        ('{"method": "ngram", "prompt_lookup_max": 5}', 5, 5),
        ('{"method": "ngram", "prompt_lookup_min": 2}', 2, 2),
        ('{"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}', 2, 4),
    ],
)
def test_lengths_of_the_lookup(text: str, least: int, most: int) -> None:
    assert parse_speculative_config(text) == SpeculativeConfig(
        prompt_lookup_min=least, prompt_lookup_max=most
    )


@pytest.mark.parametrize("text", [None, "null", " null\n"])
def test_nothing_is_asked_for(text: str | None) -> None:
    assert parse_speculative_config(text) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ngram", "is no JSON"),
        ('["ngram"]', "is no JSON object"),
        ('"null"', "is no JSON object"),
        ("{}", 'the method that this engine has is "ngram"'),
        ('{"method": "eagle", "model": "x"}', "'model' is not known"),
        ('{"method": "eagle"}', "which needs no second model"),
        ('{"method": "ngram", "num_speculative_tokens": 0}', "from 1 to 32"),
        ('{"method": "ngram", "num_speculative_tokens": true}', "from 1 to 32"),
        ('{"method": "ngram", "prompt_lookup_min": 5, "prompt_lookup_max": 4}', "swap them"),
    ],
)
def test_what_is_wrong_is_said(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_speculative_config(text)


NATIVE = {"dtype": "bfloat16", "speculative_config": None}


@pytest.mark.parametrize("flags", [{}, {"kernels": "native"}, {"quantization": "int8"}], ids=str)
def test_drafts_are_the_default_where_native_kernels_may_run(
    tmp_path: Path, flags: dict[str, object]
) -> None:
    folder = write_tiny_llama(tmp_path / "tiny")
    config = engine_config(folder, **NATIVE, **flags)
    assert config.scheduler.speculative == SpeculativeConfig(is_default=True)
    without = engine_config(folder, **{**NATIVE, **flags, "speculative_config": "null"})
    assert without.scheduler.speculative is None


@pytest.mark.parametrize(
    "flags",
    [
        {"dtype": "float32"},
        {"kernels": "reference"},
        {"kernels": "triton"},
        {"device": "cuda"},
        {"runner": "pooling"},
        {"tensor_parallel_size": 2},
        {"pipeline_parallel_size": 2},
        {"tensor_parallel_size": 2, "speculative_config": "null"},
    ],
    ids=str,
)
def test_elsewhere_nobody_gets_drafts_without_asking(
    tmp_path: Path, flags: dict[str, object]
) -> None:
    folder = write_tiny_llama(tmp_path / "tiny")
    assert engine_config(folder, **{**NATIVE, **flags}).scheduler.speculative is None


def test_transformers_code_guesses_nothing_without_asking(tmp_path: Path) -> None:
    model = ModelConfig.from_folder(write_tiny_llama(tmp_path / "tiny"), "tiny", "transformers")
    cpu = HostDevice("cpu", "cpu", None)
    config = EngineArgs(dtype="bfloat16").create_engine_config(model, cpu)
    assert config.scheduler.speculative is None


def test_ranks_do_not_guess(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "tiny")
    with pytest.raises(ConfigError, match="one rank only"):
        engine_config(folder, speculative_config='{"method": "ngram"}', tensor_parallel_size=2)
