from __future__ import annotations

from pathlib import Path

import pytest

from engine.frontend.tokenizer import Tokenizer
from tests.tiny_model import EOS, write_tiny_llama

ANSWER = "Paris is the capital of France. 🗼 日本"


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def answer_ids(tiny_folder: Path) -> list[int]:
    """ANSWER and the end-of-sequence token."""
    return [*Tokenizer.from_folder(tiny_folder).encode(ANSWER, add_special_tokens=False), EOS]
