"""Settings in a project's files: merged, ours, refused, and never half of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.agents.files import write_settings
from app.agents.settings import WRITTEN, SettingsFile
from app.errors import UsageError

VALUES = SettingsFile(".a/settings.json", values={"env": {"URL": "http://h:1"}})
OURS = SettingsFile(".b/conf.yml", "model: m\n")


def test_what_was_there_stays(tmp_path: Path) -> None:
    settings = tmp_path / ".a" / "settings.json"
    settings.parent.mkdir()
    settings.write_text('{"hooks": [1], "env": {"MINE": "x", "URL": "old"}}')
    for _ in range(2):
        written = write_settings(tmp_path, [VALUES, OURS])
        assert written == [settings, tmp_path / ".b" / "conf.yml"]
        assert json.loads(settings.read_text()) == {
            "hooks": [1],
            "env": {"MINE": "x", "URL": "http://h:1"},
        }
        assert written[1].read_text() == f"{WRITTEN}\nmodel: m\n"
    assert [path.name for path in settings.parent.iterdir()] == ["settings.json"]


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (OURS, "model: mine\n", "not written by Stoker"),
        (VALUES, "{ // mine\n}", "is no JSON"),
        (VALUES, "[1]", "no JSON object"),
    ],
)
def test_a_file_of_the_users_is_not_touched(
    tmp_path: Path, file: SettingsFile, text: str, message: str
) -> None:
    path = tmp_path / file.path
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        write_settings(tmp_path, [SettingsFile("new.yml", "a: 1\n"), file])
    assert path.read_text() == text
    assert not (tmp_path / "new.yml").exists()


def test_a_link_stays_one(tmp_path: Path) -> None:
    real = tmp_path / "real.yml"
    real.write_text(f"{WRITTEN}\nold\n")
    (tmp_path / ".b").mkdir()
    (tmp_path / ".b" / "conf.yml").symlink_to(real)
    write_settings(tmp_path, [OURS])
    assert (tmp_path / ".b" / "conf.yml").is_symlink()
    assert "model: m" in real.read_text()


def test_a_project_is_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folder"):
        write_settings(tmp_path / "none", [OURS])
