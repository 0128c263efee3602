"""Calls as Mistral models write them: `[TOOL_CALLS]` and a JSON list, or, since 2025, the name and
its arguments behind each mark.
"""

from __future__ import annotations

import re
import secrets
import string

from engine.server.parsers.tool_calls.base import JsonExtent, NotACallError, decode_calls
from engine.server.parsers.tool_calls.marked import Block, HeadedJsonToolParser

_MARK = "[TOOL_CALLS]"
_ID_LETTERS, _ID_LENGTH = string.ascii_letters + string.digits, 9


class MistralToolParser(HeadedJsonToolParser):
    """`[CALL_ID]` with an id and `[ARGS]` may stand between the name and its arguments."""

    OPENINGS = (_MARK,)
    HEAD = re.compile(
        rf"{re.escape(_MARK)}\s*(?P<name>[\w.:/-]+)\s*(?:\[CALL_ID\]\s*\w*\s*)?(?:\[ARGS\]\s*)?"
    )

    def new_call_id(self, name: str, index: int) -> str:
        """Nine letters and digits: the chat templates refuse any other."""
        return "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_LENGTH))

    def _forget(self) -> None:
        super()._forget()
        self._listed: JsonExtent | None = None

    def _read(self, *, is_last: bool) -> Block | None:
        if self._listed is None and self._extent is None:
            inner = self._held[len(_MARK) :].lstrip()
            if not inner:
                return None
            if inner.startswith(("[", "{")):
                self._listed = JsonExtent(len(self._held) - len(inner))
        if self._listed is None:
            return super()._read(is_last=is_last)
        end = self._listed.scan(self._held)
        if end is None:
            return None
        calls = decode_calls(self._held[len(_MARK) : end])
        if not calls:
            raise NotACallError
        return Block(calls, end)

    def _behind(self, end: int, *, is_last: bool) -> int:
        return end
