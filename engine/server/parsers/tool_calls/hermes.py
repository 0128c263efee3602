"""Calls as Hermes and Qwen models write them, a JSON object between `<tool_call>` tags, and the
same between other marks.
"""

from __future__ import annotations

from typing import ClassVar

from engine.server.parsers.tool_calls.base import JsonExtent, NotACallError, decode_calls
from engine.server.parsers.tool_calls.marked import Block, MarkedToolParser


class HermesToolParser(MarkedToolParser):
    """One object behind the mark, or a list of them; without CLOSING it ends by itself."""

    OPENINGS: ClassVar[tuple[str, ...]] = ("<tool_call>",)
    CLOSING: ClassVar[str] = "</tool_call>"

    def _forget(self) -> None:
        super()._forget()
        self._start = 0
        self._extent: JsonExtent | None = None

    def _read(self, *, is_last: bool) -> Block | None:
        if self._extent is None:
            self._start = self._mark_end()
            self._extent = JsonExtent(self._start)
        object_end = self._extent.scan(self._held)
        if object_end is None:
            return None
        end: int | None = object_end
        if self.CLOSING:
            end = self._end_behind(object_end, self.CLOSING, is_last=is_last)
        if end is None:
            return None
        calls = decode_calls(self._held[self._start : object_end])
        if not calls:
            raise NotACallError
        return Block(calls, end)


class GraniteToolParser(HermesToolParser):
    """Granite 3: the list ends by itself, and either mark may begin it."""

    OPENINGS = ("<|tool_call|>", "<tool_call>")
    CLOSING = ""


class HunyuanToolParser(HermesToolParser):
    """Hunyuan A13B: a list in tags of its own."""

    OPENINGS = ("<tool_calls>",)
    CLOSING = "</tool_calls>"
