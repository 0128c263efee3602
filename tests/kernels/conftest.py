from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.kernels.native_models import native_library


@pytest.fixture(scope="module")
def native_set() -> None:
    """Tests that ask for it are skipped, with the reason, where the native set cannot run."""
    native_library()


@pytest.fixture
def logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[pytest.LogCaptureFixture]:
    """Each record once, whether or not an earlier test has configured the engine's logger."""
    logger = logging.getLogger("engine")
    monkeypatch.setattr(logger, "propagate", False)
    logger.addHandler(caplog.handler)
    caplog.set_level("INFO", "engine")
    yield caplog
    logger.removeHandler(caplog.handler)
