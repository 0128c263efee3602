from __future__ import annotations

from pathlib import Path

import pytest

from engine.frontend.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def byte_tokenizer(tiny_folder: Path) -> Tokenizer:
    """One token per UTF-8 byte, so every non-ASCII character comes in pieces."""
    return Tokenizer.from_folder(tiny_folder)
