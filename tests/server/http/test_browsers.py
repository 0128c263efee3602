"""What web pages may do: CORS for named ones, and no changes by the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.args import EngineArgs
from engine.server.http.browsers import BrowserAccess, browser_access
from tests.server.fake_core import FakeCore
from tests.server.serving import serving

PAGE = "https://page.example"
LOCAL = BrowserAccess(allowed_hosts=())


async def test_without_allowed_origins_no_page_reads_an_answer(tiny_folder: Path) -> None:
    async with serving(tiny_folder, FakeCore([1]), in_process=True) as served:
        response = await served.http.get("/v1/models", headers={"Origin": PAGE})
        assert response.status_code == 200
        assert "access-control-allow-origin" not in response.headers


async def test_named_origins_may_ask_and_read(tiny_folder: Path) -> None:
    access = BrowserAccess(allowed_origins=(PAGE,))
    async with serving(
        tiny_folder, FakeCore([1]), api_key="s3cret", in_process=True, browsers=access
    ) as served:
        ask = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
        ask["Access-Control-Request-Headers"] = "authorization, content-type"
        preflight = await served.http.options("/v1/chat/completions", headers=ask)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == PAGE
        assert "authorization" in preflight.headers["access-control-allow-headers"]
        # The page must be able to read why it was refused.
        refused = await served.http.get("/v1/models", headers={"Origin": PAGE})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == PAGE
        other = await served.http.options(
            "/v1/chat/completions", headers={**ask, "Origin": "https://other.example"}
        )
        assert other.status_code == 400
        assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": PAGE}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://in-process"}, 200),
        ({"Origin": "http://in-process:9000"}, 403),
        ({"Origin": PAGE, "Sec-Fetch-Site": "same-origin"}, 200),  # behind a proxy
        ({"Origin": PAGE, "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Origin": "http://in-process", "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Origin": "chrome-extension://abcdef"}, 200),
        ({"Origin": "vscode-webview://abcdef"}, 200),
    ],
)
async def test_a_foreign_page_changes_nothing(
    tiny_folder: Path, headers: dict[str, str], status: int
) -> None:
    async with serving(tiny_folder, FakeCore([1]), in_process=True) as served:
        response = await served.http.post("/reset_prefix_cache", headers=headers)
        assert response.status_code == status
        if status == 403:
            assert "--allowed-origins" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200),
        ("[::1]:8000", 200),
        ("10.1.2.3", 200),
        ("localhost:8000", 200),
        ("LOCALHOST.", 200),
        ("gpu-box", 200),
        ("app.localhost", 200),
        ("host.docker.internal:8000", 200),
        ("evil.example:8000", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example", 403),
    ],
)
async def test_names_of_other_machines_are_refused(
    tiny_folder: Path, host: str, status: int
) -> None:
    async with serving(tiny_folder, FakeCore([1]), in_process=True, browsers=LOCAL) as served:
        response = await served.http.get("/v1/models", headers={"Host": host})
        assert response.status_code == status
        if status == 403:
            assert "--allowed-hosts" in response.json()["error"]["message"]


async def test_an_allowed_name_is_answered(tiny_folder: Path) -> None:
    access = BrowserAccess(allowed_hosts=("llm.example",))
    async with serving(tiny_folder, FakeCore([1]), in_process=True, browsers=access) as served:
        response = await served.http.get("/v1/models", headers={"Host": "llm.example:443"})
        assert response.status_code == 200


@pytest.mark.parametrize(
    ("args", "hosts"),
    [
        (EngineArgs(), ()),
        (EngineArgs(allowed_hosts=("a.example",)), ("a.example",)),
        (EngineArgs(allowed_hosts=("*",)), None),
        (EngineArgs(host="::1"), ()),
        (EngineArgs(host="127.0.0.2"), ()),
        (EngineArgs(host="0.0.0.0"), None),
        (EngineArgs(api_key="k"), None),
    ],
)
def test_names_are_checked_where_only_this_machine_may_call_without_a_key(
    args: EngineArgs, hosts: tuple[str, ...] | None
) -> None:
    assert browser_access(args).allowed_hosts == hosts
