"""Text of several lines that the user asked for; stays until it is closed."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static


class NoticeScreen(ModalScreen[None]):
    """One scrollable box over the screen."""

    DEFAULT_CSS = """
    NoticeScreen { align: center middle; background: $background 40%; }
    #notice {
        width: 90%; max-width: 110; height: auto; max-height: 90%; padding: 0 2;
        border: round $primary; border-subtitle-color: $foreground 50%; background: $surface;
        scrollbar-size-vertical: 1;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q", "dismiss", "Back", id="notice.close"),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """The text as it is; it is never parsed as markup."""
        with VerticalScroll(id="notice") as box:
            box.border_subtitle = "Esc closes"
            yield Static(self._text, markup=False)
