"""`stoker connect` against a small HTTP server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.cli import run
from app.errors import ExitCode
from tests.client.local_server import Answer, Call, LocalServer, serving

CARD = {"data": [{"id": "coder", "max_model_len": 65536}]}
SAID = {"choices": [{"message": {"content": "Hello"}}]}


def answering(body: object, status: int = 200) -> Answer:
    return Answer([json.dumps(body).encode()], status)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalServer]:
    for name in ("STOKER_URL", "STOKER_API_KEY", "VLLM_API_KEY", "STOKER_API_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    routes = {
        "/v1/models": lambda _call: answering(CARD),
        "/v1/chat/completions": lambda _call: answering(SAID),
        "/v1/messages": lambda _call: answering({"error": {"message": "empty"}}, 400),
    }
    with serving(routes) as local:
        yield local


def test_the_settings_are_printed_and_the_server_was_asked(
    server: LocalServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["connect", "claude", server.url]) == ExitCode.OK
    printed = capsys.readouterr()
    assert "# .claude/settings.local.json" in printed.out
    assert f'"ANTHROPIC_BASE_URL": "{server.url}"' in printed.out
    assert printed.out.endswith("export ANTHROPIC_AUTH_TOKEN=none\nclaude\n")
    assert "context 65536, tools yes, /v1/messages yes, /v1/responses no" in printed.err


def test_what_will_not_work_is_the_answer_no(
    server: LocalServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["connect", "codex", server.url]) == ExitCode.NO
    assert "will not work: Codex speaks /v1/responses" in capsys.readouterr().err


def test_written_into_the_project(
    server: LocalServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["connect", "opencode", server.url, "--write", "--project", str(tmp_path)]
    assert run(words) == ExitCode.OK
    printed = capsys.readouterr()
    assert printed.out == "opencode\n"
    assert f"wrote {tmp_path / 'opencode.json'}" in printed.err
    assert json.loads((tmp_path / "opencode.json").read_text())["model"] == "stoker/coder"


@pytest.mark.parametrize("name", ["VLLM_API_KEY", "STOKER_API_KEY_FILE"])
def test_the_key_is_named_as_it_was_found(
    name: str,
    server: LocalServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("hush\n")

    def models(call: Call) -> Answer:
        has_key = call.headers.get("Authorization") == "Bearer hush"
        return answering(CARD) if has_key else answering({}, 401)

    server.routes["/v1/models"] = models
    in_file = name.endswith("FILE")
    monkeypatch.setenv(name, str(key_file) if in_file else "hush")
    assert run(["connect", "opencode", server.url]) == ExitCode.OK
    printed = capsys.readouterr().out
    assert f"{{env:{'STOKER_API_KEY' if in_file else name}}}" in printed
    exported = f'export STOKER_API_KEY="$(cat {key_file})"'
    assert (exported in printed) is in_file
    assert "hush" not in printed


def test_a_project_elsewhere_is_found_from_here(
    server: LocalServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["connect", "llm", server.url, "--write", "--project", str(tmp_path)])
    assert f"export LLM_USER_PATH={tmp_path}/.stoker/llm\n" in capsys.readouterr().out


def test_as_a_document(server: LocalServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["connect", "aider", server.url, "--json"]) == ExitCode.OK
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "stoker.connect"
    assert document["server"]["model"]["id"] == "coder"
    assert document["files"][0]["path"] == ".aider.conf.yml"
    assert document["exports"] == {"OPENAI_API_KEY": "none"}


def test_an_unknown_agent_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["connect", "cursor"]) == ExitCode.USAGE
    assert "claude, codex, opencode" in capsys.readouterr().err
