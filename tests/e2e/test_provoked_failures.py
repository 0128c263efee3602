"""Starts of the real engine that fail, each for one reason, and the explanation of its log."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest

from logparse import LogReport, Outcome, explain, parse_lines
from tests.e2e.running_server import ENGINE
from tests.tiny_model import write_tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


def fails(cwd: Path, *arguments: str) -> LogReport:
    """What the log of a start that ends by itself tells."""
    done = subprocess.run(
        [*ENGINE, "serve", *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode != 0, done.stdout
    report = parse_lines(done.stdout.splitlines())
    assert (report.outcome, report.engine) == (Outcome.FAILED, "stoker"), done.stdout
    assert report.problem is not None
    assert report.problem.is_known, done.stdout
    assert report.problem.fixes, report.problem
    assert report.problem.key_line in done.stdout
    assert report.problem.title in explain(report).headline
    return report


def cause_of(report: LogReport) -> tuple[str, str]:
    assert report.problem is not None
    return report.problem.id, report.problem.title


def test_the_port_is_taken(tmp_path: Path, model: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        cause, title = cause_of(fails(tmp_path, str(model), "--port", str(port)))
    assert (cause, title) == ("F1", f"port {port} is already in use by another process")


def test_no_such_model(tmp_path: Path) -> None:
    cause, title = cause_of(fails(tmp_path, "./no-such-folder", "--port", "0"))
    assert (cause, title) == ("B2", "there is no model ./no-such-folder")


def test_corrupt_weights(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "broken")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    cause, title = cause_of(fails(tmp_path, str(folder), "--port", "0"))
    assert (cause, title) == ("B6", "a file of the model is damaged or incomplete")


def test_too_little_kv_memory(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "long", max_position_embeddings=1_000_000)
    report = fails(tmp_path, str(model), "--port", "0", "--kv-cache-memory-bytes", "50000000")
    cause, title = cause_of(report)
    assert cause == "A1"
    assert title.startswith("one request of 1000000 tokens needs ")
    assert report.problem is not None
    command = report.problem.fixes[0].command or ""
    assert command.startswith(f"stoker serve {model} ")
    length = int(command.rpartition(" --max-model-len ")[2])
    assert 1000 < length < 1_000_000


def test_an_unknown_flag(tmp_path: Path, model: Path) -> None:
    cause, title = cause_of(fails(tmp_path, str(model), "--max-modle-len", "9"))
    assert (cause, title) == ("F2", "unknown flag --max-modle-len (meant --max-model-len?)")
