"""Starts the real `stoker serve` (or the bare engine) on a free port, for end-to-end tests.

STOKER_TEST_SERVE_FLAGS adds flags to every server, so that all of them run with other kernels too:
`STOKER_TEST_SERVE_FLAGS="--kernels reference --quantization int8" pytest tests/e2e`.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from engine.machine.ports import free_port as free_port
from engine.machine.processes import role_of
from tests.places import ROOT
from tests.tiny_model import write_tiny_llama

STOKER = Path(sys.executable).with_name("stoker")
ENGINE = [sys.executable, str(ROOT / "engine" / "__main__.py")]
START_TIMEOUT_S = 240


@dataclass
class Server:
    """One started server: its process, URL, and what it wrote so far."""

    process: subprocess.Popen[str]
    url: str
    lines: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def tree(self) -> list[psutil.Process]:
        """The process and all its descendants."""
        parent = psutil.Process(self.process.pid)
        return [parent, *parent.children(recursive=True)]

    def process_of(self, role: str) -> psutil.Process:
        """The one that has this role in the plan: EngineCore_DP0, ApiServer_1, ..."""
        return next(one for one in self.tree() if role_of(one.cmdline()) == role)

    def engine_core(self) -> psutil.Process:
        return next(item for item in self.tree() if "--handshake" in item.cmdline())

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """Signal it and wait; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout=120)


@contextmanager
def started(
    command: list[str],
    port: int,
    *,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
    wait: bool = True,
) -> Iterator[Server]:
    """Run `command`, wait for /health 200, and make sure that nothing is left afterwards."""
    process = subprocess.Popen(
        [*command, *shlex.split(os.environ.get("STOKER_TEST_SERVE_FLAGS", ""))],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
    )
    server = Server(process, f"http://127.0.0.1:{port}")
    reader = threading.Thread(target=_read, args=(process, server.lines), daemon=True)
    reader.start()
    try:
        if wait:
            wait_until_ready(server)
        yield server
    finally:
        if process.poll() is None:
            for item in server.tree():
                item.kill()
        process.wait(timeout=60)
        reader.join(timeout=60)
        assert process.stdout is not None
        process.stdout.close()


@contextmanager
def tiny_server(folder: Path, *flags: str, env: dict[str, str] | None = None) -> Iterator[Server]:
    """The bare engine with a tiny model in `folder`, called tiny."""
    port = free_port()
    command = [*ENGINE, "serve", str(write_tiny_llama(folder)), "--port", str(port)]
    command += ["--dtype", "float32", "--served-model-name", "tiny"]
    with started([*command, "--kv-cache-memory-bytes", "8M", *flags], port, env=env) as running:
        yield running


def planned_processes(model: Path, layout: Sequence[str]) -> list[str]:
    """The roles that `stoker plan` says a server of this layout has."""
    words = (str(STOKER), "plan", str(model), "--engine", "stoker", *layout, "--json")
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return [line.split()[0] for line in json.loads(done.stdout)["processes"]]


def _read(process: subprocess.Popen[str], lines: list[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line.rstrip("\n"))


def wait_until_ready(server: Server) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while health(server.url) != 200:
        assert server.process.poll() is None, f"ended early:\n{server.text}"
        assert time.monotonic() < deadline, f"not ready:\n{server.text}"
        time.sleep(0.05)


def wait_until_supervised(server: Server) -> None:
    """Until `stoker serve` has seen a token and calls it ready, which is after /health does."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while "ready at" not in server.text:
        assert server.process.poll() is None, f"ended early:\n{server.text}"
        assert time.monotonic() < deadline, f"not ready:\n{server.text}"
        time.sleep(0.05)


def health(url: str) -> int | None:
    """Status of /health, None when nobody answers."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=30) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return None


def get_json(url: str) -> dict[str, object]:
    with urllib.request.urlopen(url, timeout=60) as response:
        return dict(json.load(response))


def gauge(url: str, name: str) -> float:
    """One value of /metrics."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as response:
        for line in response.read().decode().splitlines():
            if line.startswith(name) and not line.startswith("#"):
                return float(line.rsplit(" ", 1)[1])
    raise AssertionError(f"{name} is not in /metrics")


def wait_for_gauge(url: str, name: str, value: float, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while gauge(url, name) != value:
        assert time.monotonic() < deadline, f"{name} stays at {gauge(url, name)}, not {value}"
        time.sleep(0.05)
