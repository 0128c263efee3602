"""Real vLLM and llama-server through `stoker serve`: to ready, a chat, a stop that leaves nothing.

Skipped unless STOKER_TEST_VLLM_PYTHON (a Python with vLLM) and STOKER_TEST_LLAMA_SERVER (the
program) say where they are.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.e2e.running_server import STOKER, Server, free_port, health, started

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

KEY = "sk-real-peers"
START_TIMEOUT_S = "600"
Start = Callable[[int], list[str]]  # port -> command
# Compiling is the longest part of vLLM's start and no part of this test.
VLLM_FLAGS = ("--max-model-len", "4096", "--kv-cache-memory-bytes", "1GiB", "--enforce-eager")
LLAMA_FLAGS = ("--max-model-len", "2048", "--max-num-seqs", "2")


def place(variable: str) -> str:
    found = os.environ.get(variable)
    if not found:
        pytest.skip(f"{variable} does not say where the engine is")
    return found


def vllm(port: int) -> list[str]:
    python = place("STOKER_TEST_VLLM_PYTHON")
    return command(port, "--engine", "vllm", "--engine-python", python, *VLLM_FLAGS)


def llama_server(port: int) -> list[str]:
    binary = place("STOKER_TEST_LLAMA_SERVER")
    return command(port, "--engine", "llama.cpp", "--engine-binary", binary, *LLAMA_FLAGS)


def command(port: int, *words: str) -> list[str]:
    quiet = ("--no-tui", "--startup-timeout", START_TIMEOUT_S, "--port", str(port))
    return [str(STOKER), "serve", "smollm2-135m", *quiet, *words]


@contextmanager
def running(words: list[str], port: int, folder: Path) -> Iterator[Server]:
    """Started, and past the supervisor's own look at the first token."""
    env = {"STOKER_STATE_DIR": str(folder), "STOKER_API_KEY": KEY, "HF_HUB_OFFLINE": "1"}
    with started(words, port, env=env, wait=False) as server:
        while "ready at" not in server.text:
            assert server.process.poll() is None, server.text
            time.sleep(0.1)
        yield server


def stoker(*words: str) -> str:
    done = subprocess.run(
        [str(STOKER), *words],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "STOKER_API_KEY": KEY},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def shared_memory() -> set[str]:
    """What Python's multiprocessing keeps in memory under a name."""
    return {path.name for path in Path("/dev/shm").glob("psm_*")}


@pytest.mark.parametrize(("start", "engine"), [(vllm, "vllm"), (llama_server, "llama.cpp")])
def test_start_chat_and_stop(start: Start, engine: str, tmp_path: Path) -> None:
    port = free_port()
    with running(start(port), port, tmp_path) as server:
        tree = server.tree()
        answer = stoker(
            "chat", server.url, "--temperature", "0", "-m", "What is the capital of France?"
        )
        sample = json.loads(stoker("top", server.url, "--once", "--json"))
        words = [word for process in tree for word in process.cmdline()]
        status = server.stop(signal.SIGINT)

    assert len(answer.split()) > 1  # which words differs: the engines round differently
    assert sample["engine"] == engine
    assert sample["generation_tokens_total"] > 1
    assert KEY not in " ".join(words)
    assert status == 0, server.text
    assert re.search(rf"stopped: \d+ process(es)? ended, port {port} free", server.text)
    assert psutil.wait_procs(tree, timeout=60)[1] == []
    assert health(server.url) is None


@pytest.mark.parametrize("start", [vllm, llama_server])
def test_a_killed_supervisor_takes_the_engine_with_it(start: Start, tmp_path: Path) -> None:
    port, before = free_port(), shared_memory()
    with running(start(port), port, tmp_path) as server:
        tree = server.tree()
        server.process.kill()
        assert psutil.wait_procs(tree, timeout=60)[1] == []
    assert health(server.url) is None
    assert shared_memory() <= before


def test_a_length_that_the_model_has_not_is_explained(tmp_path: Path) -> None:
    port = free_port()
    words = [*vllm(port), "--max-model-len", "9000"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)

    assert done.returncode == 5
    assert "9000" in done.stderr
    assert "8192" in done.stderr
