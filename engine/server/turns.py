"""Turns: messages of the one chat form, put together from another API's pieces of a conversation.

The Responses and Messages APIs send more roles and orders than chat templates know. One rule for
both: what one speaker says in a row is one message, instructions at the beginning are the one
system message, and later ones reach the model where they stand, as words of the user.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.errors import RequestError

_BETWEEN = "\n\n"


class Turns:
    """Collects a conversation, oldest piece first."""

    def __init__(self) -> None:
        self._turns: list[_Turn] = []
        self._called: dict[str, str] = {}

    def system(self, text: str) -> None:
        """Instructions: a system message at the beginning, words of the user later on."""
        is_beginning = all(turn.role == "system" for turn in self._turns)
        self._say("system" if is_beginning else "user", text)

    def user(self, text: str) -> None:
        self._say("user", text)

    def image(self, url: str) -> None:
        """The user shows an image, between the texts before and after it."""
        self._turn("user").pieces.append({"type": "image_url", "image_url": {"url": url}})

    def assistant(self, text: str) -> None:
        self._say("assistant", text)

    def thought(self, text: str) -> None:
        """What the assistant thought before its answer."""
        self._turn("assistant").thoughts.append(text)

    def call(self, call_id: str, name: str, arguments: object) -> None:
        """The assistant called a function; `arguments` are an object, or its JSON."""
        self._called[call_id] = name
        self._turn("assistant").calls.append(
            {"id": call_id, "function": {"name": name, "arguments": arguments}}
        )

    def result(self, call_id: str, text: str) -> None:
        """What a function returned; some templates want its name, too."""
        names = {"name": self._called[call_id]} if call_id in self._called else {}
        self._turns.append(_Turn("tool", [text], about={"tool_call_id": call_id, **names}))

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation as chat messages."""
        return [turn.message() for turn in self._turns]

    @property
    def goes_on(self) -> bool:
        """Whether the last piece is the assistant's text: the beginning of its answer."""
        last = self._turns[-1] if self._turns else _Turn("")
        is_text = any(isinstance(piece, str) and piece.strip() for piece in last.pieces)
        return last.role == "assistant" and is_text and not last.calls

    def _say(self, role: str, text: str) -> None:
        self._turn(role).pieces.append(text)

    def _turn(self, role: str) -> _Turn:
        if not self._turns or self._turns[-1].role != role:
            self._turns.append(_Turn(role))
        return self._turns[-1]


@dataclass(slots=True)
class _Turn:
    """What one speaker says in a row. The pieces are joined once, at the end: a conversation of
    many pieces would else be copied with each.
    """

    role: str
    pieces: list[str | dict[str, Any]] = field(default_factory=list)  # texts and images
    thoughts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    about: dict[str, str] = field(default_factory=dict)

    def message(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": self.role, "content": self._content(), **self.about}
        if self.thoughts:
            message["reasoning"] = _joined(self.thoughts)
        if self.calls:
            message["tool_calls"] = self.calls
        return message

    def _content(self) -> str | list[dict[str, Any]]:
        """One text, or parts where images stand between texts."""
        parts: list[dict[str, Any]] = []
        for is_text, group in itertools.groupby(self.pieces, lambda piece: isinstance(piece, str)):
            if not is_text:
                parts += [piece for piece in group if isinstance(piece, dict)]
            elif text := _joined(piece for piece in group if isinstance(piece, str)):
                parts.append({"type": "text", "text": text})
        if any(part["type"] != "text" for part in parts):
            return parts
        return parts[0]["text"] if parts else ""


def left_out(kind: str) -> str:
    """What stands in a function's result for a picture or a file, so that the model knows of it."""
    return f"[{kind} left out: what functions return is read as text alone]"


def text_field(item: Mapping[str, Any], name: str, place: str) -> str:
    """A field that must be there as text; RequestError names it by its `place`."""
    value = item.get(name)
    if not isinstance(value, str):
        path = f"{place}.{name}"
        raise RequestError(f"{path} must be a text.", param=path)
    return value


def function_tool(name: object, description: object, parameters: object) -> dict[str, Any]:
    """An entry of a chat's `tools`; what each field may be is checked with the chat."""
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def _joined(texts: Iterable[str]) -> str:
    return _BETWEEN.join(filter(None, texts))
