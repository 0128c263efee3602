"""What web pages may do here: named origins by CORS, all others nothing that changes the server.

A page that somebody has open can send requests to 127.0.0.1 from inside the machine, and a name
that its owner points at 127.0.0.1 makes it look like the server's own. Programs that are no
browsers send no Origin and are not concerned.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.args import EngineArgs
from engine.machine.addresses import is_loopback
from engine.server.errors import ApiError, error_response

_ANY = "*"
_READING_METHODS = ("GET", "HEAD", "OPTIONS")
# No page's owner can give these names an address of their choice.
_LOCAL_SUFFIXES = (".localhost", ".local", ".internal")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserAccess:
    """Rules for browsers; vLLM's names where it has them.

    `allowed_hosts` None leaves the Host header unchecked: behind a key or on a network address
    there is no secret in being reachable. `checks_origin` is off behind a key, which no foreign
    page knows.
    """

    allowed_origins: tuple[str, ...] = ()
    allowed_methods: tuple[str, ...] = (_ANY,)
    allowed_headers: tuple[str, ...] = (_ANY,)
    allow_credentials: bool = False
    allowed_hosts: tuple[str, ...] | None = None
    checks_origin: bool = True


def browser_access(args: EngineArgs) -> BrowserAccess:
    """The rules that the flags ask for."""
    has_key = args.api_key is not None
    is_private = not has_key and is_loopback(args.host)
    return BrowserAccess(
        allowed_origins=args.allowed_origins,
        allowed_methods=args.allowed_methods,
        allowed_headers=args.allowed_headers,
        allow_credentials=args.allow_credentials,
        allowed_hosts=args.allowed_hosts if is_private and _ANY not in args.allowed_hosts else None,
        checks_origin=not has_key,
    )


def add_browser_rules(app: FastAPI, access: BrowserAccess) -> None:
    """Put the rules around everything that `app` has so far."""
    app.add_middleware(_BrowserGuard, access=access)
    if access.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=access.allowed_origins,
            allow_methods=access.allowed_methods,
            allow_headers=access.allowed_headers,
            allow_credentials=access.allow_credentials,
        )


class _BrowserGuard:
    """ASGI middleware: 403 for a foreign page's writes and for names of other machines."""

    def __init__(self, app: ASGIApp, access: BrowserAccess) -> None:
        self._app = app
        self._access = access
        self._own_names = {"localhost", socket.gethostname().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through or answer 403."""
        error = self._refusal(scope) if scope["type"] == "http" else None
        if error is None:
            await self._app(scope, receive, send)
        else:
            await error_response(error)(scope, receive, send)

    def _refusal(self, scope: Scope) -> ApiError | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if host and not self._is_own_host(host):
            return ApiError(
                403,
                f"This server does not answer under the name {_host_name(host)!r}; call it as "
                "localhost or by its address, or start it with --allowed-hosts NAME or a key.",
                code="host_not_allowed",
            )
        if scope["method"] not in _READING_METHODS and self._is_foreign_page(headers, host):
            return ApiError(
                403,
                "A web page of another origin may not send this request; start the server with "
                "--allowed-origins ORIGIN to let it.",
                code="origin_not_allowed",
            )
        return None

    def _is_own_host(self, host: str) -> bool:
        allowed = self._access.allowed_hosts
        name = _host_name(host)
        return (
            allowed is None
            or "." not in name  # a machine's or a container's bare name; public names have dots
            or name in self._own_names
            or name in allowed
            or name.endswith(_LOCAL_SUFFIXES)
            or _is_address(name)
        )

    def _is_foreign_page(self, headers: Headers, host: str) -> bool:
        origin = headers.get("origin")
        allowed = self._access.allowed_origins
        if not self._access.checks_origin or origin is None or _ANY in allowed or origin in allowed:
            return False
        # The browser's own word; it also knows the name in front of a proxy that rewrites Host.
        site = headers.get("sec-fetch-site")
        if site is not None:
            return site not in ("same-origin", "none")
        parts = urlsplit(origin)
        # Extensions and desktop programs have schemes of their own, which no page can send.
        return origin == "null" or (parts.scheme in ("http", "https") and parts.netloc != host)


def _host_name(host: str) -> str:
    """`localhost` of `localhost:8000`, `::1` of `[::1]:8000`."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
