"""What of a conversation the server is sent."""

from __future__ import annotations

from dataclasses import replace

from app.client.chat.turns import (
    NOT_RUN,
    AnswerStats,
    Attachment,
    Conversation,
    ToolCall,
    Turn,
    turn_from_document,
)


def test_images_are_parts_before_the_text() -> None:
    files = (Attachment("a.md", "x"), Attachment("b.png", "", "image/png", "QUJD"))
    turn = Turn("user", "What?", attachments=files)
    url = "data:image/png;base64,QUJD"
    assert turn.message()["content"] == [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": 'What?\n\nFile "a.md":\n```\nx\n```'},
    ]
    assert turn_from_document(turn.document()) == turn


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
