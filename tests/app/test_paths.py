"""Names of servers as names of files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import StokerError
from app.paths import file_name, logs_dir
from app.server_logs.log_sink import new_log_path
from app.targets.logs import find_logs


@given(st.text())
def test_any_name_makes_a_short_file_name(name: str) -> None:
    found = file_name(name)

    assert 0 < len(found) <= 60
    assert found.isascii()
    assert "/" not in found


def test_long_names_stay_apart() -> None:
    assert file_name("n" * 300) != file_name("n" * 299 + "m")
    assert file_name("qwen3-8b") == "qwen3-8b"


def test_the_log_of_a_long_name_is_found_by_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(StokerError, match="n" * 300):
        find_logs(["n" * 300])
    path = new_log_path(logs_dir(), "n" * 300)
    path.write_text("a line\n")

    (target,) = find_logs(["n" * 300])

    assert target.path == path
