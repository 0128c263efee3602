from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from app.errors import StokerError
from app.launch.engine_launch import require_free_port
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
