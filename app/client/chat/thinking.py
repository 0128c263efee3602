"""Parts `<think>...</think>` at the start of an answer from the answer, while both stream in.

Only at the start: a model that writes about the tag later means the text.
"""

from __future__ import annotations

import enum

_OPEN, _CLOSE = "<think>", "</think>"


class _State(enum.Enum):
    START = enum.auto()
    THINKING = enum.auto()
    GAP = enum.auto()  # blank space between the thinking and the answer
    ANSWER = enum.auto()


class ThinkSplitter:
    """Feed it pieces of text; it says how much of each is answer and how much is thinking."""

    def __init__(self) -> None:
        self._state = _State.START
        self._held = ""

    def feed(self, piece: str) -> tuple[str, str]:
        """`(text, reasoning)` of what can be told apart so far."""
        self._held += piece
        text, reasoning = "", ""
        if self._state is _State.START:
            self._look_for_the_start()
        if self._state is _State.THINKING:
            reasoning = self._take_thinking()
        if self._state is _State.GAP:
            self._held = self._held.lstrip()
            if self._held:
                self._state = _State.ANSWER
        if self._state is _State.ANSWER:
            text, self._held = self._held, ""
        return text, reasoning

    def flush(self) -> tuple[str, str]:
        """What was held back when the stream ends."""
        held, self._held = self._held, ""
        return ("", held) if self._state is _State.THINKING else (held, "")

    def _look_for_the_start(self) -> None:
        begun = self._held.lstrip()
        if begun.startswith(_OPEN):
            self._held = begun[len(_OPEN) :]
            self._state = _State.THINKING
        elif not _OPEN.startswith(begun):
            self._state = _State.ANSWER

    def _take_thinking(self) -> str:
        thinking, tag, rest = self._held.partition(_CLOSE)
        if tag:
            self._held, self._state = rest, _State.GAP
            return thinking
        # The end may be the first half of the closing tag.
        keep = next((n for n in range(len(_CLOSE) - 1, 0, -1) if thinking.endswith(_CLOSE[:n])), 0)
        cut = len(thinking) - keep
        self._held = thinking[cut:]
        return thinking[:cut]
