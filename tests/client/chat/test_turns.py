"""What of a conversation the server is sent."""

from __future__ import annotations

from dataclasses import replace

from app.client.chat.turns import NOT_RUN, AnswerStats, Attachment, Conversation, ToolCall, Turn


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
