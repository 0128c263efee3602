"""Sending a batch: how long a server is waited for, and how many requests are under way."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.batch import run
from app.batch.files import BatchRequest, open_answers
from app.batch.run import BatchPlan, ServerGone, run_batch
from tests.client.local_server import Answer, Call, Route, serving


class Clock:
    """The time that the batch sees: it stands still but for what a server takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(run, "_PAUSE_S", 0.0)


def plan(url: str, count: int = 1, **changes: Any) -> BatchPlan:
    requests = [
        BatchRequest(f"r{number}", "/v1/completions", {"prompt": f"p{number}"})
        for number in range(count)
    ]
    values = {"concurrency": 1, "retries": 2, "timeout_s": 60.0, **changes}
    return BatchPlan(url=url, api_key=None, requests=requests, **values)


def answered(path: Path, plan: BatchPlan) -> dict[str, Any]:
    with open_answers(path, {request.custom_id for request in plan.requests}) as answers:
        run_batch(plan, answers, lambda _progress: None)
    entries = map(json.loads, path.read_text().splitlines())
    return {entry.pop("custom_id"): entry for entry in entries}


def with_statuses(clock: Clock, statuses: Sequence[int], takes_s: float) -> tuple[Route, list[int]]:
    """A route that answers with these, the last one for ever; and what it has answered."""
    given: list[int] = []

    def answer(_call: Call) -> Answer:
        clock.now += takes_s
        given.append(statuses[min(len(given), len(statuses) - 1)])
        return Answer([b"{}"], given[-1])

    return answer, given


def test_patience_begins_with_the_first_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    route, given = with_statuses(Clock(monkeypatch), [503, 200], takes_s=400.0)
    with serving({"/v1/completions": route}) as server:
        found = answered(tmp_path / "out.jsonl", plan(server.url))
    assert found["r0"]["response"]["status_code"] == 200
    assert given == [503, 200]


def test_a_server_that_stays_away_ends_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    route, given = with_statuses(Clock(monkeypatch), [503], takes_s=200.0)
    with serving({"/v1/completions": route}) as server, pytest.raises(ServerGone, match="503"):
        answered(tmp_path / "out.jsonl", plan(server.url))
    assert given == [503, 503, 503]


def test_a_request_that_is_never_answered_in_time_is_a_failed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_PAUSE_S", 0.0)
    seen: Counter[str] = Counter()
    is_over = threading.Event()

    def answer(call: Call) -> Answer:
        prompt = json.loads(call.body)["prompt"]
        seen[prompt] += 1
        if prompt == "p0":
            is_over.wait()
        return Answer([b"{}"])

    with serving({"/v1/completions": answer}) as server:
        hasty = plan(server.url, 2, timeout_s=2.0, retries=1, patience_s=0.0)
        found = answered(tmp_path / "out.jsonl", hasty)
        is_over.set()
    assert (found["r0"]["response"], found["r0"]["error"]["code"]) == (None, "timeout")
    assert found["r1"]["response"]["status_code"] == 200
    assert seen["p0"] == 2


async def test_as_many_at_once_as_were_asked_for(tmp_path: Path) -> None:
    count, under_way, all_came = 120, 0, asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal under_way
        await reader.readuntil(b"}")
        under_way += 1
        if under_way == count:
            all_came.set()
        await all_came.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=count)
    async with server:
        host, port = server.sockets[0].getsockname()
        batch = plan(f"http://{host}:{port}", count, concurrency=count, retries=0, timeout_s=30.0)
        found = await asyncio.to_thread(answered, tmp_path / "out.jsonl", batch)
    assert {entry["response"]["status_code"] for entry in found.values()} == {200}
