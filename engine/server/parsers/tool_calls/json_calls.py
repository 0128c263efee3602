"""Calls as Llama 3 models write them: the answer is a JSON object, several, or a list of them.

Only an answer that begins with JSON holds calls; JSON further on is content.
"""

from __future__ import annotations

import re

from engine.server.parsers.tool_calls.base import (
    JsonExtent,
    NotJsonError,
    ParameterSchemas,
    ToolCall,
    ToolParser,
    decode_call,
)

_PYTHON_TAG = "<|python_tag|>"
_BEFORE_FIRST = re.compile(rf"\s*(?:{re.escape(_PYTHON_TAG)}\s*)?\[?\s*")
_BEFORE_NEXT = re.compile(r"[\s,;\]]*")


class JsonToolParser(ToolParser):
    """A call goes out when it is complete and valid; from any other text on, all is content."""

    def __init__(self, schemas: ParameterSchemas | None = None) -> None:
        super().__init__(schemas)
        self._is_text = False
        self._start = 0
        # Of the object at `_start` of the held text.
        self._extent: JsonExtent | None = None

    def _step(self, *, is_last: bool) -> bool:
        if self._is_text:
            self._add_content(self._held)
            self._held = ""
            return False
        try:
            call = self._find_call()
        except NotJsonError:
            self._is_text = True
            return True
        if call is not None:
            self._add_call(call)
            return True
        # The end leaves an object incomplete, or nothing but the marks around calls.
        self._is_text = is_last and (self._extent is not None or not self.num_calls)
        return self._is_text

    def _find_call(self) -> ToolCall | None:
        """The next call, taken out of the held text; None while it is not complete."""
        if self._extent is None:
            self._extent = self._find_start()
        end = self._extent.scan(self._held) if self._extent else None
        if end is None:
            return None
        call = decode_call(self._held[self._start : end])
        if call is None:
            raise NotJsonError
        self._held = self._held[end:]
        self._extent = None
        return call

    def _find_start(self) -> JsonExtent | None:
        lead = (_BEFORE_NEXT if self.num_calls else _BEFORE_FIRST).match(self._held)
        assert lead is not None, "both patterns match nothing at all"
        self._start = lead.end()
        begun = self._held[self._start : self._start + len(_PYTHON_TAG)]
        if begun.startswith("{"):
            return JsonExtent(self._start)
        if _PYTHON_TAG.startswith(begun) and not (begun and self.num_calls):
            return None
        raise NotJsonError
