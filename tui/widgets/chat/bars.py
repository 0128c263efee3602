"""The two lines around the transcript: what is asked where, and what goes on."""

from __future__ import annotations

from textual.widgets import Static

from app.client.chat.context_use import ContextLevel
from app.client.chat.session import ChatSession
from app.client.terminal_text import strip_escapes

_SEPARATOR = "  ·  "


class ChatHeader(Static):
    """Model, server, settings and title of the conversation, in one line."""

    DEFAULT_CSS = """
    ChatHeader {
        height: 1; padding: 0 1; background: $panel;
        text-wrap: nowrap; text-overflow: ellipsis;
    }
    """

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id, markup=False)

    def show(self, session: ChatSession) -> None:
        conversation = session.conversation
        parts = [
            strip_escapes(session.target.model.shown_name),
            session.target.url,
            "" if session.is_saving else "not saved",
            conversation.parameters.summary(),
            "system prompt" if conversation.system else "",
            conversation.shown_title() or "new conversation",
        ]
        self.update(_SEPARATOR.join(part for part in parts if part))


class ChatStatus(Static):
    """A warning about the context, the note of the moment, what is pending, the context."""

    DEFAULT_CSS = """
    ChatStatus {
        height: 1; padding: 0 1; background: $panel;
        text-wrap: nowrap; text-overflow: ellipsis;
    }
    ChatStatus.-warning { background: $warning 30%; }
    ChatStatus.-error { background: $error 40%; }
    """

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id, markup=False)
        self._note = ""
        self.is_error = False

    def say(self, text: str, *, is_error: bool) -> None:
        """Another note; it is drawn with the next `show`."""
        self._note, self.is_error = text, is_error

    def show(self, session: ChatSession, draft: str) -> None:
        """As the session stands with `draft` in the input."""
        use = session.context(draft)
        warning, context = use.warning(), use.text()
        names = ", ".join(attachment.name for attachment in session.attachments)
        parts = [
            f"✗ {self._note}" if self.is_error else self._note,
            f"with {names}" if names and names not in self._note else "",
        ]
        # The line is cut at its end, so what matters most comes first.
        parts = [f"⚠ {warning}", context, *parts] if warning else [*parts, context]
        self.update(_SEPARATOR.join(part for part in parts if part))
        self.set_class(use.level is not ContextLevel.FINE, "-warning")
        self.set_class(self.is_error, "-error")
