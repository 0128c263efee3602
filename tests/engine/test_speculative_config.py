"""--speculative-config: what it says, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import ConfigError
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


def test_without_the_flag_nothing_is_guessed() -> None:
    assert parse_speculative_config(None) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ngram", "is no JSON"),
        ('["ngram"]', "is no JSON object"),
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


def test_ranks_do_not_guess(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "tiny")
    with pytest.raises(ConfigError, match="one rank only"):
        engine_config(folder, speculative_config='{"method": "ngram"}', tensor_parallel_size=2)
