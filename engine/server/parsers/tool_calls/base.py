"""What every tool parser shares: its results, its rules for text, and where a JSON object ends.

A parser gets an answer's text in pieces of any size; what it returns depends on the text alone.
"""

from __future__ import annotations

import itertools
import json
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

ParameterSchemas = Mapping[str, Mapping[str, Any]]
"""Of each function the JSON schemas of its parameters, by their names."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One whole call; `arguments` is JSON as the model wrote it."""

    name: str
    arguments: str

    @classmethod
    def of_values(cls, name: str, values: Mapping[str, Any]) -> ToolCall:
        """A call whose arguments the model wrote in another form than JSON."""
        return cls(name, json.dumps(values, ensure_ascii=False))


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of call `index`: its name comes first and once, then pieces of its arguments."""

    index: int
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Parsed:
    """What became certain with one piece of text: content and pieces of calls, in their order."""

    parts: Sequence[str | ToolCallDelta] = ()

    @property
    def content(self) -> str:
        """All content, as if no call stood between."""
        return "".join(part for part in self.parts if isinstance(part, str))

    @property
    def calls(self) -> list[ToolCallDelta]:
        return [part for part in self.parts if isinstance(part, ToolCallDelta)]


class ToolParser(ABC):
    """Splits the text of one answer into content and tool calls.

    White space around calls is dropped where nothing else stands beside it.
    """

    NEEDS_SPECIAL_TOKENS = False
    """True when the marks of a call are special tokens in some tokenizers."""

    def __init__(self, schemas: ParameterSchemas | None = None) -> None:
        """`schemas` say what type a value is, in forms that write values without one."""
        self.num_calls = 0
        self._schemas = schemas or {}
        self._held = ""
        self._parts: list[str | ToolCallDelta] = []
        # White space since the last call (or the start); None once other content followed it.
        self._blank: str | None = ""

    def feed(self, text: str) -> Parsed:
        """Take the next piece of text."""
        self._held += text
        while self._step(is_last=False):
            pass
        return self._take()

    def finish(self) -> Parsed:
        """The text has ended: what was held back comes out."""
        while self._step(is_last=True):
            pass
        if self._blank and not self.num_calls:
            self._parts.append(self._blank)
        return self._take()

    def parse(self, text: str) -> tuple[str, list[ToolCall]]:
        """Content and calls of a whole text; for a parser that was not fed before."""
        parts = [self.feed(text), self.finish()]
        return "".join(part.content for part in parts), join_calls(
            [delta for part in parts for delta in part.calls]
        )

    def new_call_id(self, name: str, index: int) -> str:
        """An id for call `index` of an answer, as the family's chat template takes it back."""
        return f"chatcmpl-tool-{uuid.uuid4().hex}"

    @abstractmethod
    def _step(self, *, is_last: bool) -> bool:
        """Decide on some of `_held`; False when that takes more text."""

    def _take(self) -> Parsed:
        parts, self._parts = self._parts, []
        joined: list[str | ToolCallDelta] = []
        for is_text, group in itertools.groupby(parts, lambda part: isinstance(part, str)):
            found = list(group)
            joined += ["".join(map(str, found))] if is_text else found
        return Parsed(joined)

    def _add_content(self, text: str) -> None:
        if self._blank is not None:
            text = self._blank + text
            if not text.strip():
                self._blank = text
                return
            self._blank = None
        if text:
            self._parts.append(text)

    def _begin_call(self, name: str) -> None:
        self._parts.append(ToolCallDelta(self.num_calls, name))
        self.num_calls += 1
        self._blank = ""

    def _add_arguments(self, text: str) -> None:
        if text:
            self._parts.append(ToolCallDelta(self.num_calls - 1, arguments=text))

    def _add_call(self, call: ToolCall) -> None:
        self._begin_call(call.name)
        self._add_arguments(call.arguments)


def join_calls(deltas: Sequence[ToolCallDelta]) -> list[ToolCall]:
    """The calls that a sequence of deltas describes."""
    parts: list[list[str]] = []
    for delta in deltas:
        if delta.name is not None:
            parts.append([delta.name])
        parts[delta.index].append(delta.arguments)
    return [ToolCall(name, "".join(arguments)) for name, *arguments in parts]


class _WrittenCall(msgspec.Struct):
    """A call as models write it; `parameters` is Llama's name for the arguments."""

    name: str
    arguments: msgspec.Raw = msgspec.Raw()
    parameters: msgspec.Raw = msgspec.Raw()

    def call(self) -> ToolCall | None:
        arguments = bytes(self.arguments) or bytes(self.parameters)
        if not self.name or not arguments.startswith(b"{"):
            return None
        return ToolCall(self.name, arguments.decode())


def decode_call(text: str) -> ToolCall | None:
    """The call that a JSON object describes; None if it is no valid JSON or no call."""
    written = _decoded(text, _WrittenCall)
    return None if written is None else written.call()


def decode_calls(text: str) -> list[ToolCall] | None:
    """The calls of a JSON list, or of one object; None where one of them is no call."""
    written = _decoded(text, list[_WrittenCall] | _WrittenCall)
    if written is None:
        return None
    calls = [one.call() for one in (written if isinstance(written, list) else [written])]
    whole = [call for call in calls if call is not None]
    return whole if len(whole) == len(calls) else None


def is_json_object(text: str) -> bool:
    """Whether `text` is one valid JSON object."""
    return _decoded(text, dict[str, Any]) is not None


def _decoded(text: str, kind: Any) -> Any:
    try:
        return msgspec.json.decode(text.encode(), type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
        return None


class NotACallError(Exception):
    """What stands behind an opening mark is no call."""


class NotJsonError(NotACallError):
    """A character that cannot stand there in JSON."""


class JsonExtent:
    """Finds the end of a JSON object or list in a text that grows; looks at no character twice.

    Counts brackets outside strings, so it knows the end but not whether all before it is valid.
    """

    _BETWEEN = re.compile(r"[ \t\r\n0-9+\-.,:eEtrufalsn]*")
    _IN_STRING = re.compile(r'[^"\\]*')

    def __init__(self, start: int) -> None:
        self.position = start
        self.end: int | None = None
        self._depth = 0
        self._is_in_string = False

    def scan(self, text: str) -> int | None:
        """Where the value ends (one past its last bracket); None while it goes on."""
        while self.end is None:
            pattern = self._IN_STRING if self._is_in_string else self._BETWEEN
            match = pattern.match(text, self.position)
            assert match is not None, "both patterns match nothing at all"
            self.position = match.end()
            # A backslash is looked at together with what it escapes.
            if text[self.position : self.position + 2] in ("", "\\"):
                return None
            self._pass(text[self.position])
            if self._depth == 0:
                self.end = self.position
        return self.end

    def _pass(self, char: str) -> None:
        self.position += 2 if char == "\\" and self._is_in_string else 1
        if char == '"' and self._depth:
            self._is_in_string = not self._is_in_string
        elif self._is_in_string:
            return
        elif char in "{[":
            self._depth += 1
        elif char in "}]" and self._depth:
            self._depth -= 1
        else:
            raise NotJsonError(char)
