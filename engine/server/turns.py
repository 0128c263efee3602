"""Turns: messages of the one chat form, put together from another API's pieces of a conversation.

The Responses and Messages APIs send more roles and orders than chat templates know. One rule for
both: what one speaker says in a row is one message, instructions at the beginning are the one
system message, and later ones reach the model where they stand, as words of the user.
"""

from __future__ import annotations

from typing import Any

_BETWEEN = "\n\n"


class Turns:
    """Collects a conversation, oldest piece first."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._called: dict[str, str] = {}

    def system(self, text: str) -> None:
        """Instructions: a system message at the beginning, words of the user later on."""
        is_beginning = all(message["role"] == "system" for message in self.messages)
        self._say("system" if is_beginning else "user", text)

    def user(self, text: str) -> None:
        self._say("user", text)

    def assistant(self, text: str) -> None:
        self._say("assistant", text)

    def thought(self, text: str) -> None:
        """What the assistant thought before its answer."""
        turn = self._turn("assistant")
        turn["reasoning"] = _joined(turn.get("reasoning", ""), text)

    def call(self, call_id: str, name: str, arguments: object) -> None:
        """The assistant called a function; `arguments` are an object, or its JSON."""
        self._called[call_id] = name
        self._turn("assistant").setdefault("tool_calls", []).append(
            {"id": call_id, "function": {"name": name, "arguments": arguments}}
        )

    def result(self, call_id: str, text: str) -> None:
        """What a function returned; some templates want its name, too."""
        message = {"role": "tool", "content": text, "tool_call_id": call_id}
        if call_id in self._called:
            message["name"] = self._called[call_id]
        self.messages.append(message)

    @property
    def goes_on(self) -> bool:
        """Whether the last piece is the assistant's text: the beginning of its answer."""
        last = self.messages[-1] if self.messages else {"role": "", "content": ""}
        has_text = last["role"] == "assistant" and last["content"].strip()
        return bool(has_text) and "tool_calls" not in last

    def _say(self, role: str, text: str) -> None:
        turn = self._turn(role)
        turn["content"] = _joined(turn["content"], text)

    def _turn(self, role: str) -> dict[str, Any]:
        if not self.messages or self.messages[-1]["role"] != role:
            self.messages.append({"role": role, "content": ""})
        return self.messages[-1]


def _joined(before: str, text: str) -> str:
    return f"{before}{_BETWEEN}{text}" if before and text else before or text
