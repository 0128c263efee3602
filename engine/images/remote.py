"""Images at http and https addresses: only of hosts that a flag names, and never of private ones.

A name is looked up once, and the connection goes to the address that was checked, so that a second
answer of the name server cannot lead elsewhere. Each redirect is checked in the same way.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urljoin, urlsplit

from engine.frontend.daemon_thread import in_daemon_thread
from engine.images.jobs import MAX_IMAGE_BYTES, ImageError

if TYPE_CHECKING:
    import httpx

ANY_DOMAIN = "*"

_LIMIT_S = 5.0  # vLLM's VLLM_IMAGE_FETCH_TIMEOUT; here for everything together
_MOST_REDIRECTS = 3
_REDIRECTS = (301, 302, 303, 307, 308)

_LOOK_UPS_AT_A_TIME = 4

LookUp = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host, asked for a port."""


async def look_up(host: str, port: int) -> list[str]:
    """The addresses of a host, as the system resolves it."""
    ask = functools.partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    # A name server may be slow, and no call to it can be ended: the server's stop waits for none.
    found = await in_daemon_thread(ask)
    return [str(address[0]) for *_, address in found]


def is_public(address: str) -> bool:
    """Whether an address is one of the whole network: no loopback, private or link-local one.

    Of IPv6 those are in one range; what lies outside leads to an IPv4 address or somewhere near.
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo and found.teredo[1])
        if found in _NAT64:
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if inner:
            return is_public(str(inner))
        if found not in _GLOBAL_UNICAST:
            return False
    return found.is_global and not found.is_multicast


_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")


@dataclass(frozen=True, slots=True)
class MediaFetcher:
    """Fetches images for requests; without `domains` none are.

    `domains` are host names, of which `*` stands for every public one. `look_up` and `is_allowed`
    are there for tests.
    """

    domains: tuple[str, ...] = ()
    look_up: LookUp = look_up
    is_allowed: Callable[[str], bool] = is_public
    _seats: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(_LOOK_UPS_AT_A_TIME), init=False, compare=False
    )

    async def fetch(self, url: str) -> bytes:
        """The content at `url`; ImageError says why there is none."""
        import httpx

        try:
            return await asyncio.wait_for(self._fetch(url), _LIMIT_S)
        except asyncio.TimeoutError as error:
            raise ImageError(f"was not there after {_LIMIT_S:g} s") from error
        except (OSError, ValueError, httpx.HTTPError, httpx.InvalidURL) as error:
            raise ImageError(f"cannot be fetched: {error or type(error).__name__}") from error

    async def _fetch(self, url: str) -> bytes:
        import httpx

        # No proxy of the environment: it would look the name up again.
        async with httpx.AsyncClient(trust_env=False, timeout=_LIMIT_S) as client:
            for _ in range(_MOST_REDIRECTS + 1):
                found = await self._follow(client, url)
                if isinstance(found, bytes):
                    return found
                url = found
        raise ImageError(f"leads on more than {_MOST_REDIRECTS} times")

    async def _follow(self, client: httpx.AsyncClient, url: str) -> bytes | str:
        """The content, or the address that it leads on to."""
        parts = self._allowed(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        address = await self._checked_address(host, port)
        shown = f"[{address}]" if ":" in address else address
        async with client.stream(
            "GET",
            parts._replace(netloc=f"{shown}:{port}", fragment="").geturl(),
            # What is packed could unpack to any size.
            headers={"Host": parts.netloc, "Accept": "image/*", "Accept-Encoding": "identity"},
            extensions={"sni_hostname": host},
        ) as response:
            if response.status_code in _REDIRECTS and "location" in response.headers:
                return urljoin(url, response.headers["location"])
            if response.status_code != 200:
                raise ImageError(f"cannot be fetched: its server answers {response.status_code}")
            return await _body(response)

    def _allowed(self, url: str) -> SplitResult:
        """The parts of an address whose host may be asked."""
        try:
            parts = urlsplit(url)
            port, host = parts.port, parts.hostname
        except ValueError as error:
            raise ImageError(f"has no valid address ({error})") from error
        if parts.scheme not in ("http", "https") or not host or port == 0:
            raise ImageError("has no address of http or https")
        if parts.username is not None or parts.password is not None:
            raise ImageError("has a name or a password in its address, which is not sent on")
        if _is_literal(host) and not self.is_allowed(host):  # no flag would help
            raise _not_public(host)
        if not self.domains:
            raise ImageError(
                "is an address, and this server fetches nothing; send the image as a data: URI, or "
                f"start the server with --allowed-media-domains {host}"
            )
        if ANY_DOMAIN not in self.domains and host.lower() not in map(str.lower, self.domains):
            raise ImageError(
                f"is at {host}, and this server fetches from {', '.join(self.domains)} alone "
                "(--allowed-media-domains)"
            )
        return parts

    async def _checked_address(self, host: str, port: int) -> str:
        async with self._seats:
            addresses = await self.look_up(host, port)
        for address in addresses:
            if not self.is_allowed(address):
                raise _not_public(host)
        if not addresses:
            raise ImageError(f"is at {host}, which has no address")
        return addresses[0]


def _not_public(host: str) -> ImageError:
    return ImageError(f"is at {host}, which is no public address, and none but those are asked")


def _is_literal(host: str) -> bool:
    """Whether it is an address itself, or this machine's name for itself."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host.lower() == "localhost"
    return True


async def _body(response: httpx.Response) -> bytes:
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise ImageError("cannot be fetched: its server packs it, though it was asked not to")
    parts, size = [], 0
    async for part in response.aiter_raw():
        size += len(part)
        if size > MAX_IMAGE_BYTES:
            raise ImageError(f"is larger than {MAX_IMAGE_BYTES >> 20} MiB, the limit")
        parts.append(part)
    return b"".join(parts)
