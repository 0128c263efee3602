"""The side panel with the saved conversations and a search in them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from app.client.chat.conversations import ConversationEntry


class ChatList(Vertical):
    """Opened by a key. The screen looks conversations up; this only shows them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("delete,x", "delete", "Delete", id="list.delete",
                tooltip="delete the marked conversation, after a question"),
        Binding("down", "to_list", "List", id="list.down", show=False,
                tooltip="from the search into the list of conversations"),
        Binding("slash", "to_search", "Search", id="list.search", show=False,
                tooltip="search the conversations"),
    ]  # fmt: skip
    DEFAULT_CSS = """
    ChatList { display: none; width: 36; padding: 0 1; border-right: solid $border; }
    ChatList.-open { display: block; }
    ChatList .list-title { color: $foreground 85%; text-style: bold; }
    ChatList Input { border: none; height: 1; padding: 0; background: $surface; }
    ChatList OptionList {
        border: none; padding: 0; height: 1fr; background: transparent;
        scrollbar-size-vertical: 1;
    }
    """

    class Searched(Message):
        """Other words to look for."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Chosen(Message):
        """The user wants to go on with this conversation."""

        def __init__(self, conversation_id: int) -> None:
            super().__init__()
            self.conversation_id = conversation_id

    class DeleteAsked(Message):
        """Delete this one, if the user is sure."""

        def __init__(self, conversation_id: int, title: str) -> None:
            super().__init__()
            self.conversation_id = conversation_id
            self.title = title

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._entries: Sequence[ConversationEntry] = ()

    def compose(self) -> ComposeResult:
        """The search field above the list."""
        yield Static("Conversations", classes="list-title")
        yield Input(placeholder="search titles and texts", id="list-search", compact=True)
        yield OptionList(id="list-entries", compact=True)

    def show(self, entries: Sequence[ConversationEntry]) -> None:
        self._entries = entries
        entry_list = self.query_one(OptionList)
        entry_list.clear_options()
        entry_list.add_options(Option(_row(entry), id=str(entry.id)) for entry in entries)
        title = "Conversations" if entries else "Conversations: none"
        self.query_one(".list-title", Static).update(title)
        if entries:
            entry_list.highlighted = 0

    def search_for(self, text: str) -> None:
        field = self.query_one(Input)
        field.value = text
        field.focus()

    @property
    def search(self) -> str:
        return self.query_one(Input).value

    def on_input_changed(self, message: Input.Changed) -> None:
        """Look while it is typed."""
        message.stop()
        self.post_message(self.Searched(message.value))

    def on_input_submitted(self, message: Input.Submitted) -> None:
        """Enter in the search takes the first one found."""
        message.stop()
        self.query_one(OptionList).action_select()

    def on_option_list_option_selected(self, message: OptionList.OptionSelected) -> None:
        message.stop()
        self.post_message(self.Chosen(int(message.option.id or 0)))

    def action_delete(self) -> None:
        row = self.query_one(OptionList).highlighted
        if row is not None and row < len(self._entries):
            entry = self._entries[row]
            self.post_message(self.DeleteAsked(entry.id, entry.title))

    def action_to_list(self) -> None:
        """From the search into the list."""
        self.query_one(OptionList).focus()

    def action_to_search(self) -> None:
        """From the list into the search."""
        self.query_one(Input).focus()


def _row(entry: ConversationEntry) -> Content:
    """Title and date; never parsed as markup."""
    day = time.strftime("%Y-%m-%d", time.localtime(entry.changed_at_s))
    turns = "1 turn" if entry.num_turns == 1 else f"{entry.num_turns} turns"
    return Content.assemble(Content(entry.title), "\n", Content.styled(f"  {day}, {turns}", "dim"))
