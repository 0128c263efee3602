"""A server's traffic is recorded and replayed on it: the lengths, the order, what is cached."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.cli import run
from tests.e2e.running_server import Server, gauge, tiny_server
from tests.waiting import wait_for

HITS = 'vllm:prefix_cache_hits_total{engine="0",model_name="tiny"}'
SECRET = [ord(letter) for letter in "the words of a client"]
STEP_S = 0.5  # between two requests of the replay, so that each finds what the one before computed


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records") / "traffic.jsonl"


@pytest.fixture(scope="module")
def server(record: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with tiny_server(tmp_path_factory.mktemp("model"), "--record-traffic", str(record)) as running:
        yield running


def lines(record: Path, count: int) -> list[dict[str, Any]]:
    """Once there are so many; in the order of their arrival."""
    wait_for(lambda: record.read_bytes().count(b"\n") >= count)
    found = [json.loads(line) for line in record.read_text().splitlines()]
    return sorted(found, key=lambda line: line["timestamp"])


def shape(found: list[dict[str, Any]]) -> list[tuple[int, int, list[int]]]:
    """Lengths, and where each block stood first."""
    names: dict[int, int] = {}
    return [
        (
            line["input_length"],
            line["output_length"],
            [names.setdefault(block, len(names)) for block in line["hash_ids"]],
        )
        for line in found
    ]


def complete(server: Server, tokens: list[int], max_tokens: int) -> None:
    body = {"model": "tiny", "prompt": tokens, "max_tokens": max_tokens, "ignore_eos": True}
    httpx.post(f"{server.url}/v1/completions", json=body, timeout=120).raise_for_status()


def test_a_record_is_replayed_as_it_was(
    server: Server, record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    complete(server, list(range(60)), 2)  # the first of a server takes longer than all others
    shared = SECRET * 4  # 84 tokens, 5 blocks
    asked = [
        (shared, 5),
        ([*shared, 1, 2, 3], 9),
        ([7] * 40, 4),
        ([*shared[:50], 9, 9, *shared], 3),
        ([*shared, 1, 2, 3], 6),
    ]
    before = gauge(server.url, HITS)
    for tokens, max_tokens in asked:
        complete(server, tokens, max_tokens)
    hits = gauge(server.url, HITS) - before

    recorded = lines(record, 6)[1:]
    assert [(line["input_length"], line["output_length"]) for line in recorded] == [
        (len(tokens), max_tokens) for tokens, max_tokens in asked
    ]
    assert hits == (5 + 3 + 5) * 16
    assert stat.S_IMODE(record.stat().st_mode) == 0o600

    trace = tmp_path / "day.jsonl"
    trace.write_text("".join(json.dumps(line) + "\n" for line in recorded))
    gaps = [b["timestamp"] - a["timestamp"] for a, b in pairwise(recorded)]
    speed = max(1, min(gaps)) / 1e3 / STEP_S
    before = gauge(server.url, HITS)
    words = ["bench", server.url, "--replay", str(trace), "--speed", str(speed), "--warmup", "0"]
    run([*words, "--json"])
    document = json.loads(capsys.readouterr().out)

    (result,) = document["results"]
    assert (result["completed"], result["failed"]) == (5, 0)
    assert gauge(server.url, HITS) - before == hits
    assert shape(lines(record, 11)[6:]) == shape(recorded)
    others = {"client-late", "client-limit"}
    assert {finding["id"] for finding in document["findings"]} <= others
