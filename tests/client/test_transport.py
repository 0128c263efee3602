from __future__ import annotations

import ssl

import httpx
import pytest

from app.client import transport
from app.client.errors import InvalidUrl, Unreachable
from app.client.transport import connection_errors, normalise_base_url, open_client


@pytest.mark.parametrize(
    ("typed", "base"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("http://h:1234/", "http://h:1234"),
        ("https://llm.example.org", "https://llm.example.org"),
        (":8000", "http://127.0.0.1:8000"),
        ("8000", "http://127.0.0.1:8000"),
        ("0.0.0.0:8000", "http://127.0.0.1:8000"),
        ("http://h:1/v1", "http://h:1"),
        ("http://h:1/v1/chat/completions", "http://h:1"),
        ("http://h:1/metrics/", "http://h:1"),
        ("http://h/proxy/llm/v1/", "http://h/proxy/llm"),
        ("[::1]:8000", "http://[::1]:8000"),
        ("  h:1  ", "http://h:1"),
    ],
)
def test_normalise(typed: str, base: str) -> None:
    assert normalise_base_url(typed) == base


@pytest.mark.parametrize(
    "typed", ["", "ftp://h", "http://", "h:notaport", "h:99999", "two words:80", "http://[::1"]
)
def test_refuses_what_is_no_address(typed: str) -> None:
    with pytest.raises(InvalidUrl):
        normalise_base_url(typed)


def test_a_login_in_the_address_is_refused_without_repeating_it() -> None:
    with pytest.raises(InvalidUrl) as caught:
        normalise_base_url("http://me:hunter2@h:80")
    assert "hunter2" not in str(caught.value)


def test_the_key_is_a_bearer_header_and_paths_keep_the_prefix() -> None:
    seen: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200)

    transport = httpx.MockTransport(handle)
    with open_client("http://h/proxy", api_key="k", transport=transport) as client:
        client.get("/v1/models")
    with open_client("http://h", transport=transport) as client:
        client.get("/v1/models")
    assert [str(request.url) for request in seen] == [
        "http://h/proxy/v1/models",
        "http://h/v1/models",
    ]
    assert seen[0].headers["Authorization"] == "Bearer k"
    assert "Authorization" not in seen[1].headers


@pytest.mark.parametrize(
    "error",
    [
        httpx.ConnectError("[Errno 111] Connection refused"),
        httpx.ReadTimeout("slow"),
        httpx.RemoteProtocolError("peer closed connection"),
    ],
)
def test_transport_errors_become_unreachable(error: httpx.TransportError) -> None:
    with pytest.raises(Unreachable, match="http://h:1"), connection_errors("http://h:1"):
        raise error


def test_plain_http_to_this_machine_reads_no_authorities_and_trusts_nobody() -> None:
    found = transport._verification("http://127.0.0.1:8000")
    assert isinstance(found, ssl.SSLContext)
    assert found.verify_mode is ssl.CERT_REQUIRED
    assert found.get_ca_certs() == []
    trusting = transport._verification("https://127.0.0.1:8000")
    assert trusting.get_ca_certs()
    assert trusting.verify_mode is ssl.CERT_REQUIRED
    assert transport._verification("http://other:8000") is trusting  # read once


def test_a_socket_file_that_is_not_there_is_said_without_numbers() -> None:
    with (
        pytest.raises(Unreachable, match=r"it\.sock \(No such file or directory\)$"),
        connection_errors("unix:/my sockets/it.sock"),
    ):
        raise httpx.ConnectError("[Errno 2] No such file or directory")
