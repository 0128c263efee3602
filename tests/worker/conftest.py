"""What tests of a worker share: the kernels to run with, torch's threads restored, a tiny model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.kernels.conftest import logged
from tests.kernels.native_models import native_library
from tests.models.conftest import one_thread
from tests.tiny_model import write_tiny_llama
from tests.worker.kernel_choices import choice

__all__ = ["choice", "logged", "one_thread"]


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
