from __future__ import annotations

import pytest
from rich.cells import cell_len
from textual.binding import Binding

from tui.screens.dashboard import DashboardScreen
from tui.theme import THEMES, Appearance, to_ascii


@pytest.mark.parametrize(
    ("environ", "asked", "expected"),
    [
        ({}, (None, None), Appearance("dark", False)),
        ({"STOKER_THEME": "light"}, (None, None), Appearance("light", False)),
        ({"STOKER_THEME": "light", "STOKER_ASCII": "1"}, ("16", False), Appearance("16", False)),
        ({"STOKER_ASCII": "1"}, (None, None), Appearance("dark", True)),
        ({"STOKER_THEME": "purple"}, (None, True), Appearance("dark", True)),
    ],
)
def test_what_is_asked_for_comes_first(
    environ: dict[str, str], asked: tuple[str | None, bool | None], expected: Appearance
) -> None:
    assert Appearance.chosen(environ, *asked) == expected


def test_terminal_without_unicode(monkeypatch: pytest.MonkeyPatch) -> None:
    class Latin:
        encoding = "ISO-8859-1"

    monkeypatch.setattr("sys.stdout", Latin())
    assert Appearance.chosen({}).is_ascii


@pytest.mark.parametrize("text", ["plain", "▁▃█ ╭─╮ ● · ✓ …", "日本 text", "71 °C ‘a’ é"])
def test_ascii_keeps_every_cell(text: str) -> None:
    drawn = to_ascii(text)
    assert drawn.isascii()
    assert cell_len(drawn) == cell_len(text)


def test_ascii_graph_still_rises() -> None:
    assert to_ascii("▁▂▃▄▅▆▇█") == "_.:-=+*#"


def test_every_dashboard_key_has_an_id_and_says_what_it_does() -> None:
    for binding in DashboardScreen.BINDINGS:
        assert isinstance(binding, Binding)
        assert (binding.id or "").startswith("dashboard.")
        assert binding.tooltip
    assert set(THEMES) == {"dark", "light", "16"}
