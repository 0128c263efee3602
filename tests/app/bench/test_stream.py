from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from app.bench.stream import RequestResult, StreamClient
from tests.client.local_server import Answer, serving

PATH = "/v1/completions"
END = b"data: [DONE]\n\n"


def event(**fields: object) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def text(part: str, finish: str | None = None) -> bytes:
    return event(choices=[{"text": part, "finish_reason": finish}])


def delta(finish: str | None = None, **fields: str) -> bytes:
    return event(choices=[{"delta": fields, "finish_reason": finish}])


USAGE = event(
    choices=[],
    usage={
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 5},
    },
)


def ask(answer: Answer, timeout_s: float = 20) -> RequestResult:
    outcome = RequestResult(0.0, 0.0)
    with serving({PATH: lambda _call: answer}) as server:
        asyncio.run(send(StreamClient(server.url, timeout_s=timeout_s), outcome))
    return outcome


async def send(client: StreamClient, outcome: RequestResult) -> None:
    await client.send(PATH, {"prompt": "é"}, outcome)
    await client.aclose()


def test_chunks_with_tokens_are_timed_and_usage_is_read() -> None:
    outcome = ask(Answer([text("a"), text(""), text("b", "length"), USAGE, END]))

    assert outcome.error is None
    assert len(outcome.chunks_s) == 3
    assert [*outcome.chunks_s] == sorted(outcome.chunks_s)
    assert (outcome.prompt_tokens, outcome.output_tokens, outcome.cached_tokens) == (7, 3, 5)
    assert outcome.finish_reason == "length"


def test_the_role_and_the_end_of_a_chat_are_no_tokens() -> None:
    parts = [delta(role="assistant", content=""), delta(content="x"), delta(reasoning_content="y")]

    outcome = ask(Answer([*parts, delta(finish="stop"), END]))

    assert (outcome.error, len(outcome.chunks_s)) == (None, 2)


@pytest.mark.parametrize(("num_seen", "num_chunks"), [(0, 1), (2, 3), (3, 3)])
def test_an_end_without_text_counts_where_tokens_are_missing(
    num_seen: int, num_chunks: int
) -> None:
    outcome = ask(Answer([*[text("a")] * num_seen, text("", "length"), USAGE, END]))

    assert (outcome.error, len(outcome.chunks_s)) == (None, num_chunks)


@pytest.mark.parametrize(
    ("answer", "kind", "detail"),
    [
        (Answer([b'{"error": {"message": "too long"}}'], 400), "HTTP 400", "too long"),
        (Answer([text("a")]), "stream cut off", "after 1 chunks"),
        (Answer([END]), "no tokens", "empty"),
        (Answer([event(error={"message": "out of memory"})]), "error in the stream", "out of mem"),
        (Answer([b"data: {nonsense\n\n"]), "bad event", "{nonsense"),
        (Answer([event(choices=["x"])]), "bad answer", "attribute"),
    ],
)
def test_failures_by_kind(answer: Answer, kind: str, detail: str) -> None:
    outcome = ask(answer)

    assert outcome.error == kind
    assert detail in outcome.detail
    assert outcome.end_s > 0


def test_nobody_listens() -> None:
    outcome = RequestResult(0.0, 0.0)
    with serving({}) as server:
        url = server.url
    asyncio.run(send(StreamClient(url), outcome))

    assert outcome.error == "no connection"


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.splitlines() if b"Content-Length" in line
    )
    return head + await reader.readexactly(length)


def chunked(data: bytes) -> bytes:
    return b"%x;ext=1\r\n%s\r\n" % (len(data), data)


async def with_server(
    handler: Handler, num_requests: int, timeout_s: float = 20, api_key: str | None = None
) -> list[RequestResult]:
    outcomes = [RequestResult(0.0, 0.0) for _ in range(num_requests)]
    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = StreamClient(f"http://127.0.0.1:{port}", api_key, timeout_s)
    for outcome in outcomes:
        await client.send(PATH, {"prompt": "é"}, outcome)
    await client.aclose()
    server.close()
    await server.wait_closed()
    return outcomes


async def test_events_split_over_chunks_and_a_kept_connection() -> None:
    connections = 0
    requests: list[bytes] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        try:
            while True:
                requests.append(await read_request(reader))
                whole = text("a") + text("b", "length") + USAGE + END
                pieces = (whole[:20], whole[20:25], whole[25:])
                writer.write(HEAD + b"".join(map(chunked, pieces)) + b"0\r\n\r\n")
        except asyncio.IncompleteReadError:
            writer.close()

    outcomes = await with_server(handler, 3, api_key="secret-key")

    assert [(outcome.error, outcome.output_tokens) for outcome in outcomes] == [(None, 3)] * 3
    assert connections == 1
    assert b"Authorization: Bearer secret-key\r\n" in requests[0]


async def test_a_kept_connection_that_the_server_closed_is_replaced() -> None:
    connections = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await read_request(reader)
        writer.write(HEAD + chunked(text("a", "length") + END) + b"0\r\n\r\n")
        writer.close()

    outcomes = await with_server(handler, 2)

    assert [outcome.error for outcome in outcomes] == [None, None]
    assert connections == 2


async def test_a_server_that_says_nothing_times_out() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    outcomes = await with_server(handler, 1, timeout_s=0.1)

    assert outcomes[0].error == "timeout"


@pytest.mark.parametrize("greeting", [b"SSH-2.0 hello", b"hello", HEAD[:-4]])
async def test_an_answer_that_is_not_http(greeting: bytes) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(greeting + b"\r\n\r\nxyz\r\n")
        writer.close()

    outcomes = await with_server(handler, 1)

    assert outcomes[0].error == "bad answer"


@pytest.mark.parametrize("rest", [b"", b"1f", b"1f\r\ndata: {", b"1f\r\n"])
async def test_a_stream_that_breaks_off_between_or_inside_chunks_is_cut_off(rest: bytes) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HEAD + chunked(text("a")) + rest)
        writer.close()

    (outcome,) = await with_server(handler, 1)

    assert (outcome.error, outcome.detail) == ("stream cut off", "after 1 chunks")


async def test_connections_are_opened_before_they_are_needed_and_gone_ones_replaced() -> None:
    opened: list[asyncio.StreamWriter] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        while await reader.read(1 << 16):
            writer.write(HEAD + chunked(text("a", "length") + END) + b"0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    client = StreamClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    await client.connect_idle(3)
    await client.connect_idle(2)
    outcomes = [RequestResult(0.0, 0.0) for _ in range(3)]
    await asyncio.gather(*(client.send(PATH, {"prompt": "x"}, one) for one in outcomes))
    assert [outcome.error for outcome in outcomes] == [None] * 3
    assert len(opened) == 3
    opened[0].close()
    while sum(reader.at_eof() for reader, _ in client._idle) == 0:
        await asyncio.sleep(0)
    await client.connect_idle(3)
    await client.send(PATH, {"prompt": "x"}, outcomes[0])
    assert len(opened) == 4
    await client.aclose()
    server.close()
    await server.wait_closed()
