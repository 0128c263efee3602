"""`stoker chat`: talk to a running server, on a screen, in lines, or one question from a pipe.

A pipe gets the answer and nothing else. API keys come from a file or the environment, never argv.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.commands.shared_options import ApiKeyFile, AsciiOnly, Seed, TopP

if TYPE_CHECKING:
    from app.client.chat.conversations import ConversationStore
    from app.client.chat.session import ChatSession, ChatTarget
    from app.client.chat.turns import Conversation
    from app.client.errors import ClientError


def chat(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SERVER] [PROMPT]",
            help="Server (name, pid, :port or URL) and question. "
            "Default server: $STOKER_URL, else the one that runs here.",
        ),
    ] = None,
    message: Annotated[
        str | None, typer.Option("--message", "-m", help="Ask this, print the answer, end.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model id. Default: the first that the server lists.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    attach: Annotated[
        list[Path] | None,
        typer.Option(help="Image or text file that goes with the question; repeatable."),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", "-n", min=1, help="Longest answer, in tokens.")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=2.0,
            help="Default: the server's; 0 for a single question, so that its answer is stable.",
        ),
    ] = None,
    top_p: TopP = None,
    seed: Seed = None,
    json_mode: Annotated[bool, typer.Option("--json-mode", help="Ask for JSON.")] = False,
    json_schema: Annotated[
        Path | None, typer.Option(help="Ask for JSON that obeys the schema in this file.")
    ] = None,
    tools: Annotated[
        Path | None, typer.Option(help="JSON file with a list of tools the model may call.")
    ] = None,
    line_mode: Annotated[
        bool, typer.Option("--line", "--no-tui", help="A conversation in lines, no screen.")
    ] = False,
    theme: Annotated[
        str | None,
        typer.Option(metavar="dark|light|16", help="Colours. Default: $STOKER_THEME, else dark."),
    ] = None,
    ascii_only: AsciiOnly = False,
    resume: Annotated[
        bool, typer.Option("--continue", "-c", help="Go on with the last conversation.")
    ] = False,
    no_save: Annotated[bool, typer.Option("--no-save", help="Save no conversation.")] = False,
    api_key_file: ApiKeyFile = None,
) -> int:
    """Chat with a running server.

    In a terminal: a conversation. `git diff | stoker chat "review this"` prints the answer alone.
    """
    from app.client.chat.session import ChatSession, ChatTarget
    from app.client.served_model import served_model
    from app.targets.prompt_words import chat_words
    from app.targets.server_errors import client_errors
    from app.targets.servers import find_target

    word, prompt = chat_words(words or (), has_message=message is not None)
    is_conversation = message is None and prompt is None and sys.stdin.isatty()
    question = None if is_conversation else _question(message, prompt)
    if temperature is None and question is not None:
        temperature = 0.0
    start = _conversation(
        system=system or "",
        json_mode=json_mode,
        json_schema=json_schema,
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
    )
    definitions = _tools(tools)
    found = find_target(word)
    base_url, api_key = found.url, found.api_key(api_key_file)
    with client_errors(api_key):
        served = served_model(base_url, model, api_key=api_key)
    target = ChatTarget(base_url, served, api_key, definitions)
    if question is not None:
        session = ChatSession(target, conversation=start)
        _attach(session, attach)
        session.ask(question)
        _print_one(session)
        return 0
    store, problem = (None, "") if no_save else _open_store()
    with contextlib.closing(store) if store else contextlib.nullcontext():
        session = ChatSession(target, store, start)
        session.save_problem = problem
        _attach(session, attach)
        if resume:
            _resume(session, start)
        if line_mode or not _has_screen():
            return _converse_in_lines(session)
        from app.commands.top import open_chat

        return open_chat(session, _explain(target), theme=theme, ascii_only=ascii_only)


def _question(message: str | None, prompt: str | None) -> str:
    """The message alone, or the prompt and what is piped in."""
    from app.errors import UsageError
    from app.targets.prompt_words import read_stdin

    if message is not None:
        parts = [message]
    else:
        piped = "" if sys.stdin.isatty() else read_stdin()
        parts = [prompt or "" if prompt != "-" else "", piped]
    question = "\n\n".join(part.strip() for part in parts if part.strip())
    if not question:
        raise UsageError(
            "there is no question: the input is empty",
            hint='ask like this: echo "What is the capital of France?" | stoker chat',
        )
    return question


def _conversation(
    *, system: str, json_mode: bool, json_schema: Path | None, **values: Any
) -> Conversation:
    from app.client.chat.commands import schema_format
    from app.client.chat.parameters import ChatParameters
    from app.client.chat.session import ChatError
    from app.client.chat.turns import Conversation
    from app.errors import UsageError

    wanted: dict[str, object] | None = {"type": "json_object"} if json_mode else None
    try:
        wanted = schema_format(json_schema) if json_schema else wanted
    except ChatError as error:
        raise UsageError(str(error)) from error
    parameters = ChatParameters(response_format=wanted, **values)
    return Conversation(system=system, parameters=parameters)


def _tools(path: Path | None) -> tuple[dict[str, Any], ...]:
    """The definitions as the API wants them."""
    import json

    from app.errors import UsageError

    if path is None:
        return ()
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return tuple({"type": "function", **dict(one)} for one in document)
    except (OSError, ValueError, TypeError) as error:
        reason = getattr(error, "strerror", None) or "it must hold a JSON list of objects"
        raise UsageError(
            f"cannot use the tools in {path}: {reason}",
            hint='an entry looks like {"type": "function", "function": {"name": ...}}',
        ) from error


def _attach(session: ChatSession, paths: list[Path] | None) -> None:
    from app.client.chat.attachments import AttachmentError
    from app.errors import UsageError

    try:
        for path in paths or ():
            session.attach(path)
    except AttachmentError as error:
        raise UsageError(str(error)) from error


def _print_one(session: ChatSession) -> None:
    from app.client.chat.answers import AnswerBuilder
    from app.output import say
    from app.targets.server_errors import client_errors
    from app.views.chat_lines import print_answer

    builder = AnswerBuilder()
    with client_errors(session.target.api_key), contextlib.closing(session.stream()) as deltas:
        print_answer(deltas, builder)
    if builder.finish_reason == "length":
        say("note: the answer is cut off at the token limit (--max-tokens, or the model's context)")


def _converse_in_lines(session: ChatSession) -> int:
    from app.views.chat_lines import LineChat

    LineChat(session, _explain(session.target)).run()
    return 0


def _explain(target: ChatTarget) -> Callable[[ClientError], str]:
    """How an error reads inside a conversation, which goes on after it."""
    from app.targets.server_errors import explained

    def explain(error: ClientError) -> str:
        known = explained(error, target.api_key)
        return f"{known}\n{known.hint}" if known.hint else str(known)

    return explain


def _open_store() -> tuple[ConversationStore | None, str]:
    """The store, or why there is none; that is no reason not to chat."""
    from app.client.chat.conversations import ConversationStore, StoreError
    from app.errors import StokerError
    from app.paths import CONVERSATIONS, state_dir

    try:
        return ConversationStore(state_dir() / CONVERSATIONS), ""
    except (StoreError, StokerError) as error:
        return None, str(error)


def _resume(session: ChatSession, start: Conversation) -> None:
    """Open the last conversation; options that were given count more than what it saved."""
    from app.client.chat.conversations import StoreError
    from app.client.chat.session import ChatError
    from app.errors import StokerError

    try:
        entries = session.entries()
        if not entries:
            return
        pending = session.attachments
        session.open(entries[0].id)
        session.attachments = pending
    except (ChatError, StoreError) as error:
        raise StokerError(str(error)) from error
    saved = session.conversation
    given = start.parameters.body_fields()
    session.conversation = replace(
        saved,
        system=start.system or saved.system,
        parameters=replace(saved.parameters, **given),
    )


def _has_screen() -> bool:
    """Whether the TUI can run: keys come in, a picture goes out."""
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    return is_terminal and os.environ.get("TERM", "dumb") != "dumb"
