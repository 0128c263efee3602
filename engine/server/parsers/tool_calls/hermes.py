"""Calls as Hermes and Qwen models write them: a JSON object between `<tool_call>` tags.

A call goes out when it is complete and valid; all other text is content, tags included.
"""

from __future__ import annotations

from engine.server.parsers.tool_calls.base import JsonExtent, NotJsonError, ToolParser, decode_call

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class HermesToolParser(ToolParser):
    """Content may stand before, between and after calls."""

    NEEDS_SPECIAL_TOKENS = True

    def __init__(self) -> None:
        super().__init__()
        # Of the object behind the tag that `_held` begins with.
        self._extent: JsonExtent | None = None

    def _step(self, *, is_last: bool) -> bool:
        if not self._held.startswith(_OPEN):
            return self._pass_content(is_last=is_last)
        try:
            block_end = self._find_block_end(is_last=is_last)
        except NotJsonError:
            return self._take_tag_as_text()
        if block_end is None:
            return self._take_tag_as_text() if is_last else False
        assert self._extent is not None, "the block's end was found behind it"
        call = decode_call(self._held[len(_OPEN) : self._extent.end])
        if call is None:
            return self._take_tag_as_text()
        self._add_call(call)
        self._drop_held(block_end)
        return True

    def _pass_content(self, *, is_last: bool) -> bool:
        """Let out what stands before the next tag; the beginning of a tag stays."""
        end = self._held.find(_OPEN)
        if end < 0:
            end = len(self._held) - (0 if is_last else _begun_tag(self._held))
        self._add_content(self._held[:end])
        self._drop_held(end)
        return bool(self._held) and self._held.startswith(_OPEN)

    def _find_block_end(self, *, is_last: bool) -> int | None:
        """One past the closing tag, which may be missing at the end of the answer."""
        if self._extent is None:
            self._extent = JsonExtent(len(_OPEN))
        object_end = self._extent.scan(self._held)
        if object_end is None:
            return None
        rest = self._held[object_end:].lstrip()
        if rest.startswith(_CLOSE):
            return len(self._held) - len(rest) + len(_CLOSE)
        if not _CLOSE.startswith(rest):
            raise NotJsonError(rest[0])
        return len(self._held) if is_last else None

    def _take_tag_as_text(self) -> bool:
        self._add_content(_OPEN)
        self._drop_held(len(_OPEN))
        return True

    def _drop_held(self, end: int) -> None:
        self._held = self._held[end:]
        self._extent = None


def _begun_tag(text: str) -> int:
    """How many characters at the end may be the beginning of a tag."""
    sizes = range(min(len(text), len(_OPEN) - 1), 0, -1)
    return next((size for size in sizes if text.endswith(_OPEN[:size])), 0)
