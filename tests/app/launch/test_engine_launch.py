from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from app.errors import ExitCode, StokerError
from app.launch.engine_launch import require_free_port, require_free_uds
from app.registry.server_registry import open_registry
from tests.fakes.records import record


def test_the_stoker_server_that_holds_a_port_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_STATE_DIR", str(tmp_path))
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(StokerError, match=rf"in use by .*pid {os.getpid()}"):
            require_free_port("127.0.0.1", port)
        mine = replace(record("tiny"), url=f"http://127.0.0.1:{port}")
        open_registry().add(mine)
        with pytest.raises(StokerError, match="in use by the Stoker server tiny") as caught:
            require_free_port("127.0.0.1", port)
    assert str(caught.value.hint).endswith("or end it: stoker stop tiny")


def _refusal(path: Path | str) -> StokerError:
    with pytest.raises(StokerError) as caught:
        require_free_uds(str(path))
    return caught.value


def test_a_socket_file_that_cannot_be_made_is_refused_with_what_to_do(tmp_path: Path) -> None:
    absent = _refusal(tmp_path / "my sockets" / "it.sock")
    assert "its folder is not there" in str(absent)
    assert absent.hint == f"mkdir -p -m 700 '{tmp_path}/my sockets'"

    (tmp_path / "notes").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("notes", "link", "."):
        assert "is there and no socket" in str(_refusal(tmp_path / name))
    assert (tmp_path / "notes").read_text() == "mine"

    fitting = f"/{'x' * 106}"
    assert "not there" not in str(_refusal(f"{fitting}y"))
    assert "has 108 bytes, and the kernel takes 107" in str(_refusal(f"{fitting}y"))
    assert "kernel" in str(_refusal(f"/{'é' * 54}")), "bytes, not characters"


def test_a_socket_that_somebody_listens_on_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "it.sock"
    with socket.socket(socket.AF_UNIX) as holder:
        holder.bind(str(path))
        holder.listen()
        error = _refusal(path)
        assert error.exit_code == ExitCode.ENGINE_FAILED_TO_START
        assert "in use by a server that answers" in str(error)
    require_free_uds(str(path))  # as a killed server leaves it


@pytest.mark.skipif(os.geteuid() == 0, reason="root may make a file everywhere")
def test_a_folder_that_is_not_ours_is_said(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert "may not make a file" in str(_refusal(tmp_path / "it.sock"))
    tmp_path.chmod(0o700)
