"""How full the context is."""

from __future__ import annotations

from dataclasses import replace

from app.client.chat.context_use import ContextLevel, context_use
from app.client.chat.parameters import ChatParameters
from app.client.chat.turns import AnswerStats, Attachment, Conversation, Turn


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


def test_images_count_though_they_have_no_text() -> None:
    image = Attachment("a.png", "", "image/png", "A" * 100_000)
    asked = context_use(Conversation((Turn("user", "", attachments=(image, image)),)), "", None)
    pending = context_use(Conversation(), "", None, 2)
    assert asked.tokens == pending.tokens == 2 * 256 + 8
    stats = AnswerStats(prompt_tokens=700, completion_tokens=100)
    question = Turn("user", "x" * 700, attachments=(image, image))
    turns = (question, Turn("assistant", "y" * 20, stats=stats))
    draft = context_use(Conversation(turns), "z" * 350, None)
    # 720 characters in the 288 tokens that are no image's.
    assert draft.tokens == 800 + 140 + 8
