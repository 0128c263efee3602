from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from app.errors import ExitCode, StokerError
from app.registry.endpoint_file import EndpointFile, endpoint_path, prepared_endpoint_path
from app.targets.servers import find_target, is_server_word


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOKER_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("STOKER_API_KEY", raising=False)
    return tmp_path / "state"


def endpoint(**changes: Any) -> EndpointFile:
    fields: dict[str, Any] = {
        "name": "tiny",
        "url": "http://node7:4321",
        "model": "m",
        "engine": "stoker",
    }
    return EndpointFile(**{**fields, **changes})


def test_a_job_is_found_by_its_number_with_its_key(state: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("of-this-job\n")
    path = prepared_endpoint_path("job:12345_7")
    assert path == state / "jobs" / "12345_7.json"
    endpoint(key_file=str(key)).write(path)

    assert path.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    target = find_target("job:12345_7")
    assert target.url == "http://node7:4321"
    assert target.api_key() == "of-this-job"
    assert is_server_word("job:12345_7")


def test_stoker_url_may_be_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint(url="http://node9:1").write(tmp_path / "here.json")
    monkeypatch.setenv("STOKER_URL", f"job:{tmp_path}/here.json")
    assert find_target(None).url == "http://node9:1"


def test_a_job_that_does_not_serve_is_said(state: Path) -> None:
    with pytest.raises(StokerError, match="job:9 does not serve") as caught:
        find_target("job:9")
    assert caught.value.exit_code == ExitCode.UNREACHABLE
    assert "squeue --me" in (caught.value.hint or "")
    assert not (state / "jobs").exists()


@pytest.mark.parametrize("word", ["job:", "job:..", "job:a b"])
def test_what_is_no_job_is_refused(word: str) -> None:
    with pytest.raises(StokerError, match="names no job"):
        endpoint_path(word)


def test_a_file_that_is_damaged_or_not_ours_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("[1")
    with pytest.raises(StokerError, match="it is no endpoint file"):
        find_target(f"job:{broken}")
    os.symlink(broken, tmp_path / "link.json")
    with pytest.raises(StokerError, match="cannot be used"):
        find_target(f"job:{tmp_path}/link.json")


def test_a_place_that_cannot_be_written_is_refused_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(StokerError, match="cannot be written") as caught:
        prepared_endpoint_path(str(tmp_path / "no" / "such" / "folder"))
    assert caught.value.exit_code == ExitCode.USAGE
