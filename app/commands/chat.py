"""`stoker chat`: talk to a running server. One question from -m or a pipe, or a conversation.

A pipe gets the answer and nothing else. API keys come from a file or the environment, never argv.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from app.client.chat import ChatDelta, Usage
    from app.client.errors import ClientError
    from app.errors import StokerError

_HELP = """\
/reset  forget the conversation     /help  this list
/exit   leave (Ctrl-D too)          Ctrl-C cancels the running answer"""


@dataclass(frozen=True, slots=True)
class _Target:
    """Where questions go and how they are to be answered."""

    url: str
    api_key: str | None
    model: str
    system: str | None
    max_tokens: int | None
    temperature: float | None
    seed: int | None

    def ask(self, turns: list[dict[str, str]]) -> Generator[ChatDelta, None, None]:
        from app.client.chat import stream_chat

        system = [{"role": "system", "content": self.system}] if self.system else []
        return stream_chat(
            self.url,
            [*system, *turns],
            model=self.model,
            api_key=self.api_key,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            seed=self.seed,
        )


def chat(
    url: Annotated[
        str | None,
        typer.Argument(help="Server address. Default: $STOKER_URL, else http://127.0.0.1:8000."),
    ] = None,
    message: Annotated[
        str | None, typer.Option("--message", "-m", help="Ask this, print the answer, end.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model id. Default: the first that the server lists.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest answer, in tokens.")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=2.0,
            help="Default: the server's; 0 for a single question, so that its answer is stable.",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the sampling.")] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(help="File with the API key. Default: $STOKER_API_KEY, $VLLM_API_KEY."),
    ] = None,
) -> None:
    """Chat with a running server.

    In a terminal: a conversation. `echo QUESTION | stoker chat` prints the answer alone.
    """
    from app.client.server import first_model

    is_conversation = message is None and sys.stdin.isatty()
    question = None if is_conversation else _question(message)
    if temperature is None and question is not None:
        temperature = 0.0
    base_url, api_key = _address(url, api_key_file)
    with _client_errors(api_key):
        target = _Target(
            url=base_url,
            api_key=api_key,
            model=model or first_model(base_url, api_key=api_key),
            system=system,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
        )
        if question is not None:
            with contextlib.closing(target.ask([_user(question)])) as deltas:
                _Answer().print(deltas)
            return
    _Conversation(target).run()


def _question(message: str | None) -> str:
    from app.errors import ExitCode, StokerError

    question = (sys.stdin.read() if message is None else message).strip()
    if not question:
        raise StokerError(
            "there is no question: the input is empty",
            hint='ask like this: echo "What is the capital of France?" | stoker chat',
            exit_code=ExitCode.USAGE,
        )
    return question


def _address(url: str | None, api_key_file: Path | None) -> tuple[str, str | None]:
    from app.client.credentials import find_api_key
    from app.client.errors import InvalidKeyFile, InvalidUrl
    from app.client.transport import DEFAULT_URL, normalise_base_url
    from app.errors import ExitCode, StokerError

    try:
        base_url = normalise_base_url(url or os.environ.get("STOKER_URL") or DEFAULT_URL)
        return base_url, find_api_key(api_key_file, os.environ)
    except (InvalidUrl, InvalidKeyFile) as error:
        raise StokerError(str(error), exit_code=ExitCode.USAGE) from error


def _user(question: str) -> dict[str, str]:
    return {"role": "user", "content": question}


@contextlib.contextmanager
def _client_errors(api_key: str | None) -> Iterator[None]:
    from app.client.errors import ClientError

    try:
        yield
    except ClientError as error:
        raise _explained(error, api_key) from error


def _explained(error: ClientError, api_key: str | None) -> StokerError:
    from app.client.errors import Unauthorized, Unreachable
    from app.errors import ExitCode, StokerError

    if isinstance(error, Unreachable):
        hint = "start a server with `stoker serve`, or name one: stoker chat http://HOST:PORT"
        return StokerError(str(error), hint=hint, exit_code=ExitCode.UNREACHABLE)
    if isinstance(error, Unauthorized):
        what = "the API key is refused; put the right one" if api_key else "put the API key"
        hint = f"{what} into STOKER_API_KEY, or into a file for --api-key-file"
        return StokerError(str(error), hint=hint, exit_code=ExitCode.UNREACHABLE)
    return StokerError(str(error))


@dataclass(slots=True)
class _Answer:
    """One answer as it is printed, and what there is to say about it afterwards."""

    on_reasoning: Callable[[str], None] = lambda _text: None
    text: str = ""
    usage: Usage | None = None
    asked_at_s: float = field(default_factory=time.monotonic)
    first_at_s: float | None = None
    last_at_s: float = 0.0

    def print(self, deltas: Iterator[ChatDelta]) -> None:
        """Write the text to stdout as it comes, ended by a newline."""
        from app.client.terminal_text import EscapeFilter

        escapes, reasoning_escapes = EscapeFilter(), EscapeFilter()
        try:
            for delta in deltas:
                self._note(delta)
                self.on_reasoning(reasoning_escapes.feed(delta.reasoning))
                _write(escapes.feed(delta.text))
        finally:
            _write(escapes.flush())
            if self.text and not self.text.endswith("\n"):
                _write("\n")

    def _note(self, delta: ChatDelta) -> None:
        self.usage = delta.usage or self.usage
        if delta.text or delta.reasoning:
            self.text += delta.text
            self.last_at_s = time.monotonic()
            self.first_at_s = self.first_at_s or self.last_at_s

    def summary(self) -> str:
        """Tokens, time to the first one, and the rate of the others."""
        parts = []
        if self.usage:
            parts.append(
                f"{self.usage.prompt_tokens} prompt + {self.usage.completion_tokens} tokens"
            )
        if self.first_at_s is not None:
            parts.append(f"first token {(self.first_at_s - self.asked_at_s) * 1000:.0f} ms")
            span_s = self.last_at_s - self.first_at_s
            if self.usage and self.usage.completion_tokens > 1 and span_s > 0:
                parts.append(f"{(self.usage.completion_tokens - 1) / span_s:.1f} tokens/s")
        return " · ".join(parts)


def _write(text: str) -> None:
    if text:
        # Half a surrogate pair from a server must not end the program.
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()


@dataclass(slots=True)
class _Conversation:
    """Prompt, ask, print, remember; ends with /exit or the end of input."""

    target: _Target
    turns: list[dict[str, str]] = field(default_factory=list)

    def run(self) -> None:
        """Loop until the user leaves."""
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (line editing and history for input())
        from app.client.terminal_text import strip_escapes

        _say(f"{strip_escapes(self.target.model)} at {self.target.url}; /help lists the commands")
        while True:
            try:
                line = _read_line().strip()
            except KeyboardInterrupt:
                _say("\nCtrl-D leaves")
                continue
            except EOFError:
                _say("")
                return
            if line in ("/exit", "/quit"):
                return
            self._handle(line)

    def _handle(self, line: str) -> None:
        if line == "/reset":
            self.turns.clear()
            _say("the conversation is forgotten")
        elif line == "/help":
            _say(_HELP)
        elif line.startswith("/") and " " not in line:
            _say(f"there is no command {line}; /help lists them")
        elif line:
            self._ask(line)

    def _ask(self, question: str) -> None:
        from app.client.errors import ClientError

        self.turns.append(_user(question))
        answer = _Answer(on_reasoning=_think)
        try:
            with contextlib.closing(self.target.ask(self.turns)) as deltas:
                answer.print(deltas)
        except KeyboardInterrupt:
            _say("cancelled")
        except ClientError as error:
            explained = _explained(error, self.target.api_key)
            _say(f"error: {explained}" + (f"\n{explained.hint}" if explained.hint else ""))
        else:
            _say(answer.summary())
        self._remember(answer.text)

    def _remember(self, text: str) -> None:
        """A cancelled answer stays as far as it went; a question without answer goes."""
        if text:
            self.turns.append({"role": "assistant", "content": text})
        else:
            self.turns.pop()


def _read_line() -> str:
    """One line from the terminal; the prompt stays out of a redirected stdout."""
    if sys.stdout.isatty():
        return input("> ")
    sys.stderr.write("> ")
    sys.stderr.flush()
    return input()


def _say(text: str) -> None:
    typer.echo(_dim(text), err=True)


def _think(text: str) -> None:
    if text:
        typer.echo(_dim(text), err=True, nl=False)


def _dim(text: str) -> str:
    is_plain = not sys.stderr.isatty() or os.environ.get("NO_COLOR") or not text
    return text if is_plain else typer.style(text, dim=True)
