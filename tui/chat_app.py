"""The chat as an application of its own. `run_chat` is the way in."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import ClassVar

from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen

from app.client.chat.commands import COMMANDS
from app.client.chat.session import ChatSession
from app.client.errors import ClientError
from tui.keys import palette_commands
from tui.screens.chat import ChatScreen
from tui.screens.help import HelpScreen
from tui.theme import EndedBySignal, StyledApp
from tui.widgets.chat.input import read_alt_enter
from tui.widgets.chat.list import ChatList
from tui.widgets.chat.transcript import ChatTranscript


class ChatApp(StyledApp):
    """Ends when its user says so, or at SIGTERM; a running answer is kept as far as it came."""

    CSS_PATH = "app.tcss"
    TITLE = "stoker chat"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,f10", "leave", "Quit", id="app.quit", key_display="F10",
                tooltip="quit (q outside of the input, Ctrl-C when no answer comes)"),
        # Above everything else: Textual gives Ctrl-C to copying text.
        Binding("ctrl+c", "interrupt", id="app.interrupt", show=False, priority=True),
        Binding("f1,question_mark,h", "help", "Help", id="app.help", key_display="F1",
                tooltip="this help"),
        Binding("ctrl+z", "suspend_process", id="app.suspend", show=False),
        Binding("ctrl+q", "leave", id="app.quit-at-once", show=False, priority=True),
    ]  # fmt: skip

    def __init__(
        self,
        session: ChatSession,
        explain: Callable[[ClientError], str] = str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        read_alt_enter()
        self.chat = ChatScreen(session, explain, clock=clock)

    def on_mount(self) -> None:
        self.wear(self.appearance)
        self.push_screen(self.chat)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Our actions first, then Textual's."""
        return palette_commands(self, screen, super().get_system_commands(screen))

    async def action_leave(self) -> None:
        """End; what came of a running answer is saved."""
        await self.chat.stop_answer()
        self.exit()

    async def action_interrupt(self) -> None:
        """Stop the answer, else copy what is selected, else quit."""
        selected = self.screen.get_selected_text()
        if self.chat.is_answering:
            await self.chat.stop_answer()
        elif selected:
            self.copy_to_clipboard(selected)
        else:
            await self.action_leave()

    def action_help(self) -> None:
        bindings = (
            *ChatScreen.BINDINGS,
            *ChatApp.BINDINGS,
            *ChatTranscript.BINDINGS,
            *ChatList.BINDINGS,
        )
        keys = (binding for binding in bindings if isinstance(binding, Binding))
        commands = [(f"/{one.name} {one.arguments}", one.meaning) for one in COMMANDS]
        self.push_screen(HelpScreen(keys, commands))


def run_chat(session: ChatSession, explain: Callable[[ClientError], str]) -> int:
    """Run until the user quits (0); 1 when the screen failed, 128 + number after a signal."""
    app = ChatApp(session, explain)
    with contextlib.suppress(EndedBySignal):
        app.run_to_end()
    return app.return_code or 0
