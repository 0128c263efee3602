"""Calls as gpt-oss writes them: messages to `functions.NAME` whose text is the arguments."""

from __future__ import annotations

from engine.server.parsers.harmony import HarmonyScanner, Piece
from engine.server.parsers.tool_calls.base import (
    ParameterSchemas,
    ToolCall,
    ToolParser,
    is_json_object,
)


class HarmonyToolParser(ToolParser):
    """A call goes out when its message is whole; the text of all other messages is content."""

    NEEDS_SPECIAL_TOKENS = True

    def __init__(self, schemas: ParameterSchemas | None = None) -> None:
        super().__init__(schemas)
        self._scanner = HarmonyScanner()
        self._arguments: list[str] = []

    def _step(self, *, is_last: bool) -> bool:
        pieces = self._scanner.feed(self._held)
        self._held = ""
        for piece in pieces + (self._scanner.finish() if is_last else []):
            self._take_piece(piece)
        return False

    def _take_piece(self, piece: Piece) -> None:
        name = piece.head.function
        if name is None:
            if piece.text:
                self._add_content(piece.text)
            return
        self._arguments.append(piece.text)
        if piece.is_last:
            self._end_call(name)

    def _end_call(self, name: str) -> None:
        text = "".join(self._arguments).strip() or "{}"
        self._arguments = []
        if is_json_object(text):
            self._add_call(ToolCall(name, text))
        else:
            self._add_content(text)
