"""One model over two nodes of a Ray cluster, one copy on each, and a node that goes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from logparse import Outcome, parse_lines
from tests.default_model import default_model_folder
from tests.e2e.running_server import ENGINE, Server, free_port, started
from tests.places import ROOT
from tests.tiny_model import write_tiny_llama
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PROMPTS = ("The capital of France is", "Water boils at", "One, two, three,", "Once upon a time")


@dataclass
class Cluster:
    """Two nodes with a CPU each."""

    process: subprocess.Popen[str]
    address: str

    def remove_second_node(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("remove\n")
        self.process.stdin.flush()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    pytest.importorskip("ray", reason="Ray has no wheel for this Python")
    with subprocess.Popen(
        [sys.executable, "-m", "tests.fakes.ray_cluster"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        said = (line.split()[1] for line in process.stdout if line.startswith("address "))
        address = next(said, None)
        assert address is not None, f"Ray's cluster has ended: {process.wait(60)}"
        rest = threading.Thread(target=process.stdout.read, daemon=True)
        rest.start()
        yield Cluster(process, address)
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(timeout=120)
        finally:
            process.kill()  # the end of this block waits for it, whatever was left
            rest.join(60)


def server(cluster: Cluster, folder: Path, *flags: str) -> tuple[list[str], int, dict[str, str]]:
    port = free_port()
    common = ("--dtype", "float32", "--max-model-len", "512", "--port", str(port))
    words = [*ENGINE, "serve", str(folder), "--served-model-name", "m", *common]
    words += ["--distributed-executor-backend", "ray", *flags]
    return words, port, {"RAY_ADDRESS": cluster.address}


def complete(server: Server, prompt: str, max_tokens: int = 16) -> httpx.Response:
    body = {"model": "m", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    body["ignore_eos"] = True  # so that the last one is still under way when a node goes
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=240)


def texts(server: Server) -> list[str]:
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        answers = list(pool.map(lambda prompt: complete(server, prompt), PROMPTS))
    return [answer.json()["choices"][0]["text"] for answer in answers]


def nodes_of_ranks(server: Server) -> dict[str, str]:
    """Ray's names of the nodes, by the names of the ranks."""
    found = re.findall(r"(Worker\S*) \(node \S+, (\w+), pid \d+\) is an actor", server.text)
    return dict(found)


def test_one_copy_on_each_node_then_one_model_over_both(cluster: Cluster) -> None:
    folder = default_model_folder()
    command, port, env = server(cluster, folder, "--data-parallel-size", "2")
    with started(command, port, env=env) as copies:
        nodes = nodes_of_ranks(copies)
        assert set(nodes) == {"Worker_DP0", "Worker_DP1"}
        assert len(set(nodes.values())) == 2
        wanted = texts(copies)
        assert "Paris" in wanted[0]
        assert copies.stop() == 0

    command, port, env = server(cluster, folder, "--pipeline-parallel-size", "2")
    with started(command, port, env=env) as whole:
        nodes = nodes_of_ranks(whole)
        assert set(nodes) == {"Worker_PP0", "Worker_PP1"}
        assert len(set(nodes.values())) == 2
        assert texts(whole) == wanted

        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(complete, whole, "On and on", 400)
            wait_for(lambda: "Running: 1 reqs" in whole.text or is_busy(whole))
            cluster.remove_second_node()
            assert asked.result(300).status_code == 503
        assert whole.process.wait(timeout=120) == 1
    gone = next(line for line in whole.lines if "died unexpectedly (" in line)
    name = next(rank for rank in nodes if rank in gone)
    assert nodes[name] in gone
    report = parse_lines(whole.lines)
    assert report.outcome is Outcome.READY  # it was, and then died of this
    assert report.problem is not None
    assert name in report.problem.title


def is_busy(server: Server) -> bool:
    text = httpx.get(f"{server.url}/metrics", timeout=60).text
    return re.search(r"^vllm:num_requests_running{.*} [1-9]", text, re.MULTILINE) is not None


def test_without_a_cluster_the_way_to_one_is_said(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray has no wheel for this Python")
    folder = write_tiny_llama(tmp_path / "tiny")
    words = ["--distributed-executor-backend", "ray", "--port", str(free_port())]
    nobody = f"127.0.0.1:{free_port()}"
    done = subprocess.run(
        [*ENGINE, "serve", str(folder), *words],
        env={**os.environ, "RAY_ADDRESS": nobody},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 2, done.stdout
    assert f"no Ray cluster at RAY_ADDRESS={nobody}" in done.stdout
    assert "ray start --head" in done.stdout
