"""Calls as DeepSeek V3, R1, V3.1 and Kimi K2 write them: a JSON object between marks."""

from __future__ import annotations

import re

from engine.server.parsers.tool_calls.marked import HeadedJsonToolParser

_BEGIN, _SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"
_KIMI_BEGIN, _KIMI_ARGUMENTS = "<|tool_call_begin|>", "<|tool_call_argument_begin|>"


class DeepSeekToolParser(HeadedJsonToolParser):
    """`function`, a separator, the name and a fenced object (V3, R1), or the name, a separator and
    the object (V3.1). Both are told by what they are, whichever was asked for.
    """

    OPENINGS = (_BEGIN,)
    DROPPED = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
    HEAD = re.compile(
        rf"{_BEGIN}\s*(?:function\s*{_SEPARATOR}\s*(?=\S))?(?P<name>[^\s<>｜`]+)\s*"
        rf"(?:{_SEPARATOR}\s*)?(?:```(?:json)?\s*)?"
    )
    CLOSING = "<｜tool▁call▁end｜>"
    BEFORE_CLOSING = ("```",)


class KimiToolParser(HeadedJsonToolParser):
    """The name stands in an id, `functions.NAME:INDEX`, which the chat template takes back."""

    OPENINGS = (_KIMI_BEGIN,)
    DROPPED = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
    HEAD = re.compile(
        rf"{re.escape(_KIMI_BEGIN)}\s*(?:functions\.)?(?P<name>[^\s<>|]+?)(?::\d+)?\s*"
        rf"{re.escape(_KIMI_ARGUMENTS)}\s*"
    )
    CLOSING = "<|tool_call_end|>"

    def new_call_id(self, name: str, index: int) -> str:
        return f"functions.{name}:{index}"
