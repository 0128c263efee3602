"""Bearer key check for /v1 and for what changes the server. Other paths stay open, as in vLLM."""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.server.errors import ApiError, error_response

_PROTECTED = ("/v1", "/reset_prefix_cache", "/debug")


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
            or self._is_allowed(Headers(scope=scope).get("authorization", ""))
        ):
            await self._app(scope, receive, send)
            return
        error = ApiError(
            401,
            "This server needs an API key: send it as `Authorization: Bearer KEY`.",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
        await error_response(error)(scope, receive, send)

    def _is_allowed(self, header: str) -> bool:
        scheme, _, key = header.partition(" ")
        # Header values are latin-1 on the wire; the key was read as UTF-8.
        given = key.strip().encode("latin-1", "replace")
        return hmac.compare_digest(given, self._key) and scheme.lower() == "bearer"
