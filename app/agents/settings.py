"""The settings with which a coding agent uses a server: files of a project, and variables.

No key is ever written: files name the variable or the file that it is in.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.client.abilities import ServerAbilities

KEY_VARIABLE = "STOKER_API_KEY"
WRITTEN = "# Written by `stoker connect`; it writes this file anew."
_PROVIDER = "stoker"
_MOST_OUTPUT = 32_000
_NO_KEY = "none"  # for agents that do not start without one


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """One file of the project; `values` are merged into a JSON object that is there, else the
    file is ours and has WRITTEN at its beginning.
    """

    path: str
    text: str = ""
    values: Mapping[str, Any] | None = None

    def content(self, before: Mapping[str, Any] | None = None) -> str:
        """The whole file; `before` is the JSON object that was there."""
        if self.values is None:
            return f"{WRITTEN}\n{self.text}"
        merged = merge(before or {}, self.values)
        return json.dumps(merged, indent=2, ensure_ascii=False) + "\n"


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """What an agent needs: its files, what a shell has to export, and how it is started.

    The values of `exports` are words of a shell, quoted as they have to be.
    """

    files: tuple[SettingsFile, ...]
    exports: Mapping[str, str]
    command: str


@dataclass(frozen=True, slots=True)
class Connection:
    """A server as an agent is told of it."""

    abilities: ServerAbilities
    key_file: Path | None = None  # where its key lies, if in a file
    key_variable: str = KEY_VARIABLE  # where else it is
    project: Path | None = None  # its folder, where that is not the one that the user is in

    @property
    def api_base(self) -> str:
        return f"{self.abilities.url}/v1"

    @property
    def model(self) -> str:
        return self.abilities.model.id

    @property
    def context(self) -> int | None:
        return self.abilities.model.max_model_len

    @property
    def most_output(self) -> int:
        """Tokens of an answer that leave room for its question."""
        return min(_MOST_OUTPUT, (self.context or 4 * _MOST_OUTPUT) // 4)

    @property
    def key_word(self) -> str:
        """The key as a word of a shell."""
        if self.key_file is None:
            return f'"${self.key_variable}"'
        return f'"$(cat {shlex.quote(str(self.key_file))})"'

    def key_export(self) -> dict[str, str]:
        """The key's variable, where it has to be set: one that is taken from it is there."""
        if not self.abilities.needs_key or self.key_file is None:
            return {}
        return {self.key_variable: self.key_word}

    def place_word(self, path: str) -> str:
        """A place in the project as a word of a shell."""
        if self.project is None:
            return f'"$PWD/{path}"'
        return shlex.quote(str(self.project.absolute() / path))


