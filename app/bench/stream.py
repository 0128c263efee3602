"""A lean HTTP/1.1 client for streamed completions: it shares the cores with what it measures.

One kept connection per request in flight, no proxies, no redirects. It times chunks and counts
tokens; it does not know what is measured or why.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from array import array
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from app.client.transport import unix_socket

_CONNECT_S = 10.0
_LINE_LIMIT = 1 << 20
# vLLM's words when --max-num-queued-reqs or --max-num-queued-tokens is reached.
_VLLM_IS_BUSY = ("currently busy", "backlog limit")
_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(slots=True)
class RequestResult:
    """One request: when it was due, when each chunk with tokens came, what the server counted.

    Times are seconds of the monotonic clock. `error` is the kind of a failure, else None.
    """

    due_s: float
    sent_s: float
    end_s: float = 0.0
    chunks_s: array[float] = field(default_factory=lambda: array("d"))  # a day has very many
    wanted_tokens: int = 0
    expected_prompt_tokens: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    empty_end_s: float | None = None  # when the end came in a chunk without text
    error: str | None = None
    detail: str = ""

    @property
    def is_refused(self) -> bool:
        """Whether the server was too busy to take it, and said so: no failure."""
        is_vllms = self.error == "HTTP 503" and any(word in self.detail for word in _VLLM_IS_BUSY)
        return self.error == "HTTP 429" or is_vllms


class StreamError(Exception):
    """A request failed; `kind` is what failures are counted by."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(detail)
        self.kind = kind


class StreamClient:
    """Sends streamed requests to one server and keeps idle connections."""

    def __init__(self, base_url: str, api_key: str | None = None, timeout_s: float = 600) -> None:
        self._socket = unix_socket(base_url)
        parts = urlsplit("http://localhost" if self._socket else base_url)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._prefix = parts.path
        self._timeout_s = timeout_s
        key = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        self._headers = f"Host: {parts.netloc}\r\nContent-Type: application/json\r\n{key}"
        self._idle: list[_Connection] = []
        self._closing: list[asyncio.StreamWriter] = []

    async def send(self, path: str, body: Mapping[str, object], outcome: RequestResult) -> None:
        """Send one request and fill `outcome`; a failure is written into it, never raised."""
        try:
            await asyncio.wait_for(self._send(path, body, outcome), self._timeout_s)
        except asyncio.TimeoutError:
            outcome.error, outcome.detail = "timeout", f"no end after {self._timeout_s:g} s"
        except StreamError as error:
            outcome.error, outcome.detail = error.kind, str(error)
        except (OSError, EOFError) as error:
            outcome.error, outcome.detail = "broken connection", str(error) or repr(error)
        except (ValueError, LookupError, AttributeError, asyncio.LimitOverrunError) as error:
            outcome.error, outcome.detail = "bad answer", repr(error)
        outcome.end_s = time.monotonic()

    async def connect_idle(self, count: int) -> None:
        """Have `count` open connections ready; what cannot be opened is left to the requests."""
        gone = [one for one in self._idle if one[0].at_eof()]
        for connection in gone:
            self._idle.remove(connection)
            self._discard(connection[1])
        missing = range(count - len(self._idle))
        opened = await asyncio.gather(*(self._connect() for _ in missing), return_exceptions=True)
        self._idle += [one for one in opened if not isinstance(one, BaseException)]

    async def aclose(self) -> None:
        """Close what is open, and wait until it is."""
        for _, writer in self._idle:
            self._discard(writer)
        self._idle.clear()
        await asyncio.gather(
            *(writer.wait_closed() for writer in self._closing), return_exceptions=True
        )
        self._closing.clear()

    def _discard(self, writer: asyncio.StreamWriter) -> None:
        writer.close()
        self._closing.append(writer)

    async def _send(self, path: str, body: Mapping[str, object], outcome: RequestResult) -> None:
        content = json.dumps(body).encode()
        request = (
            f"POST {self._prefix}{path} HTTP/1.1\r\n{self._headers}"
            f"Content-Length: {len(content)}\r\n\r\n"
        ).encode() + content
        connection, status, headers = await self._ask_somewhere(request)
        can_be_kept = False
        try:
            if status != 200:
                error = await _refusal(connection[0], headers, status)
                can_be_kept = _can_be_kept(headers)
                raise error
            try:
                await _read_events(connection[0], headers, outcome)
            except (OSError, EOFError) as error:
                raise _cut_off(outcome) from error
            can_be_kept = _can_be_kept(headers)
        finally:
            if can_be_kept:
                self._idle.append(connection)
            else:
                self._discard(connection[1])

    async def _ask_somewhere(self, request: bytes) -> tuple[_Connection, int, dict[str, str]]:
        """Send on a kept connection or a new one; the head of the answer."""
        while True:
            is_kept = bool(self._idle)
            connection = self._idle.pop() if is_kept else await self._connect()
            try:
                return (connection, *await _ask(connection, request))
            except (OSError, EOFError):
                self._discard(connection[1])
                if not is_kept:  # a kept connection may have been closed by the server meanwhile
                    raise
            except BaseException:
                self._discard(connection[1])
                raise

    async def _connect(self) -> _Connection:
        opening = (
            asyncio.open_unix_connection(self._socket, limit=_LINE_LIMIT)
            if self._socket
            else asyncio.open_connection(self._host, self._port, ssl=self._tls, limit=_LINE_LIMIT)
        )
        try:
            return await asyncio.wait_for(opening, _CONNECT_S)
        except asyncio.TimeoutError as error:
            raise StreamError("no connection", f"not within {_CONNECT_S:g} s") from error
        except OSError as error:
            raise StreamError("no connection", str(error)) from error


