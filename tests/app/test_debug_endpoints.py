"""`stoker serve` turns /debug on for its own dashboard, and never where others could use it."""

from __future__ import annotations

from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from app.commands import top
from app.launch.engines import VLLM
from app.launch.launch_specs import as_flags, parse_serve_request, with_debug_endpoints

URL = "http://127.0.0.1:9"
FLAG = "--enable-debug-endpoints"


@pytest.mark.parametrize(
    ("words", "api_key", "is_on"),
    [
        ([], None, True),
        (["--host", "0.0.0.0"], "key", True),
        (["--host", "0.0.0.0"], None, False),
        (["--no-enable-debug-endpoints"], None, False),
        (["--no_enable_debug_endpoints"], "key", False),
    ],
)
def test_on_for_the_dashboard_unless_refused_or_open(
    words: list[str], api_key: str | None, is_on: bool
) -> None:
    request = with_debug_endpoints(parse_serve_request(words), words, api_key)
    assert (FLAG in as_flags(request.args)) == is_on


def test_other_engines_have_no_such_flag() -> None:
    request = parse_serve_request(["org/model"], VLLM)
    assert with_debug_endpoints(request, ["org/model"], "key") == request


def test_off_without_a_dashboard() -> None:
    assert FLAG not in as_flags(parse_serve_request([]).args)


@pytest.mark.parametrize("words", [[], ["--read-only"]])
def test_top_hands_read_only_to_the_dashboard(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(top, "has_screen", lambda: True)
    monkeypatch.setattr(top, "open_dashboard", lambda url, **options: asked.update(options))
    monkeypatch.setenv("STOKER_API_KEY", "key")
    typer_app = typer.Typer()
    typer_app.command()(top.top)
    result = CliRunner().invoke(typer_app, [URL, *words])
    assert result.exit_code == 0, result.output
    assert asked["is_read_only"] == bool(words)
