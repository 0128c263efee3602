from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from app import cli, output, paths
from app.errors import ExitCode, StokerError
from engine.env import models_dir


def test_plain_fields_stay_on_their_line(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_plain([("a\tb", None, "c\nd\x1b[31m", 3)])

    assert capsys.readouterr().out == "a b\t-\tc d\ufffd[31m\t3\n"


def test_json_names_its_schema(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json("stoker.test", {"x": None})

    document = json.loads(capsys.readouterr().out)
    assert document == {"schema": "stoker.test", "schema_version": 1, "x": None}


@pytest.mark.parametrize(
    ("choice", "before", "after"),
    [
        ("never", {"FORCE_COLOR": "1"}, {"NO_COLOR": "1"}),
        ("always", {"NO_COLOR": "1"}, {"FORCE_COLOR": "1"}),
        ("auto", {"CLICOLOR_FORCE": "1"}, {"CLICOLOR_FORCE": "1", "FORCE_COLOR": "1"}),
        ("auto", {"CLICOLOR_FORCE": "0"}, {"CLICOLOR_FORCE": "0"}),
        ("auto", {"NO_COLOR": "1"}, {"NO_COLOR": "1"}),
    ],
)
def test_colour_choice(
    choice: str, before: dict[str, str], after: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = dict(before)
    monkeypatch.setattr("os.environ", environment)

    output.apply_color_choice(choice)

    assert environment == after


def test_folders_are_private_and_can_be_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path / "c"))
    monkeypatch.setenv("STOKER_STATE_DIR", str(tmp_path / "s"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    assert models_dir() == tmp_path / "c" / "models"
    assert paths.logs_dir() == tmp_path / "s" / "logs"
    assert paths.records_dir() == tmp_path / "s" / "run" / "servers"
    paths.private_folder(models_dir())
    paths.private_folder(paths.records_dir())
    for folder in ("c", "c/models", "s", "s/logs", "s/run", "s/run/servers"):
        assert (tmp_path / folder).stat().st_mode & 0o777 == 0o700


def test_a_folder_that_cannot_be_made_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path / "file" / "c"))
    monkeypatch.setenv("STOKER_STATE_DIR", str(tmp_path / "file"))

    with pytest.raises(StokerError, match=r"cannot make the folder .*file/c: Not a dir") as cache:
        paths.private_folder(models_dir())
    with pytest.raises(StokerError, match=r"cannot make the folder .*file/logs: Not a") as state:
        paths.logs_dir()

    assert "STOKER_CACHE_DIR" in str(cache.value.hint)
    assert "STOKER_STATE_DIR" in str(state.value.hint)
    assert state.value.exit_code == ExitCode.USAGE


def test_xdg_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STOKER_CACHE_DIR", "STOKER_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    (tmp_path / "XDG_RUNTIME_DIR").mkdir()

    assert models_dir() == tmp_path / "XDG_CACHE_HOME" / "stoker" / "models"
    assert paths.state_dir() == tmp_path / "XDG_STATE_HOME" / "stoker"
    assert paths.records_dir() == tmp_path / "XDG_RUNTIME_DIR" / "stoker" / "servers"


def test_json_cannot_steer_a_terminal_and_says_the_same() -> None:
    document = {"name": "a\x1b[31m\x9b2J\u202e日本\U000e0001", "rows": [1, None]}

    for indent in (None, 2):
        text = output.json_text(document, indent)
        assert all(char.isprintable() or char == "\n" for char in text)
        assert json.loads(text) == document
        assert "日本" in text


def test_an_error_cannot_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        raise StokerError("no model \x1b]52;c;aGk=\x07", hint="try \x9b2J")

    cli.exit_code_of(fail, debug=False)

    assert capsys.readouterr().err == "error: no model \ufffd]52;c;aGk=\ufffd\nhint: try \ufffd2J\n"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("variables", "has_some"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "dumb"}, False),
        ({"TERM": "dumb", "FORCE_COLOR": "1"}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
    ],
)
def test_a_dumb_terminal_gets_no_style(
    variables: dict[str, str], has_some: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TERM", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert output.has_colors(_Terminal()) is has_some
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert not output.has_colors(io.StringIO())
