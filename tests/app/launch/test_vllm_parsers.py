"""Parsers named for vLLM: what fits the model, what the installed vLLM has, what the user says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.errors import UsageError
from app.launch.engines import VLLM
from app.launch.launch_specs import parse_serve_request
from app.launch.vllm_parsers import FilledIn, fill_in_parsers
from app.launch.vllm_spec import vllm_flags
from tests.engine.chat_templates import FAMILIES


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return model(tmp_path, "qwen3.5")


def model(path: Path, family: str) -> Path:
    path.mkdir(exist_ok=True)
    config = {"chat_template": FAMILIES[family].source}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    (path / "config.json").write_text(json.dumps({"model_type": FAMILIES[family].model_type}))
    return path


def filled(folder: Path | None, *words: str, packages: tuple[Path, ...] = ()) -> FilledIn:
    return fill_in_parsers(parse_serve_request(("org/model", *words), VLLM), folder, packages)


def flags(made: FilledIn) -> set[str]:
    return {word for word in vllm_flags(made.request) if "parser" in word or "auto-tool" in word}


FITTING = {
    "--enable-auto-tool-choice",
    "--tool-call-parser=qwen3_coder",
    "--reasoning-parser=qwen3",
}


def test_what_fits_the_model_is_named_and_said(folder: Path) -> None:
    made = filled(folder)
    assert flags(made) == FITTING
    tools, reasoning = made.notes
    assert "--enable-auto-tool-choice --tool-call-parser qwen3_coder" in tools
    assert "<function=" in tools
    assert "--reasoning-parser qwen3" in reasoning


def test_what_the_user_says_stays(folder: Path) -> None:
    assert flags(filled(folder, "--tool-call-parser", "hermes", "--reasoning-parser", "none")) == {
        "--tool-call-parser=hermes"
    }
    made = filled(folder, "--tool-call-parser", "none")
    assert flags(made) == {"--reasoning-parser=qwen3"}
    words = ("--tool_call_parser", "xlam", "--enable-auto-tool-choice", "--reasoning-parser=qwen3")
    assert vllm_flags(filled(folder, "--", *words).request)[-4:] == list(words)
    assert filled(folder, "--", *words).notes == ()


def test_nothing_is_guessed(tmp_path: Path) -> None:
    for here in (None, model(tmp_path / "plain", "smollm2"), tmp_path):
        made = filled(here)
        assert (flags(made), made.notes) == (set(), ())
    with pytest.raises(UsageError, match="needs a parser, and none is known for org/model"):
        filled(tmp_path / "plain", "--enable-auto-tool-choice")
    with pytest.raises(UsageError, match="not on this machine"):
        filled(None, "--enable-auto-tool-choice")


def test_tools_without_a_parser_are_refused_before_vllm_starts(folder: Path) -> None:
    words = ("--enable-auto-tool-choice", "--tool-call-parser", "none")
    with pytest.raises(UsageError, match="--tool-call-parser none names none"):
        filled(folder, *words)
    behind = vllm_flags(filled(folder, *words, "--", "--tool-call-parser", "xlam").request)
    assert behind[-2:] == ["--tool-call-parser", "xlam"]


def test_a_template_of_the_users_own_tells(folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.jinja"
    own.write_text(FAMILIES["mistral-7b"].source)
    assert flags(filled(folder, "--chat-template", str(own))) == {
        "--enable-auto-tool-choice",
        "--tool-call-parser=mistral",
    }


def test_a_template_behind_the_dashes_is_vllms_to_read(folder: Path) -> None:
    assert flags(filled(folder, "--", "--chat-template", "x.jinja")) == set()
    assert flags(filled(folder, "--runner", "pooling")) == set()


def test_only_names_that_the_installed_vllm_has(folder: Path, tmp_path: Path) -> None:
    packages = tmp_path / "site-packages"
    table = packages / "vllm" / "tool_parsers" / "__init__.py"
    table.parent.mkdir(parents=True)
    table.write_text('_TO_REGISTER = {\n    "hermes": (\n    ),\n    "qwen3_xml": (\n    ),\n}\n')
    reasoning = packages / "vllm" / "reasoning" / "__init__.py"
    reasoning.parent.mkdir()
    reasoning.write_text('_TO_REGISTER = {\n    "deepseek_r1": (  # name\n    ),\n}\n')
    made = filled(folder, packages=(packages,))
    assert flags(made) == {"--enable-auto-tool-choice", "--tool-call-parser=qwen3_xml"}
    assert made.notes[1] == (
        "--reasoning-parser is left out: this vLLM has no qwen3, which fits the model"
    )


def test_an_old_vllm_names_its_parsers_where_they_are(folder: Path, tmp_path: Path) -> None:
    old = tmp_path / "vllm" / "entrypoints" / "openai" / "tool_parsers"
    old.mkdir(parents=True)
    (old / "__init__.py").write_text("from .hermes import Hermes\n")
    (old / "qwen.py").write_text('@ToolParserManager.register_module(["qwen3_coder", "q"])\n')
    (old / "hermes.py").write_text('@ToolParserManager.register_module("hermes")\n')
    model(folder, "qwen3")
    assert "--tool-call-parser=hermes" in flags(filled(folder, packages=(tmp_path,)))
