"""Every test runs with state and runtime folders of its own; the model cache is the real one.

Sharing the cache is on purpose: the default model is downloaded and converted once per machine.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.places import ROOT, SHARED

# A busy machine is no failure. Whether a change lands must not depend on luck, so there the
# examples are the same each time; by hand they are new ones.
settings.register_profile("stoker", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("stoker")

_SECRETS = ("STOKER_API_KEY", "STOKER_API_KEY_FILE", "VLLM_API_KEY", "HF_TOKEN", "STOKER_URL")


def pytest_configure() -> None:
    """In the background or under nohup these are ignored, also by what tests start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def same_environment() -> Iterator[None]:
    """What a command that runs in this process sets for its children is not there for the next."""
    before = dict(os.environ)
    yield
    if (now := dict(os.environ)) != before:
        for name in now.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@pytest.fixture(autouse=True)
def private_folders(
    same_environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No test sees the user's servers, settings, logs, keys or the hub."""
    monkeypatch.setenv("STOKER_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("STOKER_CONFIG_FILE", str(tmp_path / "config.toml"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("STOKER_PACKED_CACHE_GIB", "0")  # models of tests would drive out the user's
    for name in _SECRETS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def repo_root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def shared_folder() -> Path:
    """Collected logs and metrics of real servers, beside the checkout; tests skip without it."""
    if not SHARED.is_dir():
        pytest.skip("no ../shared beside this checkout")
    return SHARED


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with random weights, one token per UTF-8 byte."""
    from tests.tiny_model import write_tiny_llama

    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))
