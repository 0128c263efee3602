"""The slash commands of the chat: one table and one interpreter for the screen and the line mode.

What only a front end can do (draw, quit, copy) comes back as the `next` of an outcome.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from app.client.chat.attachments import AttachmentError
from app.client.chat.conversations import StoreError
from app.client.chat.export import free_name, write_export
from app.client.chat.parameters import RULES, ParameterError, find_rule
from app.client.chat.session import ChatError, ChatSession


class Next(enum.Enum):
    """What the front end is to do after a command."""

    NOTHING = "nothing"
    ANSWER = "answer"  # let the model answer the conversation as it stands
    REDRAW = "redraw"  # another conversation, or other turns
    EDIT = "edit"  # let the user change `payload`, the question that is being edited
    LIST = "list"  # show the saved conversations that hold `payload`
    COPY = "copy"
    CONFIRM = "confirm"  # ask the user; `payload` is the command that does it
    HELP = "help"
    QUIT = "quit"


@dataclass(frozen=True, slots=True)
class Reply:
    """`text` is for the user; an error when `is_error`."""

    text: str = ""
    next: Next = Next.NOTHING
    payload: str = ""
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """What can be typed behind a slash, with its line of /help."""

    name: str
    arguments: str
    meaning: str
    run: Callable[[ChatSession, str], Reply]
    other_names: tuple[str, ...] = ()
    needs_idle: bool = False  # not while an answer comes


CONFIRMED = "yes"
"""Stands behind a command that asks first."""


def find_command(line: str) -> Command | None:
    """The command that `line` names."""
    name = line.partition(" ")[0]
    known = (c for c in COMMANDS if name in [f"/{one}" for one in (c.name, *c.other_names)])
    return next(known, None)


def run_command(session: ChatSession, line: str) -> Reply | None:
    """Do what `line` says; None when it is a question and no command.

    `//text` asks `/text`; a path such as `/etc/fstab` is a question too.
    """
    name, _, rest = line.partition(" ")
    if not line.startswith("/") or "/" in name[1:]:
        return None
    command = find_command(line)
    if command is None:
        return Reply(f"there is no command {name}; /help lists them", is_error=True)
    try:
        return command.run(session, rest.strip())
    except (ChatError, StoreError, AttachmentError, ParameterError) as error:
        return Reply(str(error), is_error=True)


def question_text(line: str) -> str:
    """The question that `line` asks: a doubled slash at its start is one."""
    return line[1:] if line.startswith("//") else line


def help_text() -> str:
    """The commands, one a line."""
    width = max(len(f"{c.name} {c.arguments}") for c in COMMANDS)
    return "\n".join(f"/{f'{c.name} {c.arguments}':<{width}}  {c.meaning}" for c in COMMANDS)


def _help(_session: ChatSession, _rest: str) -> Reply:
    return Reply(next=Next.HELP)


def _quit(_session: ChatSession, _rest: str) -> Reply:
    return Reply(next=Next.QUIT)


def _new(session: ChatSession, _rest: str) -> Reply:
    session.new()
    return Reply("a new conversation; the model has forgotten the old one", Next.REDRAW)


def _again(session: ChatSession, _rest: str) -> Reply:
    session.ask_again()
    return Reply(next=Next.ANSWER)


def _edit(session: ChatSession, rest: str) -> Reply:
    number, _, text = rest.partition(" ")
    old = session.edit(int(number) if number.isdigit() else None)
    text = text if number.isdigit() else rest
    if not text:
        return Reply(next=Next.EDIT, payload=old)
    session.ask(text)
    return Reply(next=Next.ANSWER)


def _system(session: ChatSession, rest: str) -> Reply:
    if not rest:
        return Reply(session.conversation.system or "no system prompt; `/system TEXT` sets one")
    text = "" if rest in ("off", "default", "-") else rest
    session.change(system=text)
    return Reply("system prompt set" if text else "no system prompt from now on")


def _set(session: ChatSession, rest: str) -> Reply:
    parameters = session.conversation.parameters
    if not rest:
        return Reply("\n".join(_parameter_line(session, rule.name) for rule in RULES))
    name, _, value = rest.replace("=", " ", 1).partition(" ")
    rule = find_rule(name)
    if not value.strip():
        return Reply(f"{_parameter_line(session, rule.name)}; `/set {name} default` resets it")
    changed = parameters.with_text(name, "" if value.strip() == "default" else value)
    session.change(parameters=changed)
    text = changed.text_of(rule.name)
    return Reply(f"{name} {text}" if text else f"{name} is the server's default again")


def _parameter_line(session: ChatSession, name: str) -> str:
    rule = next(rule for rule in RULES if rule.name == name)
    value = session.conversation.parameters.text_of(name) or "the server's default"
    return f"{name} = {value}  ({rule.range_text()}; {rule.meaning})"


def _json(session: ChatSession, rest: str) -> Reply:
    parameters = session.conversation.parameters
    if rest in ("", "on"):
        wanted: dict[str, object] | None = {"type": "json_object"}
        if not rest and parameters.is_json:
            wanted = None
    elif rest == "off":
        wanted = None
    else:
        wanted = schema_format(Path(rest))
    session.change(parameters=replace(parameters, response_format=wanted))
    if wanted is None:
        return Reply("answers are free text")
    return Reply("answers are JSON; tell the model in words what you want in it")


def schema_format(path: Path) -> dict[str, object]:
    """The response format that asks for the JSON schema in a file."""
    try:
        schema = json.loads(path.expanduser().read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not JSON"
        raise ChatError(f"cannot use {path} as a JSON schema: {reason}") from error
    if not isinstance(schema, dict):
        raise ChatError(f"cannot use {path} as a JSON schema: it holds no object")
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def _model(session: ChatSession, rest: str) -> Reply:
    if not rest:
        return Reply("\n".join(session.target.model.all_ids) or session.target.model.id)
    session.use_model(rest)
    return Reply(f"{rest} answers from now on")


def _attach(session: ChatSession, rest: str) -> Reply:
    if not rest:
        names = ", ".join(attachment.name for attachment in session.attachments)
        return Reply(names or "nothing attached; `/attach FILE` does it")
    attachment = session.attach(Path(rest))
    return Reply(f"{attachment.name} ({attachment.size}) goes with the next")


def _detach(session: ChatSession, _rest: str) -> Reply:
    session.attachments.clear()
    return Reply("nothing attached")


def _result(session: ChatSession, rest: str) -> Reply:
    session.answer_tool_call(rest)
    waits = session.conversation.open_call()
    if waits is not None:
        return Reply(f"now the result of {waits.name}", Next.REDRAW)
    return Reply(next=Next.ANSWER)


def _copy(session: ChatSession, _rest: str) -> Reply:
    answers = [turn for turn in session.conversation.turns if turn.role == "assistant"]
    if not answers:
        raise ChatError("there is no answer to copy yet")
    return Reply("the last answer is copied", Next.COPY, answers[-1].text)


def _export(session: ChatSession, rest: str) -> Reply:
    if not session.conversation.turns:
        raise ChatError("there is nothing to export yet")
    path = Path(rest) if rest else free_name(Path.cwd(), session.conversation)
    try:
        written = write_export(session.conversation, path)
    except (OSError, ValueError) as error:
        raise ChatError(f"cannot write {path}: {getattr(error, 'strerror', error)}") from error
    return Reply(f"written to {written}")


def _list(_session: ChatSession, rest: str) -> Reply:
    return Reply(next=Next.LIST, payload=rest)


def _open(session: ChatSession, rest: str) -> Reply:
    session.open(_number(rest))
    return Reply(f"opened: {session.conversation.shown_title()}", Next.REDRAW)


def _delete(session: ChatSession, rest: str) -> Reply:
    word, _, answer = rest.partition(" ")
    number = _number(word)
    if answer.strip() != CONFIRMED:
        question = f"Delete conversation {number}, {session.saved_title(number)!r}, for good?"
        return Reply(question, Next.CONFIRM, f"/delete {number} {CONFIRMED}")
    session.delete(number)
    return Reply(f"conversation {number} is deleted", Next.REDRAW)


def _title(session: ChatSession, rest: str) -> Reply:
    session.change(title=rest)
    return Reply(f"title: {session.conversation.shown_title()}")


def _number(text: str) -> int:
    if not text.isdigit():
        raise ChatError("give the number of a conversation; /list shows them")
    return int(text)


COMMANDS = (
    Command("help", "", "this list", _help, ("?",)),
    Command("new", "", "start a new conversation", _new, ("reset", "clear"), needs_idle=True),
    Command(
        "again", "", "make the last answer anew", _again, ("regenerate", "retry"), needs_idle=True
    ),
    Command(
        "edit",
        "[N] [TEXT]",
        "change question N (the last) and ask it again",
        _edit,
        needs_idle=True,
    ),
    Command("system", "[TEXT|off]", "show or set the system prompt", _system),
    Command("set", "[NAME [VALUE|default]]", "show or set a parameter: /set temperature 0.2", _set),
    Command("json", "[on|off|FILE]", "ask for JSON; FILE holds a JSON schema", _json),
    Command("model", "[NAME]", "show or choose the model", _model),
    Command("attach", "FILE", "send an image or a text file with the next question", _attach),
    Command("detach", "", "send no file", _detach),
    Command("result", "TEXT", "answer a tool call of the model", _result, needs_idle=True),
    Command("list", "[TEXT]", "saved conversations, those that hold TEXT", _list, ("search",)),
    Command("open", "N", "go on with conversation N", _open, needs_idle=True),
    Command("title", "TEXT", "name this conversation", _title),
    Command(
        "delete", "N", "delete conversation N for good, after a question", _delete, needs_idle=True
    ),
    Command("copy", "", "copy the last answer", _copy),
    Command("export", "[FILE]", "write Markdown, or JSON if FILE ends in .json", _export),
    Command("quit", "", "leave", _quit, ("exit", "q")),
)
