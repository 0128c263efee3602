"""Builds one answer out of its deltas: clean text, reasoning, tool calls, timing.

Everything that comes out is free of escape sequences. The clock is the caller's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from app.client.chat.stream import ChatDelta, ToolCallPiece, Usage
from app.client.chat.thinking import ThinkSplitter
from app.client.chat.turns import AnswerStats, ToolCall, Turn
from app.client.terminal_text import EscapeFilter, strip_escapes


@dataclass(frozen=True, slots=True)
class AnswerPiece:
    """What one delta adds to the picture."""

    text: str = ""
    reasoning: str = ""


@dataclass(slots=True)
class AnswerBuilder:
    """Feed it deltas; `finish` when no more come, whatever the reason."""

    clock: Callable[[], float] = time.monotonic
    splits_thinking: bool = True
    text: str = ""
    reasoning: str = ""
    usage: Usage | None = None
    finish_reason: str | None = None
    _calls: dict[int, ToolCall] = field(default_factory=dict)
    _splitter: ThinkSplitter = field(default_factory=ThinkSplitter)
    _text_filter: EscapeFilter = field(default_factory=EscapeFilter)
    _reasoning_filter: EscapeFilter = field(default_factory=EscapeFilter)
    _asked_at_s: float = 0.0
    _first_at_s: float | None = None
    _last_at_s: float = 0.0

    def __post_init__(self) -> None:
        """The question goes out now."""
        self._asked_at_s = self.clock()

    def feed(self, delta: ChatDelta) -> AnswerPiece:
        self.usage = delta.usage or self.usage
        self.finish_reason = delta.finish_reason or self.finish_reason
        for piece in delta.tool_calls:
            self._add_call(piece)
        if delta.text or delta.reasoning or delta.tool_calls:
            self._last_at_s = self.clock()
            if self._first_at_s is None:
                self._first_at_s = self._last_at_s
        text, thought = delta.text, ""
        if self.splits_thinking:
            text, thought = self._splitter.feed(delta.text)
        return self._add(
            self._text_filter.feed(text), self._reasoning_filter.feed(delta.reasoning + thought)
        )

    def finish(self) -> AnswerPiece:
        """What was held back because it might have been the start of something."""
        text, thought = self._splitter.flush()
        return self._add(
            self._text_filter.feed(text) + self._text_filter.flush(),
            self._reasoning_filter.feed(thought) + self._reasoning_filter.flush(),
        )

    @property
    def has_begun(self) -> bool:
        """True once the model has said anything."""
        return self._first_at_s is not None

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls so far, in the model's order."""
        return tuple(self._calls[index] for index in sorted(self._calls))

    def turn(self, problem: str | None = None) -> Turn:
        """The answer as it stands."""
        return Turn(
            role="assistant",
            text=self.text,
            reasoning=self.reasoning.strip(),
            tool_calls=self.tool_calls,
            stats=self.stats(problem),
        )

    def stats(self, problem: str | None = None) -> AnswerStats:
        """Counts are the server's; times are as seen from here."""
        ttft_s = None if self._first_at_s is None else self._first_at_s - self._asked_at_s
        return AnswerStats(
            prompt_tokens=self.usage.prompt_tokens if self.usage else None,
            completion_tokens=self.usage.completion_tokens if self.usage else None,
            ttft_s=ttft_s,
            tokens_per_s=self._tokens_per_s(),
            finish_reason=self.finish_reason,
            problem=problem,
        )

    def _tokens_per_s(self) -> float | None:
        """The rate after the first token, which had to wait for the prompt."""
        if self.usage is None or self._first_at_s is None:
            return None
        span_s = self._last_at_s - self._first_at_s
        count = self.usage.completion_tokens - 1
        return count / span_s if count > 0 and span_s > 0 else None

    def _add(self, text: str, reasoning: str) -> AnswerPiece:
        # Half of a surrogate pair can be neither shown nor sent back.
        text, reasoning = _whole(text), _whole(reasoning)
        self.text += text
        self.reasoning += reasoning
        return AnswerPiece(text, reasoning)

    def _add_call(self, piece: ToolCallPiece) -> None:
        known = self._calls.get(piece.index, ToolCall("", "", ""))
        self._calls[piece.index] = ToolCall(
            id=known.id or strip_escapes(piece.id) or f"call_{piece.index}",
            name=known.name or strip_escapes(piece.name),
            arguments=known.arguments + strip_escapes(piece.arguments),
        )


def _whole(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
