"""Calls as Gemma models write them: `call:name{key:value}` between marks, strings between marks of
their own, and keys bare.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, ClassVar

from engine.server.parsers.tool_calls.base import NotACallError, ToolCall
from engine.server.parsers.tool_calls.marked import Block, MarkedToolParser

_MOST_DEPTH = 64
_BARE = re.compile(r"[^,{}\[\]]*")
_KEY = re.compile(r"[^:,{}\[\]]+(?=:)")
_BLANK = re.compile(r"\s*")
_WORDS = {"true": True, "false": False, "null": None, "none": None, "nil": None}
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")


class GemmaToolParser(MarkedToolParser):
    """Gemma 4, whose quotes are one token of their own."""

    OPENINGS = ("<|tool_call>",)
    CLOSING: ClassVar[str] = "<tool_call|>"
    QUOTE: ClassVar[str] = '<|"|>'
    HEAD: ClassVar[re.Pattern[str]] = re.compile(r"<\|tool_call>\s*call:\s*([\w.:/-]+)\s*")

    def _forget(self) -> None:
        super()._forget()
        self._name = ""
        self._start = self._place = self._depth = 0
        self._is_in_string = self._is_complete = False
        self._bracket = re.compile(rf"[{{}}]|{re.escape(self.QUOTE)}")

    def _read(self, *, is_last: bool) -> Block | None:
        if not self._name:
            head = self._head(self.HEAD, "{")
            if head is None:
                return None
            self._name, self._start = head[1], head.end()
            self._place = self._start
        if not self._reaches_end():
            return None
        end = self._end_behind(self._place, self.CLOSING, is_last=is_last)
        if end is None:
            return None
        values = _Reader(self._held[self._start : self._place], self.QUOTE).arguments()
        return Block([ToolCall.of_values(self._name, values)], end)

    def _reaches_end(self) -> bool:
        """Move to the bracket that closes the arguments; no character is looked at twice."""
        while not self._is_complete:
            if self._is_in_string:
                at = self._find(self.QUOTE, self._place)
                if at < 0:
                    return False
                self._place, self._is_in_string = at + len(self.QUOTE), False
                continue
            found = self._bracket.search(self._held, self._place)
            if found is None:
                # The beginning of a quote may stand at the end.
                self._place = max(self._place, len(self._held) - len(self.QUOTE) + 1)
                return False
            self._place = found.end()
            self._is_in_string = found[0] == self.QUOTE
            self._depth += {"{": 1, "}": -1}.get(found[0], 0)
            self._is_complete = self._depth == 0
        return True


class FunctionGemmaToolParser(GemmaToolParser):
    """FunctionGemma: the same form with older marks."""

    OPENINGS = ("<start_function_call>",)
    CLOSING = "<end_function_call>"
    QUOTE = "<escape>"
    HEAD = re.compile(r"<start_function_call>\s*call:\s*([\w.:/-]+)\s*")


class _Reader:
    """Reads a whole object; NotACallError for anything that is none."""

    def __init__(self, text: str, quote: str) -> None:
        self._text = text
        self._quote = quote
        self._place = 0
        self._depth = 0

    def arguments(self) -> dict[str, Any]:
        values = self._object()
        if self._place != len(self._text):
            raise NotACallError
        return values

    def _object(self) -> dict[str, Any]:
        self._enter("{")
        values: dict[str, Any] = {}
        while not self._takes("}"):
            key = self._string() if self._takes(self._quote) else self._key()
            if not self._takes(":"):
                raise NotACallError
            values[key] = self._value()
            self._takes(",")
        self._depth -= 1
        return values

    def _list(self) -> list[Any]:
        self._enter("[")
        values = []
        while not self._takes("]"):
            values.append(self._value())
            self._takes(",")
        self._depth -= 1
        return values

    def _value(self) -> Any:
        if self._takes(self._quote):
            return self._string()
        if self._sees("{"):
            return self._object()
        if self._sees("["):
            return self._list()
        return self._bare()

    def _enter(self, bracket: str) -> None:
        self._depth += 1
        if self._depth > _MOST_DEPTH or not self._takes(bracket):
            raise NotACallError

    def _sees(self, mark: str) -> bool:
        blank = _BLANK.match(self._text, self._place)
        assert blank is not None, "the pattern matches nothing at all"
        self._place = blank.end()
        return self._text.startswith(mark, self._place)

    def _takes(self, mark: str) -> bool:
        is_there = self._sees(mark)
        self._place += len(mark) if is_there else 0
        return is_there

    def _string(self) -> str:
        end = self._text.find(self._quote, self._place)
        if end < 0:
            raise NotACallError
        text, self._place = self._text[self._place : end], end + len(self._quote)
        return text

    def _key(self) -> str:
        return self._take_word(_KEY)

    def _bare(self) -> Any:
        word = self._take_word(_BARE)
        if word.lower() in _WORDS:
            return _WORDS[word.lower()]
        if _NUMBER.fullmatch(word):
            try:
                number = json.loads(word)
            except ValueError:  # more digits than Python reads
                return word
            return number if math.isfinite(number) else word
        return word.removeprefix('"').removesuffix('"')

    def _take_word(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._place)
        word = found[0].strip() if found else ""
        if not found or not word:
            raise NotACallError
        self._place = found.end()
        return word
