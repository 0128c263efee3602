"""What a start tells other starts of its memory, and what it does where they cannot agree."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from engine.core.engine_core import EngineCore
from engine.core.memory_turn import announce_start, logger, memory_turn
from engine.env import device_starts
from tests.core.conftest import engine_config


def own_file() -> dict[str, Any] | None:
    path = device_starts("cpu").folder / f"{os.getpid()}.json"
    return json.loads(path.read_text()) if path.exists() else None


def test_an_engine_says_what_it_may_hold_until_it_ends(tiny_folder: Path) -> None:
    core = EngineCore(engine_config(tiny_folder))
    start = own_file()
    cache_bytes = core.capacity.num_blocks * core.spec.bytes_per_block
    core.shutdown()

    assert start is not None
    assert start["state"] == "running"
    assert start["held_bytes"] > cache_bytes
    assert own_file() is None


def test_one_that_fails_holds_nothing_and_another_can_start(tiny_folder: Path) -> None:
    with pytest.raises(Exception, match="kv-cache-memory-bytes"):
        EngineCore(engine_config(tiny_folder, kv_cache_memory_bytes=1 << 60))
    assert own_file() is None
    EngineCore(engine_config(tiny_folder)).shutdown()


def test_a_start_is_announced_as_one_that_waits_for_ram() -> None:
    announce_start()
    announced = own_file()
    with memory_turn("cuda"):
        assert own_file() is None, "it will not take RAM"

    assert announced is not None
    assert announced["state"] == "waiting"


def test_without_a_folder_to_agree_in_a_start_warns_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STOKER_STATE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr(logger, "propagate", False)
    logger.addHandler(caplog.handler)
    try:
        announce_start()
        with memory_turn("cpu") as reserve:
            reserve(1)
    finally:
        logger.removeHandler(caplog.handler)

    assert "Other starts are not waited for while the free RAM is measured" in caplog.text
