from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from engine.frontend.tokenizer import Tokenizer
from tests.server.fake_core import FakeCore
from tests.server.serving import Served, serving
from tests.tiny_model import EOS

ANSWER = "Paris is the capital of France. 🗼 日本"


@pytest.fixture(scope="session")
def answer_ids(tiny_folder: Path) -> list[int]:
    """ANSWER and the end-of-sequence token."""
    return [*Tokenizer.from_folder(tiny_folder).encode(ANSWER, add_special_tokens=False), EOS]


@pytest.fixture
async def served(tiny_folder: Path, answer_ids: list[int]) -> AsyncGenerator[Served, None]:
    """The application without a socket, over a scripted core that answers ANSWER."""
    async with serving(tiny_folder, FakeCore(answer_ids), in_process=True) as running:
        yield running
