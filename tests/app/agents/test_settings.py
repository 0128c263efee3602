"""Each agent's settings: what it reads, and that no key is in them."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.agents.settings import AGENTS, AgentSettings, Connection, SettingsFile, merge
from app.client.served_model import ServedModel
from tests.app.agents.servers import MODEL, server


def settings(agent: str, key_file: Path | None = None, **changes: Any) -> AgentSettings:
    return AGENTS[agent](Connection(server(**changes), key_file))


def read(file: SettingsFile) -> Any:
    text = file.content()
    if file.path.endswith(".json"):
        return json.loads(text)
    if file.path.endswith(".toml"):
        toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
        return toml.loads(text)
    return yaml.safe_load(text)


def test_claude_uses_this_model_for_all() -> None:
    made = settings("claude")
    variables = read(made.files[0])["env"]
    assert made.files[0].path == ".claude/settings.local.json"
    assert variables["ANTHROPIC_BASE_URL"] == "http://h:1"
    assert {variables[name] for name in variables if name.endswith("_MODEL")} == {MODEL}
    assert variables["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == "40000"
    assert variables["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "10000"
    assert variables["CLAUDE_CODE_ATTRIBUTION_HEADER"] == "0"
    assert made.exports == {"ANTHROPIC_AUTH_TOKEN": "none"}


def test_codex_has_a_home_of_its_own() -> None:
    made = settings("codex", needs_key=True)
    config = read(made.files[0])
    assert (config["model"], config["model_provider"]) == (MODEL, "stoker")
    assert config["model_context_window"] == 40_000
    assert config["model_providers"]["stoker"] == {
        "name": "Stoker",
        "base_url": "http://h:1/v1",
        "wire_api": "responses",
        "env_key": "STOKER_API_KEY",
    }
    assert made.command == 'CODEX_HOME="$PWD/.stoker/codex" codex'
    assert "env_key" not in settings("codex").files[0].text


def test_opencode_knows_the_limits() -> None:
    config = read(settings("opencode", needs_key=True).files[0])
    provider = config["provider"]["stoker"]
    assert config["model"] == f"stoker/{MODEL}"
    assert provider["options"] == {"baseURL": "http://h:1/v1", "apiKey": "{env:STOKER_API_KEY}"}
    assert provider["models"][MODEL]["limit"] == {"context": 40_000, "output": 10_000}


def test_aider_gets_the_limits_where_they_are_known() -> None:
    config, limits = map(read, settings("aider").files)
    assert config == {"model": f"openai/{MODEL}", "openai-api-base": "http://h:1/v1"}
    assert limits[f"openai/{MODEL}"]["max_input_tokens"] == 40_000
    made = settings("aider", model=ServedModel(MODEL, None))
    assert [file.path for file in made.files] == [".aider.conf.yml"]


@pytest.mark.parametrize(("refusal", "has_tools"), [(None, True), ("no parser", False)])
def test_continue_and_llm_are_told_whether_there_are_tools(
    refusal: str | None, has_tools: bool
) -> None:
    made = settings("continue", tools_refusal=refusal)
    assert (
        made.command == f"cn --config {made.files[0].path}"
    )  # alone it asks Continue's own service
    (model,) = read(made.files[0])["models"]
    assert (model.get("capabilities") == ["tool_use"]) is has_tools
    assert (model["apiBase"], model["apiKey"]) == ("http://h:1/v1", "none")
    (model,) = read(settings("llm", tools_refusal=refusal).files[0])
    assert model["supports_tools"] is has_tools


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("in_file", [False, True])
def test_a_key_is_named_and_never_there(agent: str, in_file: bool, tmp_path: Path) -> None:
    key_file = tmp_path / "a key"
    key_file.write_text("hush")
    made = settings(agent, key_file if in_file else None, needs_key=True)
    everything = json.dumps([file.content() for file in made.files])
    everything += json.dumps(dict(made.exports)) + made.command
    assert "hush" not in everything
    named = ("a key", "llm keys set") if in_file else ("STOKER_API_KEY", "llm keys set")
    assert any(word in everything for word in named)


@pytest.mark.parametrize("agent", [name for name in AGENTS if name != "llm"])
def test_the_variable_that_the_key_came_from_is_named(agent: str) -> None:
    made = AGENTS[agent](Connection(server(needs_key=True), key_variable="VLLM_API_KEY"))
    everything = json.dumps([file.content() for file in made.files])
    everything += json.dumps(dict(made.exports)) + made.command
    assert "VLLM_API_KEY" in everything
    assert "STOKER_API_KEY" not in everything


def test_paths_lead_to_the_project_from_elsewhere(tmp_path: Path) -> None:
    there = Connection(server(), project=tmp_path / "my project")
    place = f"'{tmp_path}/my project/.stoker"
    assert AGENTS["codex"](there).command == f"CODEX_HOME={place}/codex' codex"
    assert AGENTS["llm"](there).exports == {"LLM_USER_PATH": f"{place}/llm'"}


def test_objects_are_merged_within() -> None:
    before = {"env": {"A": "1", "B": "2"}, "hooks": [1]}
    assert merge(before, {"env": {"B": "3"}}) == {"env": {"A": "1", "B": "3"}, "hooks": [1]}
    assert merge({"env": "text"}, {"env": {"B": "3"}}) == {"env": {"B": "3"}}
