"""A server on a socket file, with a tiny model: private, reachable, never left over."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.tiny_model import write_tiny_llama
from tests.waiting import is_running, wait_for

pytestmark = pytest.mark.slow
_STOKER = str(Path(sys.executable).with_name("stoker"))
_PATIENCE_S = 120.0


class Place:
    """A state folder, a model and a socket file."""

    def __init__(self, folder: Path) -> None:
        self.model = write_tiny_llama(folder / "tiny")
        self.socket = folder / "it.sock"
        self.environment = {**os.environ, "STOKER_STATE_DIR": str(folder / "state")}
        self.environment.pop("STOKER_URL", None)

    def serve(self) -> subprocess.CompletedProcess[str]:
        return self.run("serve", str(self.model), "--uds", str(self.socket), "--name", "it", "-d")

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [_STOKER, *words],
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=_PATIENCE_S,
            check=False,
        )

    def record(self) -> dict[str, int]:
        (path,) = Path(self.environment["STOKER_STATE_DIR"]).glob("run/servers/*.json")
        document: dict[str, int] = json.loads(path.read_text())
        return document


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path)
    yield found
    found.run("stop", "--all", "--now")


def test_it_is_private_works_and_comes_back(place: Place) -> None:
    started = place.serve()
    assert started.returncode == 0, started.stderr
    assert f"ready at unix:{place.socket}" in started.stdout
    assert stat.S_ISSOCK(place.socket.stat().st_mode)
    assert stat.S_IMODE(place.socket.stat().st_mode) == 0o600

    tree = psutil.Process(place.record()["supervisor_pid"])
    processes = [tree, *tree.children(recursive=True)]
    listening = [one for process in processes for one in process.net_connections("inet")]
    assert [one for one in listening if one.status == psutil.CONN_LISTEN] == []

    url = f"unix:{place.socket}"
    for words in (
        ["chat", url, "-m", "hello", "--max-tokens", "3"],
        ["top", url, "--once"],
        ["trace", url, "hello", "--max-tokens", "3"],
        [
            "bench",
            url,
            *["--concurrency", "1", "--num-prompts", "2", "--prompt-tokens", "8", "--repeat", "1"],
        ],
        ["status", "it"],
        ["status", url],
        ["logs", "it"],
        ["logs", url],
        ["complete", "-u", url, "hello", "-n", "3"],
    ):
        done = place.run(*words)
        assert done.returncode in (0, 3), (words, done.stderr)
        assert "Traceback" not in done.stderr
    assert "in use by a server that answers" in place.serve().stderr

    os.kill(tree.pid, signal.SIGKILL)
    wait_for(lambda: not any(is_running(process) for process in processes), _PATIENCE_S)
    assert place.serve().returncode == 0
    stopped = place.run("stop", url)
    assert stopped.returncode == 0, stopped.stderr
    assert f"socket {place.socket} free" in stopped.stderr
    assert not place.socket.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_user_is_not_let_in(place: Place, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for folder in tmp_path.parents:
        if folder.is_relative_to("/tmp/pytest-of-root"):
            folder.chmod(0o755)
    assert place.serve().returncode == 0
    script = f"import socket; socket.socket(socket.AF_UNIX).connect({str(place.socket)!r})"
    done = subprocess.run(
        ["/usr/bin/python3", "-c", script], capture_output=True, text=True, user=65534, check=False
    )
    assert "PermissionError" in done.stderr
