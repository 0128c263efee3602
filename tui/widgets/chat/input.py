"""Where questions are typed: Enter sends, Ctrl-J breaks the line, a paste never sends."""

from __future__ import annotations

from typing import cast

from textual import events
from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
from textual.keys import Keys
from textual.message import Message
from textual.widgets import TextArea

_NEWLINE_KEYS = ("ctrl+j", "shift+enter", "alt+enter")
_ALT_ENTER = "\x1b\r"


def read_alt_enter() -> None:
    """Let Alt-Enter break the line in terminals that send Escape and Enter for it.

    Textual reads the two as Enter alone, which would send half a question.
    """
    known = cast("dict[str, object]", ANSI_SEQUENCES_KEYS)
    known.setdefault(_ALT_ENTER, (Keys.ControlJ,))


class ChatInput(TextArea):
    """Grows with its text up to a few lines."""

    DEFAULT_CSS = """
    ChatInput {
        height: auto;
        min-height: 1;
        max-height: 6;
        padding: 0 1;
        border: none;
        border-left: outer $border;
        background: $surface;
        scrollbar-size-vertical: 1;
    }
    ChatInput:focus { border: none; border-left: outer $primary; }
    """

    class Submitted(Message):
        """The user wants to send `text`."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class EditAsked(Message):
        """Up was pressed in an empty field."""

    def __init__(self, *, id: str) -> None:
        super().__init__(
            id=id,
            highlight_cursor_line=False,
            placeholder="Enter sends, Ctrl-J new line, / commands, ↑ edits the last question",
        )

    async def _on_key(self, event: events.Key) -> None:
        if event.key == "enter":
            event.stop()
            event.prevent_default()
            # Taken out at once: what is typed before the message is read belongs to the next one.
            text = self.text
            if text.strip():
                self.load_text("")
                self.post_message(self.Submitted(text))
        elif event.key in _NEWLINE_KEYS:
            event.stop()
            event.prevent_default()
            self.insert("\n")
        elif event.key == "up" and not self.text:
            event.stop()
            event.prevent_default()
            self.post_message(self.EditAsked())
        else:
            await super()._on_key(event)

    def give_back(self, text: str) -> None:
        """It could not be sent; what was typed since stands behind it."""
        self.put(text + self.text)

    def put(self, text: str) -> None:
        """Replace the text; the cursor goes to its end."""
        self.load_text(text)
        self.move_cursor(self.document.end)
        self.focus()
