"""Server-sent events, and the OpenAI endpoints' answers made of them: one JSON object per event.

The same for threads and for asyncio. Knows what ends a stream and what breaks it off, not what the
events mean.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from app.client.errors import BadAnswer, error_text, status_error
from app.client.transport import (
    STREAM_TIMEOUT_S,
    connection_errors,
    open_async_client,
    open_client,
)

if TYPE_CHECKING:
    import httpx

_LINE = re.compile(r"([^\r\n]*)(\r\n|\n|\r)")
END_OF_STREAM = "[DONE]"
_JSON = {"Content-Type": "application/json"}
Event = dict[str, Any]


class EventParser:
    """Holds the unfinished line and the data lines of the unfinished event."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._buffer = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> Iterator[str]:
        """Yield the data of each event that `chunk` completes."""
        self._buffer += self._decoder.decode(chunk)
        position = 0
        while match := _LINE.match(self._buffer, position):
            # A carriage return at the very end may be half of a CRLF: wait for the next piece.
            if match.group(2) == "\r" and match.end() == len(self._buffer):
                break
            position = match.end()
            yield from self._take(match.group(1))
        self._buffer = self._buffer[position:]

    def finish(self) -> Iterator[str]:
        """Yield the last event of a stream that ended without its empty line."""
        yield from self._take(self._buffer.rstrip("\r"))
        yield from self._take("")
        self._buffer = ""

    def _take(self, line: str) -> Iterator[str]:
        if not line:
            if self._data:
                yield "\n".join(self._data)
                self._data = []
            return
        field, _, value = line.partition(":")
        if field == "data":
            self._data.append(value.removeprefix(" "))


def iter_events(chunks: Iterable[bytes]) -> Iterator[str]:
    """The data of each event in a stream of byte chunks."""
    parser = EventParser()
    for chunk in chunks:
        yield from parser.feed(chunk)
    yield from parser.finish()


@dataclass(slots=True)
class _EventReader:
    """From bytes to events; remembers whether the answer has come to its end."""

    parser: EventParser = field(default_factory=EventParser)
    has_finish_reason: bool = False
    is_done: bool = False

    def feed(self, chunk: bytes | None) -> list[Event]:
        """The events that `chunk` completes; None stands for the end of the stream."""
        found: list[Event] = []
        for data in self.parser.finish() if chunk is None else self.parser.feed(chunk):
            if data.strip() == END_OF_STREAM:
                self.is_done = True
            if self.is_done:
                break
            event = _event(data, found)
            self.has_finish_reason |= any(
                choice.get("finish_reason") for choice in event.get("choices") or ()
            )
            found.append(event)
        return found

    def check_end(self) -> None:
        """A stream that ended without an end was broken off."""
        if not (self.is_done or self.has_finish_reason):
            raise BadAnswer("the stream ended in the middle of the answer")


class _BrokenOff(BadAnswer):
    """An event that ends the answer; `before` came in the same chunk and still counts."""

    def __init__(self, text: str, before: list[Event]) -> None:
        super().__init__(text)
        self.before = before


def _event(data: str, before: list[Event]) -> Event:
    try:
        event = json.loads(data)
    except (ValueError, RecursionError) as error:
        text = f"the stream holds an event that is not JSON: {data[:80]!r}"
        raise _BrokenOff(text, before) from error
    if not isinstance(event, dict):
        raise _BrokenOff(f"the stream holds an event that is not an object: {data[:80]!r}", before)
    # Some servers send the error nested, others as a flat object with "object": "error".
    if event.get("error") or event.get("object") == "error":
        raise _BrokenOff(f"the server broke the answer off: {error_text(data)}", before)
    return event


def _encoded(body: Mapping[str, object]) -> bytes:
    """As UTF-8; half of a surrogate pair (from a strange argument) becomes a question mark."""
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


def post_events(
    base_url: str,
    path: str,
    body: Mapping[str, object],
    *,
    api_key: str | None = None,
    timeout_s: float = STREAM_TIMEOUT_S,
    transport: httpx.BaseTransport | None = None,
) -> Generator[Event, None, None]:
    """Yield the events of one answer; closing the generator aborts the request."""
    client = open_client(base_url, api_key=api_key, timeout_s=timeout_s, transport=transport)
    with (
        connection_errors(base_url),
        client,
        client.stream("POST", path, content=_encoded(body), headers=_JSON) as response,
    ):
        if response.is_error:
            response.read()
            raise status_error(str(response.url), response.status_code, response.text)
        reader = _EventReader()
        try:
            for chunk in response.iter_bytes():
                yield from reader.feed(chunk)
                if reader.is_done:
                    return
            yield from reader.feed(None)
        except _BrokenOff as error:
            yield from error.before
            raise
        reader.check_end()


async def post_events_async(
    base_url: str,
    path: str,
    body: Mapping[str, object],
    *,
    api_key: str | None = None,
    timeout_s: float = STREAM_TIMEOUT_S,
    transport: httpx.AsyncBaseTransport | None = None,
) -> AsyncGenerator[Event, None]:
    """The asynchronous twin of `post_events`; cancelling its task aborts the request at once."""
    client = open_async_client(base_url, api_key=api_key, timeout_s=timeout_s, transport=transport)
    with connection_errors(base_url):
        sent = _encoded(body)
        async with client, client.stream("POST", path, content=sent, headers=_JSON) as response:
            if response.is_error:
                await response.aread()
                raise status_error(str(response.url), response.status_code, response.text)
            reader = _EventReader()
            try:
                async for chunk in response.aiter_bytes():
                    for event in reader.feed(chunk):
                        yield event
                    if reader.is_done:
                        return
                for event in reader.feed(None):
                    yield event
            except _BrokenOff as error:
                for event in error.before:
                    yield event
                raise
            reader.check_end()
