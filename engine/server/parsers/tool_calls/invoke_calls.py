"""Calls as MiniMax M2 and DeepSeek V3.2 write them: `invoke` and `parameter` tags with names, each
with the family's own mark before the word.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from engine.server.parsers.tool_calls.argument_types import typed_value
from engine.server.parsers.tool_calls.base import ToolCall
from engine.server.parsers.tool_calls.marked import Block, MarkedToolParser, read_all


def _head(mark: str) -> re.Pattern[str]:
    return re.compile(rf'<{mark}invoke name="([^"<>\n]+)"\s*')


def _parameter(mark: str) -> re.Pattern[str]:
    """The name, whether it says that it is text, and the value."""
    return re.compile(
        rf'\s*<{mark}parameter name="([^"<>\n]+)"(?:\s+string="(true|false)")?\s*>(.*?)'
        rf"</{mark}parameter>(?=\s*(?:<{mark}parameter |\Z))",
        re.DOTALL,
    )


class MiniMaxToolParser(MarkedToolParser):
    """MiniMax M2: values are bare text, typed by the function's schema."""

    MARK: ClassVar[str] = ""
    OPENINGS = ("<invoke name=",)
    DROPPED: ClassVar[tuple[str, ...]] = ("<minimax:tool_call>", "</minimax:tool_call>")
    HEAD: ClassVar[re.Pattern[str]] = _head("")
    PARAMETER: ClassVar[re.Pattern[str]] = _parameter("")

    def _read(self, *, is_last: bool) -> Block | None:
        head = self._head(self.HEAD, ">")
        if head is None:
            return None
        start, closing = head.end() + 1, f"</{self.MARK}invoke>"
        for at in self._candidates(closing, start):
            body = self._held[start:at]
            if not body.strip() or body.rstrip().endswith(f"</{self.MARK}parameter>"):
                return Block([self._call(head[1].strip(), body)], at + len(closing))
        return None

    def _call(self, function: str, body: str) -> ToolCall:
        schemas = self._schemas.get(function, {})
        values: dict[str, Any] = {}
        for found in read_all(self.PARAMETER, body):
            name, is_text, text = found.groups()
            values[name] = self._value(text, is_text, schemas.get(name))
        return ToolCall.of_values(function, values)

    def _value(self, text: str, is_text: str | None, schema: Any) -> Any:
        if is_text == "true":
            return text
        if is_text == "false":
            return typed_value(text, None, is_text_unless_told=False)
        return typed_value(text, schema, is_text_unless_told=True)


class DeepSeekXmlToolParser(MiniMaxToolParser):
    """DeepSeek V3.2 and V4: each value says whether it is text or JSON."""

    MARK = "｜DSML｜"
    OPENINGS = ("<｜DSML｜invoke name=",)
    DROPPED = (
        *("<｜DSML｜function_calls>", "</｜DSML｜function_calls>"),
        *("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"),
    )
    HEAD = _head("｜DSML｜")
    PARAMETER = _parameter("｜DSML｜")
