from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from app.errors import StokerError
from app.ops.server_registry import ServerRecord, ServerRegistry


def record(name: str, *, pid: int | None = None, create_time: float | None = None) -> ServerRecord:
    return ServerRecord(
        name=name,
        pid=os.getpid() if pid is None else pid,
        create_time=psutil.Process().create_time() if create_time is None else create_time,
        supervisor_pid=os.getpid(),
        url="http://127.0.0.1:8000",
        model="m",
        engine="stoker",
        log_path="/tmp/x.log",
    )


def test_a_running_server_is_listed_until_removed(tmp_path: Path) -> None:
    registry = ServerRegistry(tmp_path / "servers")
    registry.add(record("org/model"))

    assert registry.running() == (record("org/model"),)
    (path,) = (tmp_path / "servers").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    registry.remove("org/model")
    assert registry.running() == ()


def test_stale_and_damaged_records_are_deleted(tmp_path: Path) -> None:
    registry = ServerRegistry(tmp_path)
    registry.add(record("reused-pid", create_time=psutil.Process().create_time() - 3600))
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