def _can_be_kept(headers: Mapping[str, str]) -> bool:
    is_framed = "chunked" in headers.get("transfer-encoding", "") or "content-length" in headers
    return is_framed and headers.get("connection", "").lower() != "close"


async def _ask(connection: _Connection, request: bytes) -> tuple[int, dict[str, str]]:
    """Send, and read the head of the answer."""
    reader, writer = connection
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").rstrip().split("\r\n")
    fields = (line.partition(":") for line in lines)
    return int(first.split()[1]), {name.lower(): value.strip() for name, _, value in fields}


async def _pieces(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    """The body as it comes, without the framing."""
    if "chunked" not in headers.get("transfer-encoding", ""):
        remaining = int(headers.get("content-length", 1 << 60))
        while remaining > 0 and (piece := await reader.read(min(remaining, _LINE_LIMIT))):
            remaining -= len(piece)
            yield piece
        return
    while size := await _chunk_size(reader):
        yield (await reader.readexactly(size + 2))[:-2]
    while (await reader.readline()).strip():
        continue


async def _chunk_size(reader: asyncio.StreamReader) -> int:
    """The next chunk's; EOFError where the connection ends before the last one, of 0 bytes."""
    line = await reader.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    return int(line.partition(b";")[0], 16)


def _cut_off(outcome: RequestResult) -> StreamError:
    return StreamError("stream cut off", f"after {len(outcome.chunks_s)} chunks")


async def _refusal(
    reader: asyncio.StreamReader, headers: Mapping[str, str], status: int
) -> StreamError:
    """What an answer that is none says; its body has been read."""
    from app.client.errors import error_text

    body = b"".join([piece async for piece in _pieces(reader, headers)])
    return StreamError(f"HTTP {status}", error_text(body.decode(errors="replace")))


async def _read_events(
    reader: asyncio.StreamReader, headers: Mapping[str, str], outcome: RequestResult
) -> None:
    from app.client.sse import END_OF_STREAM, EventParser

    parser, is_complete = EventParser(), False
    async for piece in _pieces(reader, headers):
        now = time.monotonic()
        for data in parser.feed(piece):
            if data == END_OF_STREAM:
                is_complete = True
            else:
                _take(data, now, outcome)
    if not is_complete and outcome.finish_reason is None:
        raise _cut_off(outcome)
    _count_empty_end(outcome)
    if not outcome.chunks_s:
        raise StreamError("no tokens", "the answer is empty")


def _take(data: str, now: float, outcome: RequestResult) -> None:
    """Read one event into `outcome`."""
    try:
        event = json.loads(data)
    except ValueError as error:
        raise StreamError("bad event", data[:80]) from error
    if not isinstance(event, dict) or event.get("error") or event.get("object") == "error":
        from app.client.errors import error_text

        raise StreamError("error in the stream", error_text(data))
    _take_usage(event.get("usage"), outcome)
    for choice in event.get("choices") or ():
        outcome.finish_reason = choice.get("finish_reason") or outcome.finish_reason
        if _has_tokens(choice):
            outcome.chunks_s.append(now)
        elif choice.get("finish_reason"):
            outcome.empty_end_s = now


def _has_tokens(choice: Mapping[str, Any]) -> bool:
    """False for a chunk that only names the role or the reason of the end.

    Tokens without text (special ones, the first bytes of a character) count.
    """
    delta = choice.get("delta") or {}
    text = choice.get("text") or delta.get("content") or delta.get("reasoning_content")
    return bool(text) or not (delta.get("role") or choice.get("finish_reason"))


def _count_empty_end(outcome: RequestResult) -> None:
    """The last chunk may bring tokens without text: then the server counts more than was seen."""
    has_more = len(outcome.chunks_s) < (outcome.output_tokens or 0)
    if outcome.empty_end_s is not None and has_more:
        outcome.chunks_s.append(outcome.empty_end_s)


def _take_usage(usage: Mapping[str, Any] | None, outcome: RequestResult) -> None:
    if not usage:
        return
    outcome.prompt_tokens = usage.get("prompt_tokens")
    outcome.output_tokens = usage.get("completion_tokens")
    details = usage.get("prompt_tokens_details") or {}
    outcome.cached_tokens = details.get("cached_tokens", outcome.cached_tokens)
