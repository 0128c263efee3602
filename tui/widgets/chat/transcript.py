"""The turns of a conversation, one below the other, with one selected; stays at the end."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.message import Message
from textual.widgets import Static

from app.client.chat.turns import Conversation, Turn
from tui.widgets.chat.turn import TurnView

_MOST_SHOWN = 60  # each answer is a tree of widgets


class ChatTranscript(VerticalScroll):
    """Scrolls, selects; what a key does with the selected turn is the screen's."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "select(1)", "Down", id="turns.down", show=False, tooltip="next turn"),
        Binding("k,up", "select(-1)", "Up", id="turns.up", show=False, tooltip="previous turn"),
        Binding("g,home", "end(-1)", "First", id="turns.first", show=False, tooltip="first turn"),
        Binding("G,end", "end(1)", "Last", id="turns.last", show=False, tooltip="last turn"),
        Binding("o,space", "fold", "Fold", id="turns.fold", show=False,
                tooltip="open or close the reasoning"),
        Binding("c,y", "use('copy')", "Copy", id="turns.copy", tooltip="copy this turn's text"),
        Binding("e", "use('edit')", "Edit", id="turns.edit",
                tooltip="change this question and ask it again"),
        Binding("r", "use('again')", "Again", id="turns.again", show=False,
                tooltip="make the last answer anew"),
        Binding("slash", "use('command')", "Command", id="turns.command", show=False,
                tooltip="type a command"),
    ]  # fmt: skip
    DEFAULT_CSS = """
    ChatTranscript { height: 1fr; scrollbar-size-vertical: 1; }
    ChatTranscript > .chat-hint { color: $foreground 60%; padding: 1 2; }
    """

    class Used(Message):
        """A key asked to do something with `turn`, the selected one."""

        def __init__(self, use: str, turn: Turn | None) -> None:
            super().__init__()
            self.use = use
            self.turn = turn

    async def show(self, conversation: Conversation, hint: str) -> None:
        await self.remove_children()
        turns = conversation.turns
        hidden = max(0, len(turns) - _MOST_SHOWN)
        if not turns:
            await self.mount(Static(hint, classes="chat-hint", markup=False))
        if hidden:
            text = f"{hidden} earlier turns are not shown; /export writes all of them"
            await self.mount(Static(text, classes="chat-hint", markup=False))
        numbers = conversation.question_numbers()
        await self.mount_all(
            TurnView(turn, number=number if turn.role == "user" else None)
            for turn, number in list(zip(turns, numbers, strict=True))[hidden:]
        )
        self.anchor()

    async def add(self, turn: Turn, *, number: int | None = None, wants_json: bool = False) -> None:
        """One turn more at the end."""
        for hint in self.query(".chat-hint"):
            await hint.remove()
        await self.mount(TurnView(turn, number=number, wants_json=wants_json))
        self.anchor()

    @property
    def turn_views(self) -> list[TurnView]:
        """From the first to the last."""
        return list(self.query(TurnView))

    @property
    def selected(self) -> TurnView | None:
        """The marked turn, if one is marked."""
        return next((view for view in self.turn_views if view.has_class("-selected")), None)

    def on_focus(self) -> None:
        """Keys need a turn to work on."""
        if self.selected is None:
            self.action_end(1)

    def on_blur(self) -> None:
        """The mark belongs to the keys."""
        for view in self.turn_views:
            view.remove_class("-selected")

    def action_select(self, step: int) -> None:
        """Mark the next turn; at the end scroll on."""
        views, now = self.turn_views, self.selected
        index = views.index(now) + step if now else len(views) - 1
        if 0 <= index < len(views):
            self._mark(views[index])
        elif step > 0:
            self.scroll_down()
        else:
            self.scroll_up()

    def action_end(self, side: int) -> None:
        """Mark the first or the last."""
        views = self.turn_views
        if views:
            self._mark(views[0 if side < 0 else -1])

    def action_fold(self) -> None:
        """The reasoning of the marked turn."""
        if self.selected:
            self.selected.fold()

    def action_use(self, use: str) -> None:
        self.post_message(self.Used(use, self.selected.turn if self.selected else None))

    def _mark(self, wanted: TurnView) -> None:
        for view in self.turn_views:
            view.set_class(view is wanted, "-selected")
        self.release_anchor()
        self.scroll_to_widget(wanted, animate=False)


def empty_answer() -> Turn:
    """An answer of which nothing has come yet."""
    return Turn("assistant", "")
