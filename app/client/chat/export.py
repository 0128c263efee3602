"""A conversation as a Markdown or JSON file, private to the user."""

from __future__ import annotations

import json
import os
from pathlib import Path

from app.client.chat.turns import Conversation, ToolCall, Turn
from engine.machine.private_files import open_new

SCHEMA = "stoker.conversation"


def as_json(conversation: Conversation) -> str:
    """Everything, with the schema's name and version."""
    document = {
        "schema": SCHEMA,
        "schema_version": 1,
        "title": conversation.shown_title(),
        "model": conversation.model or None,
        "system": conversation.system or None,
        "parameters": conversation.parameters.body_fields(),
        "turns": [turn.document() for turn in conversation.turns],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def as_markdown(conversation: Conversation) -> str:
    """For people: reasoning folded away as a quotation, files named, texts included."""
    parts = [f"# {conversation.shown_title() or 'Conversation'}"]
    facts = [
        f"- model: {conversation.model}" if conversation.model else "",
        f"- parameters: {summary}" if (summary := conversation.parameters.summary()) else "",
    ]
    parts += ["\n".join(fact for fact in facts if fact)]
    if conversation.system:
        parts += ["## System prompt", conversation.system]
    for turn in conversation.turns:
        parts += [f"## {turn.speaker}", *_turn_parts(turn)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _turn_parts(turn: Turn) -> list[str]:
    parts = []
    if turn.reasoning:
        parts += ["\n".join(f"> {line}".rstrip() for line in turn.reasoning.splitlines())]
    parts += [turn.whole_text, *(f"Image `{one.name}` ({one.size})" for one in turn.images)]
    parts += [_call(call) for call in turn.tool_calls]
    if turn.stats:
        notes = " · ".join(part for part in (turn.stats.text(), turn.stats.problem) if part)
        parts += [f"*{notes}*" if notes else ""]
    return parts


def _call(call: ToolCall) -> str:
    return f"Calls `{call.name}`:\n\n```json\n{call.arguments}\n```"


def write_export(conversation: Conversation, path: Path) -> Path:
    """Write `path` (.json is JSON, anything else Markdown); an existing file is not replaced."""
    path = path.expanduser()
    text = as_json(conversation) if path.suffix.lower() == ".json" else as_markdown(conversation)
    descriptor = open_new(path)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
        file.write(text)
    return path


def free_name(folder: Path, conversation: Conversation) -> Path:
    """A name in `folder` that is not taken, made from the title."""
    letters = "".join(c if c.isalnum() else "-" for c in conversation.shown_title().lower())
    stem = "-".join(part for part in letters.split("-") if part)[:40].strip("-") or "conversation"
    for number in range(1, 1000):
        path = folder / f"{stem}{'' if number == 1 else f'-{number}'}.md"
        if not path.exists():
            return path
    return folder / f"{stem}-{os.getpid()}.md"
