"""Rows: only the changed ones are painted again, and nothing in them can move the cursor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.strip import Strip

from tests.loaded_modules import loaded_by
from tests.tui.scripted import settled
from tui.widgets.rows import Row, RowWidget, styled


class Lines(RowWidget):
    COMPONENT_CLASSES: ClassVar[set[str]] = {"lines--plain"}
    DEFAULT_CSS = "Lines { width: 10; height: 3; }"
    STYLES = "lines"

    def __init__(self) -> None:
        super().__init__()
        self.texts = ["one", "two", "three", "out of sight"]
        self.painted: list[int] = []

    def rows(self, width: int, height: int) -> Sequence[Row]:
        return [styled(text, "plain") for text in self.texts]

    def render_line(self, y: int) -> Strip:
        self.painted.append(y)
        return super().render_line(y)

    def shown(self) -> list[str]:
        return [RowWidget.render_line(self, y).text for y in range(3)]


class OneWidget(App[str]):
    def compose(self) -> ComposeResult:
        yield Lines()


async def test_only_changed_rows_are_painted() -> None:
    app = OneWidget()
    async with app.run_test() as pilot:
        lines = app.query_one(Lines)
        await settled(pilot)
        assert lines.shown() == ["one", "two", "three"]
        for texts, expected in (
            (["one", "2", "three"], [1]),
            (["one", "2"], [2]),
            (["one", "2"], []),
        ):
            lines.painted.clear()
            lines.texts = texts
            lines.redraw()
            await settled(pilot)
            assert lines.painted == expected
        lines.display = False
        await settled(pilot)
        lines.texts = ["hidden"]
        lines.redraw()
        lines.display = True
        await settled(pilot)
        assert lines.shown() == ["hidden", "", ""]


async def test_cut_and_harmless() -> None:
    app = OneWidget()
    async with app.run_test() as pilot:
        lines = app.query_one(Lines)
        lines.texts = ["0123456789", "0123456789A", "a\x1b[2Jb\nc\td"]
        lines.redraw()
        await settled(pilot)
        assert lines.shown() == ["0123456789", "012345678…", "ab c d"]


def test_a_dashboard_without_a_log_loads_no_log_parser() -> None:
    assert not {name for name in loaded_by("import tui.app") if name.startswith("logparse")}
