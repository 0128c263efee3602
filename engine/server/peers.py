"""The other API servers of a server that has several: what only one of them knows is asked of all.

They answer on socket files in a private folder, with the same routes and the same key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

_ASKED_HEADER = b"x-stoker-asked-by-peer"
_PASSED_ON = (b"authorization", b"x-api-key", b"host")
"""The key, as OpenAI's or Anthropic's clients send it, and the name that browsers' rules check."""

_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class Peers:
    """`sockets` are the files at which the others listen; none where there is one API server."""

    sockets: tuple[str, ...] = ()

    async def first_answer(self, request: Request) -> Response | None:
        """The answer of the one that does not say 404; None where nobody knows more."""
        for status, body in await self._ask_all(request):
            if status != 404:
                return Response(body, status, media_type="application/json")
        return None

    async def documents(self, request: Request) -> list[Any]:
        """The JSON with which those that are there answer the same question."""
        import msgspec

        answers = await self._ask_all(request)
        return [msgspec.json.decode(body) for status, body in answers if status == 200]

    async def _ask_all(self, request: Request) -> Sequence[tuple[int, bytes]]:
        if not self.sockets or _ASKED_HEADER.decode() in request.headers:
            return ()
        answers = await asyncio.gather(*(_ask(socket, request) for socket in self.sockets))
        return [answer for answer in answers if answer is not None]


NO_PEERS = Peers()


async def _ask(socket: str, request: Request) -> tuple[int, bytes] | None:
    """Status and body; None where nobody answers: it is being started again, or the path cannot be
    passed on.
    """
    import httpx

    headers = [(name, value) for name, value in request.headers.raw if name in _PASSED_ON]
    headers.append((_ASKED_HEADER, b"1"))
    transport = httpx.AsyncHTTPTransport(uds=socket)
    async with httpx.AsyncClient(transport=transport, timeout=_TIMEOUT_S) as http:
        try:
            url = httpx.URL("http://peer", raw_path=request.scope["raw_path"])
            answer = await http.request(request.method, url, headers=headers)
        except (httpx.TransportError, httpx.InvalidURL, UnicodeDecodeError):
            return None
        return answer.status_code, answer.content
