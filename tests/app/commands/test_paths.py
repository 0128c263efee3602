from __future__ import annotations

import json
import os
import pwd
from pathlib import Path

import pytest

from app.cli import run
from app.paths import logs_dir, private_folder, records_dir
from app.planning.memory_ledger import open_ledger
from engine.env import models_dir


def test_paths_are_those_in_use_and_are_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STOKER_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path / "cache"))
    assert run(["paths", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in document["paths"]}

    assert list(tmp_path.iterdir()) == []
    assert document["schema"] == "stoker.paths"
    assert rows["models"] == {
        "name": "models",
        "path": str(models_dir()),
        "exists": False,
        "variable": "STOKER_CACHE_DIR",
    }
    assert rows["logs"]["path"] == str(logs_dir())
    assert rows["running servers"]["path"] == str(records_dir())
    assert rows["memory ledger"]["path"] == str(tmp_path / "state" / "memory-ledger.jsonl")
    assert open_ledger().read() == ((), 0)


def test_paths_for_people_and_scripts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path))
    (tmp_path / "models").mkdir()
    assert run(["paths", "--plain"]) == 0
    assert f"models\t{tmp_path}/models\tyes\n" in capsys.readouterr().out
    assert run(["paths"]) == 0
    out = capsys.readouterr().out
    assert f"{tmp_path}/models  ($STOKER_CACHE_DIR)" in out
    assert f"{tmp_path}/packed  (not there, $STOKER_CACHE_DIR)" in out


def test_every_folder_that_is_made_is_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_STATE_DIR", str(tmp_path / "a" / "state"))
    made = [logs_dir(), private_folder(records_dir())]

    for folder in (*made, tmp_path / "a", tmp_path / "a" / "state"):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_records_that_others_could_write_are_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STOKER_STATE_DIR", str(tmp_path))
    folder = private_folder(records_dir())
    folder.chmod(0o777)
    code = run(["ps"])
    error = capsys.readouterr().err

    assert code == 2
    assert f"records of servers are not read: {folder} can be changed by other users" in error
    assert f"chmod go-w {folder}" in error


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_service_keeps_its_folder_from_whoever_looks_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STOKER_STATE_DIR", str(tmp_path))
    os.chown(private_folder(records_dir()), 1, 1)
    assert run(["ps"]) == 2
    error = capsys.readouterr().err
    name = pwd.getpwuid(1).pw_name
    assert f"sudo -u {name} env STOKER_STATE_DIR={tmp_path} " in error
    assert "chown" not in error, "its service would not start again"
