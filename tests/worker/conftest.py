"""What tests of the native set in a worker share: torch's threads restored, one tiny model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.kernels.native_models import native_library
from tests.tiny_model import write_tiny_llama


@pytest.fixture
def native_threads() -> Iterator[None]:
    """The native set takes torch all threads but one."""
    native_library()
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose sizes the native set can run."""
    target = tmp_path_factory.mktemp("models") / "tiny"
    return write_tiny_llama(target, hidden_size=128)
