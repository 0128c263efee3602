"""Calls as Hermes and Qwen models write them: a JSON object between `<tool_call>` tags."""

from __future__ import annotations

from engine.server.parsers.tool_calls.base import JsonExtent, NotACallError, decode_calls
from engine.server.parsers.tool_calls.marked import Block, MarkedToolParser

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class HermesToolParser(MarkedToolParser):
    """One object between the tags, or a list of them."""

    OPENINGS = (_OPEN,)

    def _forget(self) -> None:
        super()._forget()
        self._extent = JsonExtent(len(_OPEN))

    def _read(self, *, is_last: bool) -> Block | None:
        object_end = self._extent.scan(self._held)
        if object_end is None:
            return None
        end = self._end_behind(object_end, _CLOSE, is_last=is_last)
        if end is None:
            return None
        calls = decode_calls(self._held[len(_OPEN) : object_end])
        if not calls:
            raise NotACallError
        return Block(calls, end)
