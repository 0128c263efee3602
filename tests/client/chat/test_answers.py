"""Answers put together from deltas."""

from __future__ import annotations

from collections.abc import Callable

from app.client.chat.answers import AnswerBuilder
from app.client.chat.stream import ChatDelta, ToolCallPiece, Usage
from app.client.chat.turns import AnswerStats, ToolCall


def clock(*times: float) -> Callable[[], float]:
    values = iter(times)
    return lambda: next(values)


def test_text_counts_and_times() -> None:
    builder = AnswerBuilder(clock(10.0, 10.5, 11.5))
    builder.feed(ChatDelta(text="a\x1b[3"))
    builder.feed(ChatDelta(text="1mb\ud83d"))
    builder.feed(ChatDelta(finish_reason="stop"))
    builder.feed(ChatDelta(usage=Usage(5, 3)))
    builder.finish()
    turn = builder.turn()
    assert turn.text == "ab?"
    assert turn.stats == AnswerStats(5, 3, 0.5, 2.0, "stop", None)
    assert turn.stats.text() == "5 prompt + 3 tokens · first token 500 ms · 2.0 tok/s · stop"


def test_nothing_is_invented_without_counts() -> None:
    builder = AnswerBuilder(clock(0.0))
    assert builder.turn("lost").stats == AnswerStats(problem="lost")
    assert builder.turn("lost").is_empty


def test_tool_calls_come_in_pieces() -> None:
    builder = AnswerBuilder(clock(0.0, 1.0, 2.0))
    first = (ToolCallPiece(1, "b", "late", "{}"), ToolCallPiece(0, "a", "f", '{"x":'))
    builder.feed(ChatDelta(tool_calls=first))
    builder.feed(ChatDelta(tool_calls=(ToolCallPiece(0, arguments=" 1}"),)))
    assert builder.tool_calls == (ToolCall("a", "f", '{"x": 1}'), ToolCall("b", "late", "{}"))
