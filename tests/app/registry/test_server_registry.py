from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.errors import StokerError
from app.registry.server_registry import ServerRegistry
from tests.fakes.records import record


def test_a_running_server_is_listed_until_removed(tmp_path: Path) -> None:
    registry = ServerRegistry(tmp_path / "servers")
    mine = record("org/model")
    registry.add(mine)

    assert registry.running() == (mine,)
    (path,) = (tmp_path / "servers").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    registry.remove("org/model")
    assert registry.running() == ()


def test_stale_and_damaged_records_are_deleted(tmp_path: Path) -> None:
    registry = ServerRegistry(tmp_path)
    registry.add(record("reused-pid", identity="another"))
    registry.add(record("gone", pid=2**22 + 1))
    (tmp_path / "damaged.json").write_text('{"name": "x"')

    assert registry.running() == ()
    assert list(tmp_path.iterdir()) == []


def test_names_are_unique(tmp_path: Path) -> None:
    registry = ServerRegistry(tmp_path)
    assert registry.free_name(None, "tiny", 8000) == "tiny"
    registry.add(record("tiny"))

    assert registry.free_name(None, "tiny", 8001) == "tiny-8001"
    assert registry.free_name("other", "tiny", 8001) == "other"
    with pytest.raises(StokerError, match="already running"):
        registry.free_name("tiny", "tiny", 8001)


def test_a_clock_that_is_set_deletes_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = ServerRegistry(tmp_path)
    registry.add(record("tiny"))
    began = psutil.Process().create_time()
    monkeypatch.setattr(psutil.Process, "create_time", lambda process: began + 3.0)

    assert [one.name for one in registry.running()] == ["tiny"]


def test_what_is_no_record_harms_no_command(tmp_path: Path) -> None:
    registry = ServerRegistry(tmp_path)
    registry.add(record("tiny"))
    good = (tmp_path / "tiny.json").read_text()
    os.mkfifo(tmp_path / "fifo.json")
    (tmp_path / "folder.json").mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text(good.replace("tiny", "linked"))
    (tmp_path / "linked.json").symlink_to(elsewhere)
    mistyped: dict[str, Any] = {"pid": "1", "stop_s": None, "command": "word", "url": 7}
    for number, (key, value) in enumerate(mistyped.items()):
        document = {**json.loads(good), "name": f"wrong-{number}", key: value}
        (tmp_path / f"wrong-{number}.json").write_text(json.dumps(document))
    (tmp_path / "deep.json").write_text("[" * 100_000)

    assert [one.name for one in registry.running()] == ["tiny"]
    assert elsewhere.exists()


def test_folders_are_made_private_whoever_makes_them(tmp_path: Path) -> None:
    ServerRegistry(tmp_path / "state" / "run" / "servers").add(record("tiny"))

    for folder in ("state", "state/run", "state/run/servers"):
        assert (tmp_path / folder).stat().st_mode & 0o777 == 0o700
