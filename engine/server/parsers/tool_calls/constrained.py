"""Answers whose grammar allows nothing but calls, so that arguments stream as they are written.

For tool_choice `required` (a list of calls) and for a named function (its arguments alone).
"""

from __future__ import annotations

import re

import msgspec

from engine.server.parsers.tool_calls.base import JsonExtent, NotJsonError, ToolParser

_HEAD = re.compile(
    r'[\s\[\],}]*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"parameters"\s*:\s*(?=\{)', re.DOTALL
)
_ONLY_CLOSERS = re.compile(r"[\s\]}]*")


class RequiredToolParser(ToolParser):
    """`[{"name": .., "parameters": {..}}, ..]`; what comes otherwise is content."""

    def __init__(self) -> None:
        super().__init__()
        # Of the arguments that are being written.
        self._extent: JsonExtent | None = None

    def _step(self, *, is_last: bool) -> bool:
        if self._extent is not None:
            return self._pass_arguments(self._extent)
        head = _HEAD.match(self._held)
        if head is not None:
            self._begin_call(msgspec.json.decode(head[1], type=str))
            self._held = self._held[head.end() :]
            self._extent = JsonExtent(0)
            return True
        if is_last and not (self.num_calls and _ONLY_CLOSERS.fullmatch(self._held)):
            self._add_content(self._held)
            self._held = ""
        return False

    def _pass_arguments(self, extent: JsonExtent) -> bool:
        """Let out what is known to belong to the arguments."""
        try:
            is_complete = extent.scan(self._held) is not None
        except NotJsonError:
            is_complete = True
        self._add_arguments(self._held[: extent.position])
        self._held = self._held[extent.position :]
        extent.position = 0
        if is_complete:
            self._extent = None
        return is_complete


class NamedToolParser(ToolParser):
    """The whole text is the arguments of one call."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def _step(self, *, is_last: bool) -> bool:
        if self._held and not self.num_calls:
            self._begin_call(self._name)
        if self._held:
            self._add_arguments(self._held)
            self._held = ""
        return False
