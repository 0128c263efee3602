from __future__ import annotations

import re
import stat
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from starlette.routing import Route

from app.cli import run
from app.errors import ExitCode, UsageError
from app.launch.engines import STOKER
from app.launch.exposure import (
    OPEN_ROUTES,
    exposure_lines,
    is_exposed,
    key_file_of,
    made_key,
)
from app.launch.launch_specs import ENGINES, parse_serve_request
from engine.machine.ports import free_port
from engine.server.api import create_app
from engine.server.metrics import create_registry
from engine.server.state import ApiState


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOKER_STATE_DIR", str(tmp_path / "state"))
    for name in ("STOKER_API_KEY", "VLLM_API_KEY", "STOKER_API_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "state"


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", False), ("localhost", False), ("::1", False)]
    + [(host, True) for host in ("0.0.0.0", "::", "192.168.7.7", "node7.cluster")],
)
def test_who_reaches_it(host: str, expected: bool) -> None:
    request = parse_serve_request(["--host", host])
    assert is_exposed(request) == expected
    assert bool(exposure_lines(request, None)) == expected


def test_a_key_is_made_once_and_private(state: Path) -> None:
    path = key_file_of("tiny")
    key = made_key(path, "0.0.0.0")
    assert len(key) >= 40
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert made_key(path, "0.0.0.0") == key, "clients keep theirs"
    assert made_key(key_file_of("other"), "0.0.0.0") != key


def test_a_key_that_cannot_be_kept_is_refused_with_the_ways_out(state: Path) -> None:
    state.mkdir()
    (state / "keys").mkdir()
    (state / "keys" / "tiny.key").mkdir()
    with pytest.raises(UsageError, match=r"--host 0\.0\.0\.0 needs a key") as caught:
        made_key(key_file_of("tiny"), "0.0.0.0")
    assert "STOKER_API_KEY" in str(caught.value.hint)
    assert "ssh -L" in str(caught.value.hint)


def test_serve_says_where_the_key_is_and_never_the_key(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    words = ["serve", str(tmp_path), "--name", "it", "--host", "0.0.0.0", "--port", str(port)]
    assert run(words) != ExitCode.OK, "an empty folder is no model"
    shown = capsys.readouterr()
    key_file = state / "keys" / "it.key"
    assert f"cat {key_file}" in shown.err
    assert f"to any port {port} proto tcp" in shown.err
    assert "open without the key: /health" in shown.err
    assert key_file.read_text().strip() not in shown.out + shown.err


def test_a_dry_run_and_a_key_of_ones_own_make_none(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    assert run(["serve", str(model), "--host", "0.0.0.0", "--dry-run"]) == ExitCode.OK
    monkeypatch.setenv("STOKER_API_KEY", "mine")
    run(["serve", str(tmp_path), "--host", "0.0.0.0"])
    assert not (state / "keys").exists()


async def _answers_without_a_key(app: FastAPI) -> dict[str, bool]:
    """Every route of the application, asked by each of its methods and without a key."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    found = {}
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        for route in app.routes:
            assert isinstance(route, Route)
            address = re.sub(r"{.*?}", "x", route.path)
            answers = [await client.request(method, address) for method in route.methods or ()]
            assert len({answer.status_code == 401 for answer in answers}) == 1, route.path
            found[route.path] = answers[0].status_code != 401
    return found


async def test_the_routes_that_are_named_are_those_that_answer_without_the_key() -> None:
    app = create_app(
        ApiState(create_registry()), "k", has_debug_routes=True, has_tokenizer_info=True
    )
    found = await _answers_without_a_key(app)
    assert {path for path, is_open in found.items() if is_open} == set(OPEN_ROUTES[STOKER])
    assert {"/v1/models", "/v1/chat/completions", "/reset_prefix_cache", "/debug/scheduler"} <= {
        path for path, is_open in found.items() if not is_open
    }


def test_a_route_that_answers_is_named_for_each_engine() -> None:
    for engine in ENGINES:
        text = "\n".join(exposure_lines(parse_serve_request(["--host", "0.0.0.0"], engine), None))
        assert "open without the key: /" in text
        assert all(route in text for route in OPEN_ROUTES[engine])
        assert len(set(OPEN_ROUTES[engine])) == len(OPEN_ROUTES[engine])
