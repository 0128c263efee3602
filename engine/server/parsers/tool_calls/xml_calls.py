"""Calls as XML: `<function=..><parameter=..>` of Qwen3 Coder, Qwen3.5 and Seed-OSS, and
`<arg_key>`, `<arg_value>` of GLM.

Values are bare text; what they are stands in the function's schema.
"""

from __future__ import annotations

import re
from typing import Any

from engine.server.parsers.tool_calls.argument_types import typed_value
from engine.server.parsers.tool_calls.base import NotACallError, ToolCall, is_json_object
from engine.server.parsers.tool_calls.marked import Block, MarkedToolParser, read_all

_FUNCTION, _END_FUNCTION = "<function=", "</function>"
_END_PARAMETER = "</parameter>"
_PARAMETER = re.compile(
    r"\s*<parameter=([^<>\n]+)>(.*?)(?:</parameter>(?=\s*(?:<parameter=|\Z))|\Z)", re.DOTALL
)
_GLM_ARGUMENT = re.compile(
    r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>(?=\s*(?:<arg_key>|\Z))", re.DOTALL
)
_GLM_NAME = re.compile(r"\s*([^\s<>{}\[\]\"]+)\s*(?=<arg_key>|\Z)")
_GLM_BEHIND_NAME = re.compile(r"\s*[^\s<>{}\[\]\"]*\s*(.{0,12})", re.DOTALL)


class QwenXmlToolParser(MarkedToolParser):
    """The outer tag may be missing, as models leave it out; and so may the last closing ones."""

    OUTER, END_OUTER = "<tool_call>", "</tool_call>"
    OPENINGS = (OUTER, _FUNCTION)
    _HEAD = re.compile(rf"(?:<(?:seed:)?tool_call>\s*)?{_FUNCTION}([^<>\n]+)")

    def _read(self, *, is_last: bool) -> Block | None:
        function = self._function_start()
        head = None if function is None else self._head(self._HEAD, ">", function)
        if head is None:
            return None
        start = head.end() + 1
        for at in self._candidates(_END_FUNCTION, start):
            end = self._end_of_call(start, at, is_last=is_last)
            if end is None:
                return None
            if end:
                return Block([self._call(head[1].strip(), self._held[start:at])], end)
        return None

    def _function_start(self) -> int | None:
        """Where the function's tag stands; None while that is to come."""
        inner = self._held.removeprefix(self.OUTER).lstrip()
        if inner.startswith(_FUNCTION):
            return len(self._held) - len(inner)
        if not _FUNCTION.startswith(inner):
            raise NotACallError
        return None

    def _end_of_call(self, start: int, at: int, *, is_last: bool) -> int | None:
        """One past the call whose function ends at `at`; 0 where that is a part of a value, None
        while it is not known.
        """
        behind = at + len(_END_FUNCTION)
        rest = self._held[behind:].lstrip()
        body = self._held[start:at].rstrip()
        is_whole = not body or body.endswith(_END_PARAMETER)
        if rest.startswith(self.END_OUTER):
            return len(self._held) - len(rest) + len(self.END_OUTER)
        if is_whole and (rest.startswith((_FUNCTION, self.OUTER)) or (is_last and not rest)):
            return behind
        marks = (self.END_OUTER, _FUNCTION, self.OUTER)
        if any(mark.startswith(rest) for mark in marks):
            if not is_last:
                return None
            return len(self._held) if self.END_OUTER.startswith(rest) else behind
        has_outer = self._held.startswith(self.OUTER)
        return behind if is_whole and not has_outer else 0

    def _call(self, function: str, body: str) -> ToolCall:
        if is_json_object(body):
            return ToolCall(function, body.strip())
        schemas = self._schemas.get(function, {})
        values: dict[str, Any] = {}
        for found in read_all(_PARAMETER, body):
            name, text = found[1].strip(), found[2].removeprefix("\n").removesuffix("\n")
            values[name] = typed_value(text, schemas.get(name), is_text_unless_told=True)
        return ToolCall.of_values(function, values)


class SeedOssToolParser(QwenXmlToolParser):
    """The same between tags of its own."""

    OUTER, END_OUTER = "<seed:tool_call>", "</seed:tool_call>"
    OPENINGS = (OUTER, _FUNCTION)


class GlmToolParser(MarkedToolParser):
    """A name and pairs of tags, on lines of their own (GLM-4.5) or not (GLM-4.7)."""

    OPENINGS = ("<tool_call>",)
    _CLOSE, _END_VALUE = "</tool_call>", "</arg_value>"
    _BEHIND_NAME = ("<arg_key>", _CLOSE)

    def _forget(self) -> None:
        super()._forget()
        self._has_name = False

    def _read(self, *, is_last: bool) -> Block | None:
        start = len(self.OPENINGS[0])
        if not self._has_name:
            self._look_behind_name(start)
        for at in self._candidates(self._CLOSE, start):
            body = self._held[start:at]
            if "<arg_value>" not in body or body.rstrip().endswith(self._END_VALUE):
                return Block([self._call(body)], at + len(self._CLOSE))
        if is_last and self._held.rstrip().endswith(self._END_VALUE):
            return Block([self._call(self._held[start:])], len(self._held))
        return None

    def _look_behind_name(self, start: int) -> None:
        behind = _GLM_BEHIND_NAME.match(self._held, start)
        assert behind is not None, "the pattern matches nothing at all"
        if not any(behind[1][: len(tag)] == tag[: len(behind[1])] for tag in self._BEHIND_NAME):
            raise NotACallError
        self._has_name = len(behind[1]) == 12

    def _call(self, body: str) -> ToolCall:
        name = _GLM_NAME.match(body)
        if name is None:
            raise NotACallError
        schemas = self._schemas.get(name[1], {})
        values: dict[str, Any] = {}
        for found in read_all(_GLM_ARGUMENT, body, name.end()):
            key = found[1].strip()
            values[key] = typed_value(found[2], schemas.get(key), is_text_unless_told=False)
        return ToolCall.of_values(name[1], values)
