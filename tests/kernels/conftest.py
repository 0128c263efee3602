from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


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
