"""The chat screen: transcript, input, the two side panels, and the worker that fetches answers.

What is said and saved is the session's; this draws it and turns keys into its methods.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.screen import Screen
from textual.widget import Widget
from textual.worker import Worker, WorkerCancelled, WorkerFailed

from app.client.chat.answers import AnswerBuilder
from app.client.chat.commands import Next, Reply, find_command, question_text, run_command
from app.client.chat.conversations import StoreError
from app.client.chat.session import ChatError, ChatSession
from app.client.chat.turns import STOPPED, Turn
from app.client.errors import ClientError
from app.client.terminal_text import strip_escapes
from tui.screens.confirm import ConfirmScreen
from tui.screens.notice import NoticeScreen
from tui.widgets.chat.bars import ChatHeader, ChatStatus
from tui.widgets.chat.command_hints import CommandHints
from tui.widgets.chat.input import ChatInput
from tui.widgets.chat.list import ChatList
from tui.widgets.chat.settings import ChatSettings
from tui.widgets.chat.transcript import ChatTranscript, empty_answer
from tui.widgets.key_bar import KeyBar

_HINT = """\
Ask something below. Answers come as Markdown and can be stopped with Esc.
F2 sets the system prompt and the parameters, F3 lists saved conversations,
Ctrl-N starts a new one, F1 explains all keys and the commands that start with /."""


class AnswerFinished(Message):
    """The worker is done with one answer, whole or not; `is_replaced` when the old one stays."""

    def __init__(self, answer: Turn, *, is_replaced: bool) -> None:
        super().__init__()
        self.answer = answer
        self.is_replaced = is_replaced


class ChatScreen(Screen[None]):
    """One answer at a time; everything but asking works while it comes."""

    AUTO_FOCUS = "#chat-input"
    DEFAULT_CSS = """
    ChatScreen { layout: vertical; }
    #chat-body { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "Stop", id="chat.stop", key_display="Esc",
                tooltip="close a panel; else stop the answer, cancel an edit, back to the input"),
        Binding("f2", "settings", "Settings", id="chat.settings", key_display="F2",
                tooltip="system prompt and parameters"),
        Binding("f3", "conversations", "Chats", id="chat.list", key_display="F3",
                tooltip="saved conversations"),
        Binding("f4", "fold", "Reasoning", id="chat.fold", show=False,
                tooltip="open or close the reasoning of every answer"),
        Binding("f5", "command('/again')", "Again", id="chat.again", key_display="F5",
                tooltip="make the last answer anew"),
        Binding("f6", "command('/edit')", "Edit", id="chat.edit", show=False, priority=True,
                tooltip="change the last question and ask it again"),
        Binding("f7", "begin('/attach ')", "Attach", id="chat.attach", show=False, priority=True,
                tooltip="send a text file with the next question"),
        Binding("f8", "command('/export')", "Export", id="chat.export", show=False,
                tooltip="write the conversation to a Markdown file here"),
        Binding("ctrl+n", "command('/new')", "New", id="chat.new", show=False,
                tooltip="new conversation"),
        Binding("ctrl+t", "turns", "Turns", id="chat.turns", show=False,
                tooltip="to the turns: j k select, c copy, e edit, o reasoning (Tab too)"),
    ]  # fmt: skip

    def __init__(
        self,
        session: ChatSession,
        explain: Callable[[ClientError], str],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._session = session
        self._explain = explain
        self._clock = clock
        self._worker: Worker[None] | None = None
        self._told_problem = ""

    def compose(self) -> ComposeResult:
        """Panels left and right of the transcript, the input below."""
        yield ChatHeader(id="chat-header")
        with Horizontal(id="chat-body"):
            yield ChatList(id="chat-list")
            yield ChatTranscript(id="chat-transcript")
            yield ChatSettings(id="chat-settings")
        yield CommandHints(id="chat-commands")
        yield ChatStatus(id="chat-status")
        yield ChatInput(id="chat-input")
        yield KeyBar()

    async def on_mount(self) -> None:
        """Draw the conversation that the session starts with."""
        await self._redraw()

    # -- messages ------------------------------------------------------------

    async def on_chat_input_submitted(self, message: ChatInput.Submitted) -> None:
        """A command, or a question."""
        line = message.text.strip()
        outcome = None if self._session.editing is not None else self._run(line)
        if outcome is not None:
            await self._follow(outcome)
        elif self.is_answering:
            self._input.give_back(message.text)
            self._say("one answer at a time: Esc stops this one", is_error=True)
        else:
            await self._ask(line)

    async def on_chat_input_edit_asked(self) -> None:
        await self._command("/edit")

    def on_text_area_changed(self) -> None:
        """The context that the draft would take, and the commands that it may become."""
        self._show_status()
        self.query_one(CommandHints).show(self._input.text)

    async def on_chat_transcript_used(self, message: ChatTranscript.Used) -> None:
        """A key on the selected turn."""
        if message.use == "copy" and message.turn:
            self._copy(message.turn.text)
            self._say("copied")
        elif message.use == "edit" and message.turn:
            await self._command(f"/edit {self._question_number(message.turn)}")
        elif message.use == "again":
            await self._command("/again")
        elif message.use == "command":
            self.action_begin("/")

    def on_chat_settings_system_changed(self, message: ChatSettings.SystemChanged) -> None:
        self._session.change(system=message.text)
        self._show_state()

    def on_chat_settings_parameters_changed(self, message: ChatSettings.ParametersChanged) -> None:
        self._session.change(parameters=message.parameters)
        self._show_state()

    async def on_chat_settings_json_chosen(self, message: ChatSettings.JsonChosen) -> None:
        await self._command(f"/json {'on' if message.is_on else 'off'}")

    def on_chat_list_searched(self, message: ChatList.Searched) -> None:
        self._list(message.text)

    async def on_chat_list_chosen(self, message: ChatList.Chosen) -> None:
        await self._command(f"/open {message.conversation_id}")
        if not self.query_one(ChatStatus).is_error:
            self.query_one(ChatList).remove_class("-open")
            self._input.focus()

    async def on_chat_list_delete_asked(self, message: ChatList.DeleteAsked) -> None:
        """As the command, which asks."""
        await self._command(f"/delete {message.conversation_id}")

    async def on_answer_finished(self, message: AnswerFinished) -> None:
        """The picture between two answers."""
        self._worker = None
        problem = message.answer.stats.problem if message.answer.stats else None
        if message.is_replaced:
            await self._redraw()
            self._say(problem or "nothing new came; the old answer stays", is_error=True)
        elif message.answer.tool_calls:
            self._say("the model calls a tool: `/result TEXT` gives it the result")
        else:
            self._say("F5 asks again" if problem else "")
        self.refresh_bindings()

    # -- actions -------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Esc has its place in the footer only while there is something to stop."""
        if action != "stop" or self.is_answering or self._session.editing is not None:
            return True
        return True if self._open_panels() or self.focused is not self._input else None

    async def action_stop(self) -> None:
        """What lies on top ends first: the panel, the answer, the edit; then the input has keys."""
        panels = self._open_panels()
        for panel in panels:
            panel.remove_class("-open")
        if self.is_answering and not panels:
            await self.stop_answer()
        elif self._session.editing is not None and not panels:
            self._session.cancel_edit()
            self._input.put("")
            self._say("the question stays as it is")
        self._input.focus()

    def action_settings(self) -> None:
        """Open or close the panel."""
        panel = self.query_one(ChatSettings)
        panel.toggle_class("-open")
        self.query_one(ChatList).remove_class("-open")
        if panel.has_class("-open"):
            panel.show(self._session.conversation.system, self._session.conversation.parameters)
            panel.query_one("#settings-system").focus()
        else:
            self._input.focus()

    def action_conversations(self) -> None:
        """Open or close the panel."""
        panel = self.query_one(ChatList)
        if panel.has_class("-open"):
            panel.remove_class("-open")
            self._input.focus()
        else:
            self._open_list("")

    def action_fold(self) -> None:
        """All open if all are closed, else all closed."""
        views = self.query_one(ChatTranscript).turn_views
        all_folded = all(view.is_folded for view in views)
        for view in views:
            view.fold(not all_folded)

    async def action_command(self, line: str) -> None:
        """Do what a typed command would."""
        await self._command(line)

    def action_begin(self, text: str) -> None:
        """Let the user type the rest of a command."""
        self._input.put(text)

    def action_turns(self) -> None:
        """Give the keys to the transcript."""
        self.query_one(ChatTranscript).focus()

    # -- asking --------------------------------------------------------------

    @property
    def is_answering(self) -> bool:
        """True while an answer comes."""
        return self._worker is not None

    async def stop_answer(self) -> None:
        """End the answer that is coming; what came of it is kept."""
        if self._worker is not None:
            self._worker.cancel()
            with contextlib.suppress(WorkerCancelled, WorkerFailed):
                await self._worker.wait()

    async def _ask(self, line: str) -> None:
        is_edit = self._session.editing is not None
        self._session.ask(question_text(line))
        if is_edit:
            await self._redraw()
        else:
            question = self._session.conversation.turns[-1]
            number = self._session.conversation.question_numbers()[-1]
            await self.query_one(ChatTranscript).add(question, number=number)
        await self._begin_answer()

    async def _begin_answer(self) -> None:
        wants_json = self._session.conversation.parameters.is_json
        await self.query_one(ChatTranscript).add(empty_answer(), wants_json=wants_json)
        self._worker = self.run_worker(self._answer(), name="answer")
        self._say("waiting for the first token · Esc stops")
        self.refresh_bindings()

    async def _answer(self) -> None:
        """The worker: from the server into the last turn on the screen."""
        view = self.query_one(ChatTranscript).turn_views[-1]
        builder, problem = AnswerBuilder(self._clock), None
        try:
            async with contextlib.aclosing(self._session.stream_async()) as deltas:
                async for delta in deltas:
                    if not builder.has_begun:
                        self._say("answering · Esc stops")
                    await view.add(builder.feed(delta))
        except asyncio.CancelledError:
            problem = STOPPED
        except ClientError as error:
            problem = self._explain(error)
        except Exception as error:  # a crash would cost what came, and show a traceback's values
            self.log.error(f"answer: {type(error).__name__}: {error}")
            problem = f"unexpected {type(error).__name__}: {error}"
        held = builder.finish()
        answer = builder.turn(problem)
        # Saved before anything is drawn: the screen may be closing.
        is_replaced = self._session.keep(answer) is not answer
        await view.add(held)
        await view.finish(answer)
        self.post_message(AnswerFinished(answer, is_replaced=is_replaced))

    # -- commands ------------------------------------------------------------

    def _run(self, line: str) -> Reply | None:
        command = find_command(line)
        if self.is_answering and command and command.needs_idle:
            return Reply("one answer at a time: Esc stops this one", is_error=True)
        return run_command(self._session, line)

    async def _command(self, line: str) -> None:
        outcome = self._run(line)
        if outcome is not None:
            await self._follow(outcome)

    async def _follow(self, outcome: Reply) -> None:
        text = outcome.text
        if outcome.next is Next.CONFIRM:
            self._confirm(text, outcome.payload)
            return
        if "\n" in text:
            # A screen of its own: a note in the corner would lie over the line that tells errors.
            self.app.push_screen(NoticeScreen(strip_escapes(text)))
            text = ""
        self._say(text, is_error=outcome.is_error)
        if outcome.next is Next.ANSWER:
            await self._redraw()
            await self._begin_answer()
        elif outcome.next is Next.REDRAW:
            await self._redraw()
        elif outcome.next is Next.EDIT:
            self._input.put(outcome.payload)
            self._say("editing: Enter asks it again, Esc leaves it as it is")
        elif outcome.next is Next.LIST:
            self._open_list(outcome.payload)
        elif outcome.next is Next.COPY:
            self._copy(outcome.payload)
        elif outcome.next is Next.HELP:
            await self.app.run_action("help")
        elif outcome.next is Next.QUIT:
            await self.app.run_action("leave")

    def _confirm(self, question: str, command: str) -> None:
        async def answered(is_yes: bool | None) -> None:
            if is_yes:
                await self._command(command)
                if self._open_panels():
                    self._list(self.query_one(ChatList).search)

        self.app.push_screen(ConfirmScreen(strip_escapes(question)), answered)

    def _open_list(self, search: str) -> None:
        panel = self.query_one(ChatList)
        self.query_one(ChatSettings).remove_class("-open")
        if self._list(search):
            panel.add_class("-open")
            panel.search_for(search)

    def _list(self, search: str) -> bool:
        try:
            self.query_one(ChatList).show(self._session.entries(search))
        except (ChatError, StoreError) as error:
            self._say(str(error), is_error=True)
            return False
        return True

    def _open_panels(self) -> list[Widget]:
        return list(self.query("ChatList.-open, ChatSettings.-open").results(Widget))

    def _copy(self, text: str) -> None:
        self.app.copy_to_clipboard(text)

    def _question_number(self, turn: Turn) -> int:
        """Of the question itself, or of the one that `turn` answers."""
        conversation = self._session.conversation
        numbers = conversation.question_numbers()
        pairs = zip(conversation.turns, numbers, strict=True)
        return next((number for one, number in pairs if one is turn), numbers[-1])

    # -- showing -------------------------------------------------------------

    @property
    def _input(self) -> ChatInput:
        return self.query_one(ChatInput)

    async def _redraw(self) -> None:
        await self.query_one(ChatTranscript).show(self._session.conversation, _HINT)
        self._show_state()

    def _say(self, text: str, *, is_error: bool = False) -> None:
        self.query_one(ChatStatus).say(text, is_error=is_error)
        self._show_state()

    def _show_state(self) -> None:
        self.query_one(ChatHeader).show(self._session)
        self._show_status()

    def _show_status(self) -> None:
        self.query_one(ChatStatus).show(self._session, self._input.text)
        problem = self._session.save_problem
        if problem and problem != self._told_problem:
            self._told_problem = problem
            self.app.notify(problem, title="Not saved", severity="warning", markup=False)
