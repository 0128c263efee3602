"""A word that names no model: one exit code for every command, and advice that works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.cli import run
from app.errors import ExitCode

COMMANDS = {
    "serve": ["serve", "WORD"],
    "plan": ["plan", "WORD"],
    "models show": ["models", "show", "WORD"],
    "models pull": ["models", "pull", "WORD"],
    "models rm": ["models", "rm", "WORD", "--yes"],
}


@pytest.fixture(autouse=True)
def empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()


@pytest.mark.parametrize("word", ["nope", "./nope", "nope.gguf", "./folder"])
@pytest.mark.parametrize("command", COMMANDS)
def test_no_such_model_is_a_usage_error(
    command: str, word: str, capfd: pytest.CaptureFixture[str]
) -> None:
    code = run([word if part == "WORD" else part for part in COMMANDS[command]])
    said = capfd.readouterr().err

    assert code == ExitCode.USAGE, said
    assert f"models pull {word}" not in said
    for advised in re.findall(r"`stoker (models \w+|plan --shapes)`", said):
        assert run(advised.split()) == 0


def test_what_the_hub_may_have_can_be_pulled(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "show", "org/name"]) == ExitCode.NO
    assert "`stoker models pull org/name` gets it" in capsys.readouterr().err
