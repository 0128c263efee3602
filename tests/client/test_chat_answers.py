"""Answers put together from deltas, the thinking apart, and how full the context is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.client.chat.answers import AnswerBuilder
from app.client.chat.context_use import ContextLevel, context_use
from app.client.chat.parameters import ChatParameters, ParameterError
from app.client.chat.stream import ChatDelta, ToolCallPiece, Usage
from app.client.chat.thinking import ThinkSplitter
from app.client.chat.turns import NOT_RUN, AnswerStats, Attachment, Conversation, ToolCall, Turn


def clock(*times: float) -> Callable[[], float]:
    values = iter(times)
    return lambda: next(values)


def split(*pieces: str) -> tuple[str, str]:
    splitter = ThinkSplitter()
    parts = [*(splitter.feed(piece) for piece in pieces), splitter.flush()]
    return "".join(text for text, _ in parts), "".join(thought for _, thought in parts)


@pytest.mark.parametrize(
    ("whole", "text", "reasoning"),
    [
        ("<think>hm</think>yes", "yes", "hm"),
        ("\n <think>\nhm\n</think>\n\nyes", "yes", "\nhm\n"),
        ("<think>hm", "", "hm"),
        ("<think></think>yes", "yes", ""),
        ("<think>a </thin b</think>c", "c", "a </thin b"),
        ("plain <think>x</think>", "plain <think>x</think>", ""),
        ("<thinker>", "<thinker>", ""),
        ("<thi", "<thi", ""),
        (" plain", " plain", ""),
    ],
)
def test_thinking_is_apart_however_it_is_cut(whole: str, text: str, reasoning: str) -> None:
    assert split(whole) == (text, reasoning)
    assert split(*whole) == (text, reasoning)


@given(st.lists(st.sampled_from(["<think>", "</think>", "<thi", "nk>", "</", "a", "\n"])))
def test_cuts_never_change_the_split(pieces: list[str]) -> None:
    whole = "".join(pieces)
    text, reasoning = split(*whole)
    assert split(*pieces) == (text, reasoning)
    if not whole.lstrip().startswith("<think>"):
        assert (text, reasoning) == (whole, "")


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


def test_messages_leave_failed_questions_out_and_answer_open_calls() -> None:
    calls = (ToolCall("a", "f", "{}"), ToolCall("b", "g", "{}"))
    turns = (
        Turn("user", "lost"),
        Turn("assistant", "", stats=AnswerStats(problem="gone")),
        Turn("user", "call"),
        Turn("assistant", "", tool_calls=calls),
        Turn("tool", "4", tool_call_id="a"),
        Turn("user", "and?", attachments=(Attachment("a.md", "```x```"),)),
    )
    conversation = Conversation(turns, system="Be brief.")
    messages = conversation.messages()
    assert [message["role"] for message in messages] == [
        *("system", "user", "assistant", "tool", "tool", "user")
    ]
    assert messages[4] == {"role": "tool", "content": NOT_RUN, "tool_call_id": "b"}
    assert messages[5]["content"] == 'and?\n\nFile "a.md":\n````\n```x```\n````'
    assert replace(conversation, turns=turns[:5]).open_call() == calls[1]
    assert conversation.open_call() is None


def test_context_counts_what_the_server_counted_and_estimates_the_rest() -> None:
    stats = AnswerStats(prompt_tokens=100, completion_tokens=20)
    turns = (Turn("user", "x" * 700), Turn("assistant", "y" * 140, stats=stats))
    conversation = Conversation(turns)
    exact = context_use(conversation, "", 1000)
    assert (exact.tokens, exact.is_estimate, exact.level) == (120, False, ContextLevel.FINE)
    # 7 characters a token so far, and what a template adds.
    draft = context_use(conversation, "z" * 700, 250)
    assert (draft.tokens, draft.is_estimate, draft.level) == (228, True, ContextLevel.NEAR)
    assert draft.text() == "context about 228 of 250 tokens (91 %)"
    assert context_use(conversation, "z" * 1400, 250).level is ContextLevel.OVER
    assert context_use(conversation, "z" * 1400, None).warning() == ""
    reserved = replace(conversation, parameters=ChatParameters(max_tokens=900))
    assert "max_tokens" in context_use(reserved, "", 1000).warning()


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("temperature", "3", "from 0 to 2"),
        ("temperature", "nan", "from 0 to 2"),
        ("max_tokens", "1.5", "a whole number from 1 up"),
        ("seed", "x", "seed must be"),
        ("warmth", "1", "there is no parameter 'warmth'"),
    ],
)
def test_wrong_parameters_say_what_is_right(name: str, text: str, said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        ChatParameters().with_text(name, text)


def test_parameters_as_typed_and_as_sent() -> None:
    parameters = ChatParameters().with_text("top-p", " 0.9 ").with_text("max_tokens", "5")
    assert parameters.body_fields() == {"top_p": 0.9, "max_tokens": 5}
    assert parameters.summary() == "top_p 0.9, max_tokens 5"
    assert parameters.with_text("top_p", "default").body_fields() == {"max_tokens": 5}
