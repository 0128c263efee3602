"""The chat in lines: one answer on stdout, or a conversation at a prompt. All talk is on stderr."""

from __future__ import annotations

import base64
import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from app.client.chat.answers import AnswerBuilder
from app.client.chat.commands import Next, Reply, help_text, question_text, run_command
from app.client.chat.context_use import ContextLevel
from app.client.chat.conversations import StoreError
from app.client.chat.session import ChatError, ChatSession
from app.client.chat.turns import STOPPED
from app.client.errors import ClientError
from app.client.terminal_text import strip_escapes

if TYPE_CHECKING:
    from app.client.chat.stream import ChatDelta
    from app.client.chat.turns import ToolCall

_KEYS = "Ctrl-C stops an answer, Ctrl-D leaves"


def print_answer(
    deltas: Iterator[ChatDelta],
    builder: AnswerBuilder,
    on_reasoning: Callable[[str], None] = lambda _text: None,
) -> None:
    """Write the text to stdout as it comes, ended by a newline, then the tool calls."""
    try:
        for delta in deltas:
            piece = builder.feed(delta)
            on_reasoning(piece.reasoning)
            _write(piece.text)
    finally:
        piece = builder.finish()
        on_reasoning(piece.reasoning)
        _write(piece.text)
        if builder.text and not builder.text.endswith("\n"):
            _write("\n")
    for call in builder.tool_calls:
        _write(f"{_call_text(call)}\n")


def _call_text(call: ToolCall) -> str:
    return f"{call.name}({call.arguments})"


def _write(text: str) -> None:
    if text:
        # A terminal that is not UTF-8 must not end the program.
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()


@dataclass(slots=True)
class LineChat:
    """Prompt, ask, print, remember; ends with /quit or the end of input."""

    session: ChatSession
    explain: Callable[[ClientError], str]
    _suggestion: str = ""
    _told_problem: str = ""

    def run(self) -> None:
        """Loop until the user leaves."""
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (line editing and history for input())
        self._tell_save_problem()
        target = self.session.target
        say(f"{strip_escapes(target.model.shown_name)} at {target.url}; /help lists the commands")
        self._show_conversation()
        while True:
            try:
                line = _read_line(self._suggestion).strip()
            except KeyboardInterrupt:
                say("\nCtrl-D leaves")
                continue
            except EOFError:
                say("")
                return
            self._suggestion = ""
            if not self._handle(line):
                return
            self._tell_save_problem()

    def _handle(self, line: str) -> bool:
        """False when the user wants to leave."""
        if not line:
            return True
        outcome = run_command(self.session, line)
        if outcome is None:
            self.session.ask(question_text(line))
            self._answer()
            return True
        if outcome.text:
            say(f"error: {outcome.text}" if outcome.is_error else strip_escapes(outcome.text))
        self._follow(outcome)
        return outcome.next is not Next.QUIT

    def _follow(self, outcome: Reply) -> None:
        if outcome.next is Next.ANSWER:
            self._answer()
        elif outcome.next is Next.HELP:
            say(f"{help_text()}\n{_KEYS}")
        elif outcome.next is Next.EDIT:
            self._suggestion = " ".join(outcome.payload.splitlines())
        elif outcome.next is Next.LIST:
            self._list(outcome.payload)
        elif outcome.next is Next.CONFIRM:
            say(f"`{outcome.payload}` does it")
        elif outcome.next is Next.COPY:
            _copy(outcome.payload)
        elif outcome.next is Next.REDRAW:
            self._show_conversation()

    def _answer(self) -> None:
        use = self.session.context()
        if use.level is not ContextLevel.FINE:
            say(f"warning: {use.text()}; {use.warning()}")
        builder, problem = AnswerBuilder(), None
        try:
            with contextlib.closing(self.session.stream()) as deltas:
                print_answer(deltas, builder, _think)
        except KeyboardInterrupt:
            problem = STOPPED
            say("cancelled")
        except ClientError as error:
            problem = str(error)
            say(f"error: {self.explain(error)}")
        turn = self.session.keep(builder.turn(problem))
        if problem is None and turn.stats:
            say(turn.stats.text())
        if turn.tool_calls:
            say("the model calls a tool: `/result TEXT` gives it the result")

    def _list(self, search: str) -> None:
        try:
            entries = self.session.entries(search)
        except (ChatError, StoreError) as error:
            say(f"error: {error}")
            return
        for entry in entries:
            say(f"{entry.id:>4}  {strip_escapes(entry.title)}")
        say("/open N goes on with one" if entries else "none")

    def _show_conversation(self) -> None:
        for turn in self.session.conversation.turns:
            if turn.role == "user":
                say(f"> {turn.text}")
            elif turn.text:
                _write(f"{turn.text}\n")

    def _tell_save_problem(self) -> None:
        problem = self.session.save_problem
        if problem and problem != self._told_problem:
            self._told_problem = problem
            say(f"warning: {problem}")


def _read_line(suggestion: str) -> str:
    """One line from the terminal; the prompt stays out of a redirected stdout."""
    with _prefilled(suggestion):
        if sys.stdout.isatty():
            return input("> ")
        sys.stderr.write("> ")
        sys.stderr.flush()
        return input()


@contextlib.contextmanager
def _prefilled(text: str) -> Iterator[None]:
    """The line starts with `text`, where readline can do that; else it is shown."""
    try:
        import readline
    except ImportError:
        if text:
            say(text)
        yield
        return
    readline.set_startup_hook(lambda: readline.insert_text(text))
    try:
        yield
    finally:
        readline.set_startup_hook()


def _copy(text: str) -> None:
    """Hand the text to the terminal's clipboard (OSC 52)."""
    if sys.stderr.isatty():
        code = base64.b64encode(text.encode()).decode("ascii")
        sys.stderr.write(f"\x1b]52;c;{code}\x07")
        sys.stderr.flush()


def say(text: str) -> None:
    typer.echo(_dim(text), err=True)


def _think(text: str) -> None:
    if text:
        typer.echo(_dim(text), err=True, nl=False)


def _dim(text: str) -> str:
    from app.output import has_colors

    return typer.style(text, dim=True) if text and has_colors(sys.stderr) else text