def merge(before: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """`before` with `values` over it, objects within objects, too."""
    merged = dict(before)
    for key, value in values.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            value = merge(old, value)
        merged[key] = value
    return merged


def claude(server: Connection) -> AgentSettings:
    """Claude Code: all of its models are this one, and nothing changes the prompt's beginning."""
    models = ("MODEL", "DEFAULT_OPUS_MODEL", "DEFAULT_SONNET_MODEL", "DEFAULT_HAIKU_MODEL")
    variables = {
        "ANTHROPIC_BASE_URL": server.abilities.url,
        **{f"ANTHROPIC_{name}": server.model for name in models},
        "CLAUDE_CODE_SUBAGENT_MODEL": server.model,
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(server.most_output),
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    if server.context is not None:
        variables["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] = str(server.context)
    values: dict[str, Any] = {"env": variables}
    exports = {}
    if not server.abilities.needs_key:
        exports["ANTHROPIC_AUTH_TOKEN"] = _NO_KEY
    elif server.key_file is not None:
        values["apiKeyHelper"] = f"cat {shlex.quote(str(server.key_file))}"
    else:
        exports["ANTHROPIC_AUTH_TOKEN"] = server.key_word
    return AgentSettings(
        (SettingsFile(".claude/settings.local.json", values=values),), exports, "claude"
    )


def codex(server: Connection) -> AgentSettings:
    """Codex: a home of its own, since a project's config.toml may not name a provider."""
    lines = [f"model = {_toml(server.model)}", f'model_provider = "{_PROVIDER}"']
    if server.context is not None:
        lines.append(f"model_context_window = {server.context}")
        lines.append(f"model_auto_compact_token_limit = {server.context * 4 // 5}")
    lines += [
        "",
        f"[model_providers.{_PROVIDER}]",
        'name = "Stoker"',
        f"base_url = {_toml(server.api_base)}",
        'wire_api = "responses"',
    ]
    if server.abilities.needs_key:
        lines.append(f'env_key = "{server.key_variable}"')
    files = (
        SettingsFile(".stoker/codex/config.toml", "\n".join(lines) + "\n"),
        _ignore_all(),
    )
    command = f"CODEX_HOME={server.place_word('.stoker/codex')} codex"
    return AgentSettings(files, server.key_export(), command)


def opencode(server: Connection) -> AgentSettings:
    """opencode: a provider of its own, with the model's limits."""
    card: dict[str, Any] = {"name": server.model, "tool_call": True}
    if server.context is not None:
        card["limit"] = {"context": server.context, "output": server.most_output}
    options = {"baseURL": server.api_base}
    if server.abilities.needs_key:
        options["apiKey"] = f"{{env:{server.key_variable}}}"
    values = {
        "$schema": "https://opencode.ai/config.json",
        "model": f"{_PROVIDER}/{server.model}",
        "provider": {
            _PROVIDER: {
                "npm": "@ai-sdk/openai-compatible",
                "name": "Stoker",
                "options": options,
                "models": {server.model: card},
            }
        },
    }
    files = (SettingsFile("opencode.json", values=values),)
    return AgentSettings(files, server.key_export(), "opencode")


def aider(server: Connection) -> AgentSettings:
    """aider: the model as one of an OpenAI server, and its limits where they are known."""
    name = f"openai/{server.model}"
    files = [
        SettingsFile(".aider.conf.yml", _yaml({"model": name, "openai-api-base": server.api_base}))
    ]
    if server.context is not None:
        limits = {
            "max_input_tokens": server.context,
            "max_output_tokens": server.most_output,
            "max_tokens": server.most_output,
            "input_cost_per_token": 0,
            "output_cost_per_token": 0,
            "litellm_provider": "openai",
            "mode": "chat",
        }
        files.append(SettingsFile(".aider.model.metadata.json", values={name: limits}))
    word = server.key_word if server.abilities.needs_key else _NO_KEY
    return AgentSettings(tuple(files), {"OPENAI_API_KEY": word}, "aider")


def continue_dev(server: Connection) -> AgentSettings:
    """Continue: a block of models of the workspace."""
    key = f"${{{{ secrets.{server.key_variable} }}}}"
    model: dict[str, Any] = {
        "name": f"{server.model} (Stoker)",
        "provider": "openai",
        "model": server.model,
        "apiBase": server.api_base,
        "apiKey": key if server.abilities.needs_key else _NO_KEY,
        "roles": ["chat", "edit", "apply"],
    }
    if server.abilities.tools_refusal is None:
        model["capabilities"] = ["tool_use"]
    if server.context is not None:
        model["defaultCompletionOptions"] = {
            "contextLength": server.context,
            "maxTokens": server.most_output,
        }
    block = {"name": "Stoker", "version": "0.0.1", "schema": "v1", "models": [model]}
    file = ".continue/models/stoker.yaml"  # the editors' extension finds it, `cn` is told
    files = (SettingsFile(file, _yaml(block)),)
    return AgentSettings(files, server.key_export(), f"cn --config {file}")


def llm(server: Connection) -> AgentSettings:
    """llm: a folder of its own in the project, with this one model."""
    model: dict[str, Any] = {
        "model_id": _PROVIDER,
        "model_name": server.model,
        "api_base": server.api_base,
        "supports_tools": server.abilities.tools_refusal is None,
    }
    if server.abilities.needs_key:
        model["api_key_name"] = _PROVIDER
    files = (
        SettingsFile(".stoker/llm/extra-openai-models.yaml", _yaml([model])),
        _ignore_all(),
    )
    exports = {"LLM_USER_PATH": server.place_word(".stoker/llm")}
    ask = f"llm -m {_PROVIDER} 'Why is the sky blue?'"
    command = f"llm keys set {_PROVIDER} && {ask}" if server.abilities.needs_key else ask
    return AgentSettings(files, exports, command)


AGENTS: Mapping[str, Callable[[Connection], AgentSettings]] = {
    "claude": claude,
    "codex": codex,
    "opencode": opencode,
    "aider": aider,
    "continue": continue_dev,
    "llm": llm,
}
"""By the word that a person types."""


def _ignore_all() -> SettingsFile:
    return SettingsFile(".stoker/.gitignore", "*\n")


def _toml(text: str) -> str:
    """A basic string of TOML is one of JSON, but for one character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _yaml(value: object) -> str:
    import yaml

    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True))
