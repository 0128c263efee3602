"""Key check for /v1 and for what changes the server. Other paths stay open, as in vLLM.

The key comes as OpenAI's clients send it, or as Anthropic's do (`x-api-key`).
"""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.server.errors import ApiError, error_response

_PROTECTED = (
    *("/v1", "/v2", "/debug"),
    *("/reset_prefix_cache", "/sleep", "/wake_up", "/is_sleeping"),
)


class BearerAuth:
    """ASGI middleware; compares in constant time, so that the key cannot be guessed by timing."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._key = api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through or answer 401."""
        if (
            scope["type"] != "http"
            or not scope["path"].startswith(_PROTECTED)
            or self._is_allowed(Headers(scope=scope))
        ):
            await self._app(scope, receive, send)
            return
        error = ApiError(
            401,
            "This server needs an API key: send it as `Authorization: Bearer KEY`, or as "
            "`x-api-key: KEY`.",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
        await error_response(error)(scope, receive, send)

    def _is_allowed(self, headers: Headers) -> bool:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        is_bearer = self._is_key(key) and scheme.lower() == "bearer"
        return is_bearer or self._is_key(headers.get("x-api-key", ""))

    def _is_key(self, text: str) -> bool:
        # Header values are latin-1 on the wire; the key was read as UTF-8.
        return hmac.compare_digest(text.strip().encode("latin-1", "replace"), self._key)
