"""HTTP clients for one server: address, key, time limits, and httpx's errors turned into ours.

Tests enter through `transport` (httpx.MockTransport). Owns no endpoint.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import ssl
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from app.client.errors import InvalidUrl, Unreachable
from engine.machine.addresses import is_loopback, url_host

if TYPE_CHECKING:
    import httpx

DEFAULT_URL = "http://127.0.0.1:8000"
DEFAULT_TIMEOUT_S = 10.0
DEFAULT_MAX_CONNECTIONS = 100
# An answer may pause for minutes while a long prompt is computed; connecting may not.
STREAM_TIMEOUT_S = 600.0
CONNECT_TIMEOUT_S = 3.0
_UNIX = "unix:"
_ENDPOINT_SUFFIXES = ("/v1", "/metrics", "/health", "/v1/models", "/v1/chat/completions")


def normalise_base_url(text: str) -> str:
    """`localhost:8000`, `:8000`, `8000`, `http://h:p/v1/` and the like as `http://host:port`.

    `unix:PATH`, the socket of a server's --uds, stays one, with an absolute path.
    """
    address = text.strip()
    if address.startswith(_UNIX):
        return _UNIX + _socket_path(text, address)
    if address.isdigit():
        address = f":{address}"
    if "://" not in address:
        address = f"http://{address}"
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError as error:
        raise InvalidUrl(_refusal(text, str(error))) from error
    _check(text, parts.scheme, parts.hostname, port, "@" in parts.netloc)
    host = url_host(parts.hostname or "")
    return f"{parts.scheme}://{host}{f':{port}' if port else ''}{_prefix(parts.path)}"


def unix_socket(base_url: str) -> str | None:
    """The path of the Unix socket that a normalised address names; None for host and port."""
    return base_url.removeprefix(_UNIX) if base_url.startswith(_UNIX) else None


def _socket_path(text: str, address: str) -> str:
    path = address.removeprefix(_UNIX)
    path = path.removeprefix("//") if path.startswith("//") else path
    if not path:
        raise InvalidUrl(_refusal(text, "it names no socket"))
    return os.path.abspath(os.path.expanduser(path))


def _prefix(path: str) -> str:
    """A path before the endpoints (a reverse proxy's), with a pasted endpoint cut off."""
    path = path.rstrip("/")
    for suffix in sorted(_ENDPOINT_SUFFIXES, key=len, reverse=True):
        if path.endswith(suffix):
            return path.removesuffix(suffix)
    return path


def _check(text: str, scheme: str, host: str | None, port: int | None, has_login: bool) -> None:
    if scheme not in ("http", "https"):
        raise InvalidUrl(_refusal(text, f"the scheme {scheme!r} is not http or https"))
    if has_login:
        raise InvalidUrl("the address carries a login; put the key into STOKER_API_KEY instead")
    if not host and port is None:
        raise InvalidUrl(_refusal(text, "it names no host"))
    if host and any(char.isspace() or char in "\"'<>\\^`{|}" for char in host):
        raise InvalidUrl(_refusal(text, "the host has a character that no host name has"))


def _refusal(text: str, reason: str) -> str:
    return f"{text!r} is not a server address: {reason}; write it like {DEFAULT_URL}"


def open_client(
    base_url: str,
    *,
    api_key: str | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    transport: httpx.BaseTransport | None = None,
) -> httpx.Client:
    """A client whose relative paths start at `base_url`; the caller closes it."""
    import httpx

    options = _options(base_url, api_key, timeout_s)
    if transport is None and (path := unix_socket(normalise_base_url(base_url))):
        transport = httpx.HTTPTransport(uds=path)
    return httpx.Client(transport=transport, **options)


def open_async_client(
    base_url: str,
    *,
    api_key: str | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    max_connections: int = DEFAULT_MAX_CONNECTIONS,
    transport: httpx.AsyncBaseTransport | None = None,
) -> httpx.AsyncClient:
    """The asynchronous twin of `open_client`; more requests at once than connections wait."""
    import httpx

    options = _options(base_url, api_key, timeout_s)
    limits = httpx.Limits(
        max_connections=max_connections, max_keepalive_connections=max_connections
    )
    if transport is None and (path := unix_socket(normalise_base_url(base_url))):
        transport = httpx.AsyncHTTPTransport(uds=path, limits=limits)
    return httpx.AsyncClient(transport=transport, limits=limits, **options)


def _options(base_url: str, api_key: str | None, timeout_s: float) -> dict[str, Any]:
    """What both kinds of client are made with."""
    import httpx

    base = _checked_base_url(base_url)
    return {
        "base_url": base,
        "headers": _headers(api_key),
        "timeout": httpx.Timeout(timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S)),
        "trust_env": _may_use_proxy(base),
        "verify": _verification(base),
        "follow_redirects": True,
    }


def _checked_base_url(base_url: str) -> str:
    import httpx

    base = normalise_base_url(base_url)
    if unix_socket(base) is not None:
        return "http://localhost"  # what stands in the Host header; the socket decides
    try:
        httpx.URL(base)
    except httpx.InvalidURL as error:
        raise InvalidUrl(_refusal(base_url, str(error))) from error
    return base


def _headers(api_key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def _may_use_proxy(base_url: str) -> bool:
    """A proxy from the environment cannot reach this machine's own loopback."""
    return not is_loopback(urlsplit(base_url).hostname or "")


def _verification(base_url: str) -> ssl.SSLContext:
    """Whom to trust: what httpx does, read only where it can be needed.

    To read the authorities takes a tenth of a second, before each first picture and first answer.
    Plain HTTP to this machine needs none; should it lead to HTTPS, nobody is trusted.
    """
    parts = urlsplit(base_url)
    if parts.scheme == "http" and is_loopback(parts.hostname or ""):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return _authorities(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@functools.lru_cache(maxsize=4)
def _authorities(_cert_file: str | None, _cert_dir: str | None) -> ssl.SSLContext:
    """Those that httpx trusts where these variables are set; read once for all clients."""
    import httpx

    return httpx.create_ssl_context()


@contextlib.contextmanager
def connection_errors(base_url: str) -> Iterator[None]:
    """Turn httpx's transport errors into `Unreachable`, with the reason in words."""
    import httpx

    base_url = normalise_base_url(base_url)
    try:
        yield
    except httpx.TimeoutException as error:
        raise Unreachable(f"{base_url} did not answer in time") from error
    except httpx.ConnectError as error:
        raise Unreachable(f"no server answers at {base_url} ({_reason(error)})") from error
    except (httpx.TransportError, httpx.DecodingError) as error:
        raise Unreachable(f"the connection to {base_url} broke ({_reason(error)})") from error


def _reason(error: Exception) -> str:
    text = re.sub(r"^\[Errno \d+\] ", "", str(error)) or type(error).__name__
    lowered = text.lower()
    if "refused" in lowered or "all connection attempts failed" in lowered:
        return "connection refused"
    if "name or service not known" in lowered or "nodename nor servname" in lowered:
        return "unknown host name"
    return text
