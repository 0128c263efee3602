"""A bounded queue: who is let in, who is told to come back, and that nobody is lost."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from engine.frontend.iteration_stats import IterationStats
from engine.messages import SchedulerStats
from engine.server.admission import Admission, QueueLimits
from engine.server.errors import ApiError
from tests.server.fake_core import FakeCore
from tests.server.serving import MODEL, Served, serving
from tests.waiting import until

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "Hi", "max_tokens": 4},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 4},
    "/v1/messages": CHAT,
    "/v1/embeddings": {"input": "Hi"},
}


def limit(served: Served, **limits: Any) -> None:
    served.services.admission.open(QueueLimits(**limits), served.llm)


def standing_core() -> FakeCore:
    """Takes requests and does nothing for them."""
    return FakeCore([65], is_paused=True)


async def waiting(served: Served, count: int, prompt: str = "Hi") -> list[asyncio.Task[Any]]:
    body = {"prompt": prompt, "max_tokens": 4}
    tasks = [
        asyncio.create_task(served.http.post("/v1/completions", json=body)) for _ in range(count)
    ]
    await until(lambda: served.core.num_running == count)
    return tasks


@pytest.mark.parametrize("path", BODIES)
async def test_one_too_many_is_refused_and_the_others_are_answered(
    tiny_folder: Path, path: str
) -> None:
    async with serving(tiny_folder, standing_core(), in_process=True) as served:
        limit(served, max_reqs=2, num_places=1)
        tasks = await waiting(served, 3)
        refused = await served.http.post(path, json=BODIES[path])
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 0
        assert "--max-num-queued-reqs allows 2" in refused.json()["error"]["message"]
        assert len(served.core.requests) == 3
        served.core.resume()
        assert [task.status_code for task in await asyncio.gather(*tasks)] == [200] * 3
        answered = await served.http.post(path, json=BODIES[path])
        assert answered.status_code == 200, answered.text


async def test_a_refusal_comes_before_the_prompt_is_tokenised(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tiny_folder, standing_core(), in_process=True) as served:
        limit(served, max_reqs=0, num_places=1)
        tasks = await waiting(served, 1)
        monkeypatch.setattr(served.llm.tokenizer, "encode", None)
        for path in BODIES:
            assert (await served.http.post(path, json=BODIES[path])).status_code == 429
        served.core.resume()
        await asyncio.gather(*tasks)


async def test_a_limit_on_waiting_tokens(tiny_folder: Path) -> None:
    async with serving(tiny_folder, standing_core(), in_process=True) as served:
        limit(served, max_tokens=100, num_places=8)
        tasks = await waiting(served, 1, "x" * 99)
        tasks += [asyncio.create_task(served.http.post("/v1/completions", json={"prompt": "y"}))]
        await until(lambda: served.core.num_running == 2)
        refused = await served.http.post("/v1/completions", json={"prompt": "z"})
        assert refused.status_code == 429
        assert "--max-num-queued-tokens allows 100" in refused.json()["error"]["message"]
        served.core.resume()
        await asyncio.gather(*tasks)
        assert (await served.http.post("/v1/completions", json={"prompt": "z"})).status_code == 200


async def test_a_burst_is_let_in_up_to_the_limit(tiny_folder: Path) -> None:
    """All at once: those that are still prepared count, too."""
    async with serving(tiny_folder, FakeCore([65], step_s=0.01), in_process=True) as served:
        limit(served, max_reqs=3, num_places=2)
        posts = (served.http.post("/v1/chat/completions", json=CHAT) for _ in range(40))
        statuses = Counter(answer.status_code for answer in await asyncio.gather(*posts))
        assert statuses[200] + statuses[429] == 40
        assert 5 <= statuses[200] == len(served.core.requests) < 40
        assert served.services.admission.num_queued == 0


async def test_who_is_refused_for_another_reason_leaves_his_place(tiny_folder: Path) -> None:
    async with serving(tiny_folder, FakeCore([65]), in_process=True) as served:
        limit(served, max_reqs=1, num_places=0)
        for _ in range(5):
            bad = await served.http.post("/v1/completions", json={"prompt": "a", "n": 0})
            assert bad.status_code == 400
            assert (await served.http.post("/v1/embeddings", json={"input": ""})).status_code == 400
            good = await served.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 2})
            assert good.status_code == 200


async def test_official_clients_know_the_refusal(tiny_folder: Path) -> None:
    async with serving(tiny_folder, standing_core()) as served:
        limit(served, max_reqs=0, num_places=1)
        tasks = await waiting(served, 1)
        with pytest.raises(openai.RateLimitError):
            await served.openai.responses.create(model=MODEL, input="Hi")
        async with anthropic.AsyncAnthropic(
            base_url=served.url, api_key="none", max_retries=0
        ) as client:
            with pytest.raises(anthropic.RateLimitError) as caught:
                await client.messages.create(
                    model=MODEL, max_tokens=4, messages=[{"role": "user", "content": "Hi"}]
                )
        assert caught.value.body["error"]["type"] == "rate_limit_error"  # type: ignore[index]
        served.core.resume()
        await asyncio.gather(*tasks)


@pytest.mark.parametrize(
    ("running", "waiting_reqs", "turns", "inside", "queued"),
    [
        (0, 0, 0, 3, 0),  # an idle engine has four places
        (0, 0, 0, 6, 2),
        (2, 1, 0, 6, 4),  # it had room for two: the rest waits for it
        (4, 2, 0, 6, 2),
        (1, 3, 3, 4, 0),  # it has room for all, and computes one prompt after the other
        (1, 5, 3, 6, 2),
    ],
)
def test_what_counts_as_queued(
    running: int, waiting_reqs: int, turns: int, inside: int, queued: int
) -> None:
    admission = Admission()
    seats = [admission.enter(0) for _ in range(inside)]
    admission._limits = QueueLimits(max_reqs=queued, num_places=4)
    stats = SchedulerStats(running, waiting_reqs, num_taking_turns=turns)
    admission.record(stats, IterationStats())
    assert admission.num_queued == queued
    if inside >= 4:
        with pytest.raises(ApiError):
            admission.enter(0)
    seats.pop().leave()
    assert admission.enter(0)


async def test_a_burst_is_let_in_up_to_the_limit_on_tokens(tiny_folder: Path) -> None:
    """Before any of their prompts is tokenised."""
    async with serving(tiny_folder, standing_core(), in_process=True) as served:
        limit(served, max_tokens=100, num_places=8)
        posts = [
            asyncio.create_task(served.http.post("/v1/completions", json={"prompt": "x" * 60}))
            for _ in range(40)
        ]
        await until(lambda: sum(post.done() for post in posts) + served.core.num_running == 40)
        assert 2 <= served.core.num_running <= 6
        assert {post.result().status_code for post in posts if post.done()} == {429}
        served.core.resume()
        await asyncio.gather(*posts)


async def test_a_full_queue_refuses_without_reading_the_body(tiny_folder: Path) -> None:
    async with serving(tiny_folder, standing_core()) as served:
        limit(served, max_reqs=0, num_places=1)
        tasks = await waiting(served, 1)
        host, port = served.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = (
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 2\r\n\r\n"
        )
        for _ in range(2):  # the connection goes on behind the body that comes after its answer
            writer.write(head)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 429 ")
            length = int(re.search(rb"content-length: (\d+)", answer.lower())[1])  # type: ignore[index]
            assert b"queue_full" in await reader.readexactly(length)
            writer.write(b"{}")
        writer.close()
        await writer.wait_closed()
        served.core.resume()
        await asyncio.gather(*tasks)


async def test_a_refusal_needs_the_key_and_is_counted(tiny_folder: Path) -> None:
    async with serving(tiny_folder, standing_core(), api_key="k", in_process=True) as served:
        limit(served, max_reqs=0, num_places=0)
        key = {"Authorization": "Bearer k"}
        path = "/v1/completions"
        assert (await served.http.post(path, json={}, headers={})).status_code == 401
        assert (await served.http.post(path, json={}, headers=key)).status_code == 429
        assert (await served.http.get("/v1/models", headers=key)).status_code == 200
        metrics = (await served.http.get("/metrics")).text
        assert f'http_requests_total{{handler="{path}",method="POST",status="4xx"}} 2.0' in metrics


def test_a_seat_that_is_forgotten_is_free() -> None:
    admission = Admission()
    seats = [admission.enter(0), admission.enter(0)]
    assert admission.num_queued == 2
    seats.clear()
    assert admission.num_queued == 0


def test_what_other_api_servers_let_in_counts_too() -> None:
    admission = Admission()
    admission._limits = QueueLimits(max_reqs=3, max_tokens=50, num_places=4)
    admission.note_elsewhere(5, 20)
    seats = [admission.enter(0) for _ in range(2)]
    assert (admission.num_queued, admission.num_queued_tokens) == (3, 20)
    with pytest.raises(ApiError, match="--max-num-queued-reqs allows 3"):
        admission.enter(0)
    admission.note_elsewhere(1, 60)
    with pytest.raises(ApiError, match="--max-num-queued-tokens allows 50"):
        admission.enter(0)
    for seat in seats:
        seat.leave()
    admission.note_elsewhere(1, 49)
    admission.enter(0)
