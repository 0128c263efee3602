"""One turn on the screen: question or answer, reasoning that folds, tool calls, how it went.

Model text is drawn as Markdown without HTML; its links do nothing but show where they point.
"""

from __future__ import annotations

import json

from markdown_it import MarkdownIt
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Markdown, Static
from textual.widgets.markdown import MarkdownStream

from app.client.chat.answers import AnswerPiece
from app.client.chat.turns import ToolCall, Turn

_DRAW_EVERY_S = 0.1  # a long block of code is highlighted anew each time
_FENCE = "`" * 8  # longer than any that JSON text is likely to hold


def _parser() -> MarkdownIt:
    """Textual drops HTML; as text it stays visible."""
    return MarkdownIt("gfm-like", {"html": False})


class AnswerMarkdown(Markdown):
    """Markdown whose links only tell their address."""

    def __init__(self, text: str) -> None:
        super().__init__(text, parser_factory=_parser, open_links=False)

    def on_markdown_link_clicked(self, message: Markdown.LinkClicked) -> None:
        """Show the address; the user decides what to do with it."""
        message.stop()
        self.app.notify(message.href, title="Link", markup=False)


class ReasoningBox(Static):
    """The model's thinking: folded to one line, or whole."""

    def __init__(self, text: str, *, is_folded: bool) -> None:
        super().__init__(markup=False, classes="chat-reasoning")
        self.text = text
        self.is_folded = is_folded

    def on_mount(self) -> None:
        self.draw()

    def add(self, piece: str) -> None:
        self.text += piece
        self.draw()

    def fold(self, is_folded: bool) -> None:
        self.is_folded = is_folded
        self.draw()

    def draw(self) -> None:
        """The fold's line, and the text when it is open."""
        self.display = bool(self.text.strip())
        words = len(self.text.split())
        head = f"{'▸' if self.is_folded else '▾'} reasoning, {words} words"
        self.update(Content(head if self.is_folded else f"{head}\n{self.text.strip()}"))

    def on_click(self) -> None:
        self.fold(not self.is_folded)


class TurnView(Vertical):
    """One turn. An answer that is still coming is fed with `add` and closed with `finish`."""

    DEFAULT_CSS = """
    TurnView { height: auto; padding: 0 1; border-left: blank; }
    TurnView.-selected { border-left: outer $primary; background: $surface; }
    TurnView .chat-name { color: $secondary; text-style: bold; }
    TurnView.-user .chat-name { color: $primary; }
    TurnView .chat-question { padding: 0 0 1 2; }
    TurnView Markdown { height: auto; padding: 0 0 0 2; margin: 0; background: transparent; }
    TurnView Markdown MarkdownBlock:last-child { margin-bottom: 0; }
    TurnView .chat-reasoning { color: $foreground 60%; padding: 0 0 0 2; }
    TurnView .chat-call { color: $warning; padding: 0 0 0 2; }
    TurnView .chat-stats { color: $foreground 60%; padding: 0 0 1 2; }
    TurnView .chat-problem { color: $error; padding: 0 0 0 2; }
    """

    def __init__(self, turn: Turn, *, number: int | None = None, wants_json: bool = False) -> None:
        super().__init__(classes=f"-{turn.role}")
        self.turn = turn
        self._number = number
        self._wants_json = wants_json
        self._stream: MarkdownStream | None = None
        self._pending_text = ""
        self._pending_reasoning = ""
        self._is_waiting = False

    def compose(self) -> ComposeResult:
        """The name, then what the turn is made of."""
        name = self.turn.speaker
        number = f" {self._number}" if self._number is not None else ""
        yield Static(f"{name}{number}", classes="chat-name", markup=False)
        if self.turn.role == "assistant":
            yield from self._answer()
        else:
            yield Static(Content(_question(self.turn)), classes="chat-question")

    def _answer(self) -> ComposeResult:
        yield ReasoningBox(self.turn.reasoning, is_folded=bool(self.turn.reasoning))
        yield AnswerMarkdown(self._shown(self.turn.text))
        for call in self.turn.tool_calls:
            yield Static(Content(_call_text(call)), classes="chat-call")
        if self.turn.stats:
            yield from self._notes(self.turn)

    async def add(self, piece: AnswerPiece) -> None:
        """Draw what one delta added, or a little later what several did."""
        self._pending_text += piece.text
        self._pending_reasoning += piece.reasoning
        if not self._is_waiting:
            await self._draw_pending()
            self._is_waiting = True
            self.set_timer(_DRAW_EVERY_S, self._waited)

    async def _waited(self) -> None:
        self._is_waiting = False
        if self._pending_text or self._pending_reasoning:
            await self.add(AnswerPiece())

    async def _draw_pending(self) -> None:
        text, self._pending_text = self._pending_text, ""
        reasoning, self._pending_reasoning = self._pending_reasoning, ""
        if reasoning:
            self._reasoning.add(reasoning)
        if text and self._stream is None:
            self._stream = Markdown.get_stream(self._markdown)
            self.fold(True)
            text = f"{_FENCE}json\n{text}" if self._wants_json else text
        if text and self._stream is not None:
            await self._stream.write(text)

    async def finish(self, turn: Turn) -> None:
        """No more comes: draw what is known only at the end."""
        await self._draw_pending()
        if self._stream is not None:
            await self._stream.stop()
            self._stream = None
        if turn.text != self.turn.text and self._shown(turn.text) != self._markdown.source:
            await self._markdown.update(self._shown(turn.text))
        self.turn = turn
        await self.mount_all(
            Static(Content(_call_text(call)), classes="chat-call") for call in turn.tool_calls
        )
        if turn.stats:
            await self.mount_all(self._notes(turn))

    def fold(self, is_folded: bool | None = None) -> None:
        """Close or open the reasoning; the other way round without an argument."""
        if self.turn.role == "assistant":
            box = self._reasoning
            box.fold(not box.is_folded if is_folded is None else is_folded)

    @property
    def is_folded(self) -> bool:
        """True when the reasoning, if there is any, is closed."""
        boxes = list(self.query(ReasoningBox))
        return all(box.is_folded or not box.text for box in boxes)

    @property
    def _reasoning(self) -> ReasoningBox:
        return self.query_one(ReasoningBox)

    @property
    def _markdown(self) -> AnswerMarkdown:
        return self.query_one(AnswerMarkdown)

    def _shown(self, text: str) -> str:
        """JSON as a block of code, everything else as it is."""
        is_json = self._wants_json or _is_json(text)
        return f"{_FENCE}json\n{text}\n{_FENCE}" if text and is_json else text

    def _notes(self, turn: Turn) -> list[Static]:
        assert turn.stats is not None
        notes = []
        if turn.stats.problem:
            notes.append(Static(Content(f"✗ {turn.stats.problem}"), classes="chat-problem"))
        text = turn.stats.text()
        if self._wants_json and turn.text:
            text += f" · {'valid' if _is_json(turn.text) else 'not valid'} JSON"
        return [*notes, Static(Content(text), classes="chat-stats")]


def _question(turn: Turn) -> str:
    files = [f"+ {one.name} ({one.size})" for one in turn.attachments]
    return "\n".join([turn.text, *files])


def _call_text(call: ToolCall) -> str:
    """The call with its arguments laid out, if they are whole."""
    try:
        arguments = json.dumps(json.loads(call.arguments), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        arguments = call.arguments
    return f"→ calls {call.name}({arguments})"


def _is_json(text: str) -> bool:
    if not text.lstrip().startswith(("{", "[")):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):  # brackets in brackets in brackets ...
        return False
    return True
