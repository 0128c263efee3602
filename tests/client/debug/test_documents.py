"""Reading /debug: answers of another version, escape sequences, and addresses of requests."""

from __future__ import annotations

import contextlib
from typing import Any

import httpx
import pytest

from app.client.debug.documents import DebugSource, read_block_map, read_requests, read_scheduler
from app.client.errors import BadAnswer, BadStatus, Unreachable

BLOCKS = {
    "first_block": 1,
    "num_blocks": 6,
    "block_size": 16,
    "num_used": 3,
    "is_mapped": True,
    "findable": [[1, 2], [5, 1]],
    "free_queue": [[6, 1], [5, -2]],
    "owners": {"a\x1b[31m": [[1, 2]], "b": [[1, 1], [3, 1]]},
}
REQUEST = {
    "id": "r\x1b]0;title\x07",
    "state": "running",
    "place": None,
    "age_s": 1.5,
    "first_token_s": 0.5,
    "prompt_tokens": 3,
    "prompt_tokens_done": 3,
    "output_tokens": 1,
    "max_tokens": 9,
    "blocks": 1,
    "cached_tokens": 0,
    "preemptions": 0,
}


def test_runs_become_states_owners_and_the_queue() -> None:
    found = read_block_map(BLOCKS)
    assert list(found.states) == [3, 2, 2, 0, 1, 0]
    assert found.free_queue == (6, 5, 4)
    assert found.num_before_eviction == 1
    assert (found.num_used, found.num_cached, found.num_free) == (3, 1, 2)
    assert found.owners == {"a": (1, 2), "b": (1, 3)}


def test_escape_sequences_of_ids_do_not_reach_the_screen() -> None:
    (request,), _ = read_requests({"data": [REQUEST], "num_not_listed": 0})
    assert request.id == "r"
    assert request.first_token_s == 0.5


def test_speed_of_a_request_is_that_after_its_first_token() -> None:
    told = {**REQUEST, "age_s": 2.5, "first_token_s": 0.5, "output_tokens": 41}
    silent = {key: value for key, value in told.items() if key != "first_token_s"}
    (one, older), _ = read_requests({"data": [told, silent], "num_not_listed": 0})
    assert one.tokens_per_s == 20.0
    assert older.tokens_per_s is None


@pytest.mark.parametrize(
    ("read", "document"),
    [
        (read_block_map, {}),
        (read_block_map, []),
        (read_block_map, {**BLOCKS, "owners": {"a": [[9000, 1]]}}),
        (read_block_map, {**BLOCKS, "owners": {"a": [[0, 1]]}}),
        (read_block_map, {**BLOCKS, "free_queue": [[6, 10**12]]}),
        (read_block_map, {**BLOCKS, "num_blocks": 10**12}),
        (read_block_map, {**BLOCKS, "free_queue": [[1]]}),
        (read_requests, {"data": [{**REQUEST, "age_s": "old"}], "num_not_listed": 0}),
        (read_requests, {"data": 3, "num_not_listed": 0}),
        (read_scheduler, {"last_step": None}),
        (read_scheduler, None),
    ],
)
def test_unknown_forms_are_refused(read: Any, document: Any) -> None:
    with pytest.raises(BadAnswer, match="does not know"):
        read(document)


async def test_ids_are_quoted_and_errors_are_ours() -> None:
    paths = []

    def answer(request: httpx.Request) -> httpx.Response:
        paths.append((request.method, request.url.raw_path.decode()))
        if request.method == "DELETE":
            return httpx.Response(404, json={"error": {"message": "it may have ended"}})
        return httpx.Response(200, text="<html>")

    source = DebugSource("http://h:1", transport=httpx.MockTransport(answer))
    async with contextlib.aclosing(source):
        with pytest.raises(BadStatus, match="it may have ended"):
            await source.cancel("a/../b?c")
        with pytest.raises(BadAnswer, match="JSON"):
            await source.fetch()
    assert paths == [
        ("DELETE", "/debug/requests/a%2F..%2Fb%3Fc"),
        ("GET", "/debug/scheduler"),
    ]


async def test_a_server_that_is_away() -> None:
    async with contextlib.aclosing(DebugSource("http://127.0.0.1:9")) as source:
        with pytest.raises(Unreachable):
            await source.fetch()
