"""Images at addresses of the network: which hosts are asked, and which addresses never are."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

import pytest

from engine.images.jobs import MAX_IMAGE_BYTES, ImageError
from engine.images.remote import MediaFetcher, is_public, look_up

Answer = tuple[str, Mapping[str, str], bytes]


@contextlib.asynccontextmanager
async def web_server(answers: Mapping[str, Answer]) -> AsyncGenerator[int, None]:
    """Answers paths on a port of loopback; the connection ends behind each answer."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        status, headers, body = answers[request.split()[1].decode()]
        lines = [f"HTTP/1.1 {status}", *(f"{name}: {text}" for name, text in headers.items())]
        writer.write("\r\n".join([*lines, "connection: close", "", ""]).encode())
        with contextlib.suppress(ConnectionError):
            writer.write(body)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def fetcher(
    *domains: str,
    names: Mapping[str, Sequence[str]] | None = None,
    is_allowed: Callable[[str], bool] = is_public,
) -> MediaFetcher:
    """One for which `names` is the name server; without, no name may be looked up."""

    async def look_up(host: str, _port: int) -> Sequence[str]:
        return (names or {})[host]

    return MediaFetcher(domains, look_up, is_allowed)


def loopback_is_fine(address: str) -> bool:
    return address == "127.0.0.1"


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.8.9.1", "0.0.0.0", "10.0.0.1", "172.16.5.4", "192.168.1.1"),
        *("169.254.169.254", "100.64.0.1", "224.0.0.1", "255.255.255.255", "198.18.0.1"),
        *("::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "ff02::1", "::ffff:127.0.0.1"),
        *("::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "no address", ""),
        *("fec0::1", "::7f00:1", "::ffff:0:7f00:1", "64:ff9b:1::7f00:1"),
    ],
)
def test_addresses_that_are_not_of_the_whole_network(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"])
def test_public_addresses(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "url",
    [
        *("http://evil.example/", "http://evil.example:8080/x", "https://evil.example/x.png"),
        *("http://both.example/", "http://six.example/"),
    ],
)
async def test_a_name_that_leads_to_a_private_address_is_refused(url: str) -> None:
    names = {
        "evil.example": ["169.254.169.254"],
        "both.example": ["8.8.8.8", "127.0.0.1"],
        "six.example": ["::ffff:127.0.0.1"],
    }
    with pytest.raises(ImageError, match="no public address"):
        await fetcher("*", names=names).fetch(url)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://other.example/x.png", "fetches from good.example alone"),
        ("http://good.example.other/x.png", "fetches from good.example alone"),
        ("http://user:word@good.example/x.png", "a name or a password"),
        ("http://good.example:99999/", "no valid address"),
        ("http://good.example:0/", "no address of http"),
        ("http:///x.png", "no address of http"),
        ("http://[::1/", "no valid address"),
        ("http://good.example\\@other.example/", "a name or a password"),
    ],
)
async def test_hosts_that_are_not_named_are_not_asked(url: str, said: str) -> None:
    with pytest.raises(ImageError, match=said):
        await fetcher("good.example").fetch(url)


async def test_without_the_flag_nothing_is_fetched() -> None:
    with pytest.raises(ImageError, match=r"--allowed-media-domains good\.example"):
        await fetcher().fetch("http://good.example/x.png")


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "[fe80::1%25eth0]", "LocalHost"])
async def test_no_flag_is_advised_that_would_not_help(host: str) -> None:
    for found in (fetcher(), fetcher("good.example"), fetcher("*")):
        with pytest.raises(ImageError, match="no public address") as refusal:
            await found.fetch(f"http://{host}/x.png")
        assert "--allowed" not in str(refusal.value)


async def test_the_connection_goes_to_the_address_that_was_checked() -> None:
    answers: dict[str, Answer] = {"/x.png?a=1": ("200 OK", {}, b"content")}
    async with web_server(answers) as port:
        found = fetcher(
            "Good.example", names={"good.example": ["127.0.0.1"]}, is_allowed=loopback_is_fine
        )
        assert await found.fetch(f"http://good.example:{port}/x.png?a=1#part") == b"content"


async def test_redirects_are_checked_like_the_first_address() -> None:
    async with web_server(
        {
            "/there": ("302 Found", {"location": "/here"}, b""),
            "/here": ("200 OK", {}, b"content"),
            "/inside": ("302 Found", {"location": "http://inside.example/x"}, b""),
            "/other": ("302 Found", {"location": "http://other.example/x"}, b""),
            "/file": ("302 Found", {"location": "file:///etc/passwd"}, b""),
            "/broken": ("302 Found", {"location": "http://[::1"}, b""),
            "/round": ("307 Temporary Redirect", {"location": "/round"}, b""),
        }
    ) as port:
        names = {"good.example": ["127.0.0.1"], "inside.example": ["10.0.0.1"]}
        found = fetcher("good.example", "inside.example", names=names, is_allowed=loopback_is_fine)
        base = f"http://good.example:{port}"
        assert await found.fetch(f"{base}/there") == b"content"
        for path, said in (
            ("inside", "no public address"),
            ("other", "fetches from good.example"),
            ("file", "no address of http"),
            ("broken", "cannot be fetched: Invalid"),
            ("round", "leads on more than 3 times"),
        ):
            with pytest.raises(ImageError, match=said):
                await found.fetch(f"{base}/{path}")


async def test_answers_that_hold_no_image_are_refused() -> None:
    async with web_server(
        {
            "/none": ("404 Not Found", {}, b"no"),
            "/packed": ("200 OK", {"content-encoding": "gzip"}, b"x"),
            "/large": ("200 OK", {}, bytes(MAX_IMAGE_BYTES + 1)),
            "/words": ("nonsense", {}, b""),
        }
    ) as port:
        names = {"good.example": ["127.0.0.1"]}
        found = fetcher("*", names=names, is_allowed=loopback_is_fine)
        for path, said in (
            ("none", "its server answers 404"),
            ("packed", "packs it"),
            ("large", "is larger than 20 MiB"),
            ("words", "cannot be fetched"),
        ):
            with pytest.raises(ImageError, match=said):
                await found.fetch(f"http://good.example:{port}/{path}")


async def test_the_end_of_the_program_waits_for_no_name_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asking: list[threading.Thread] = []

    def ask(host: str, port: int, **_: object) -> list[Any]:
        asking.append(threading.current_thread())
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("8.8.8.8", port))]

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    assert await look_up("good.example", 80) == ["8.8.8.8"]
    assert [thread.daemon for thread in asking] == [True]


async def test_a_server_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.images.remote._LIMIT_S", 0.05)

    async def silent(_host: str, _port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        return []

    with pytest.raises(ImageError, match=r"was not there after 0\.05 s"):
        await MediaFetcher(("*",), silent).fetch("http://slow.example/")
