"""How full the model's context is, and how full the next question would make it.

The server's counts are exact; what has not been sent yet is estimated and marked as such.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.client.chat.turns import Conversation, Turn

_NEAR_SHARE = 0.8
_CHARS_PER_TOKEN = 3.5  # before the server has counted anything; English has about 4, code 3
_TOKENS_PER_TURN = 8  # what chat templates put around a turn, roughly
_TOKENS_PER_IMAGE = 256  # of Gemma 3; other models make fewer or more of one


class ContextLevel(enum.Enum):
    """Whether the context is about to overflow."""

    FINE = "fine"
    NEAR = "near"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class ContextUse:
    """`tokens` of `limit`; a limit of None is unknown."""

    tokens: int
    limit: int | None
    is_estimate: bool
    reserved_tokens: int = 0

    @property
    def level(self) -> ContextLevel:
        """OVER when the server would refuse the next request or could not answer it."""
        if self.limit is None:
            return ContextLevel.FINE
        if self.tokens + max(self.reserved_tokens, 1) > self.limit:
            return ContextLevel.OVER
        is_near = self.tokens >= _NEAR_SHARE * self.limit
        return ContextLevel.NEAR if is_near else ContextLevel.FINE

    def text(self) -> str:
        """`context about 1,234 of 8,192 tokens (15 %)`, and a warning when it is due."""
        about = "about " if self.is_estimate else ""
        if self.limit is None:
            return f"context {about}{self.tokens:,} tokens"
        share = f"{100 * self.tokens / self.limit:.0f} %"
        return f"context {about}{self.tokens:,} of {self.limit:,} tokens ({share})"

    def warning(self) -> str:
        """What will happen and what to do; empty while there is room."""
        if self.level is ContextLevel.FINE:
            return ""
        if self.level is ContextLevel.NEAR:
            return "nearly full: /new starts afresh"
        if self.tokens < (self.limit or 0):
            return "no room for max_tokens: lower it, or /new"
        return "overflows: shorten it, /edit or /new"


def context_use(
    conversation: Conversation, draft: str, limit: int | None, num_images: int = 0
) -> ContextUse:
    """What the conversation and `draft` take together; `num_images` go with the draft."""
    conversation = replace(conversation, turns=tuple(conversation.answered_turns()))
    exact, rest = _counted(conversation)
    chars = sum(_chars(turn) for turn in rest) + len(draft)
    if not exact:
        chars += len(conversation.system)
    num_new = len(rest) + bool(draft or num_images)
    estimate = math.ceil(chars / _chars_per_token(conversation)) + num_new * _TOKENS_PER_TURN
    estimate += _image_tokens(rest) + num_images * _TOKENS_PER_IMAGE
    return ContextUse(
        tokens=exact + estimate,
        limit=limit,
        is_estimate=bool(num_new),
        reserved_tokens=conversation.parameters.max_tokens or 0,
    )


def _counted(conversation: Conversation) -> tuple[int, tuple[Turn, ...]]:
    """The server's last count, and the turns that came after it."""
    for index in range(len(conversation.turns) - 1, -1, -1):
        stats = conversation.turns[index].stats
        if stats and stats.prompt_tokens is not None:
            exact = stats.prompt_tokens + (stats.completion_tokens or 0)
            return exact, conversation.turns[index + 1 :]
    return 0, conversation.turns


def _chars_per_token(conversation: Conversation) -> float:
    """As this conversation's text has been so far."""
    exact, rest = _counted(conversation)
    counted = conversation.turns[: len(conversation.turns) - len(rest)]
    chars = sum(_chars(turn) for turn in counted) + len(conversation.system)
    exact -= _image_tokens(counted)
    # A template's own text makes short conversations look dense; more than one token a
    # character is no property of the text.
    return max(chars / exact, 1.0) if exact > 0 and chars > 400 else _CHARS_PER_TOKEN


def _image_tokens(turns: Sequence[Turn]) -> int:
    return sum(len(turn.images) for turn in turns) * _TOKENS_PER_IMAGE


def _chars(turn: Turn) -> int:
    calls = sum(len(call.name) + len(call.arguments) for call in turn.tool_calls)
    return len(turn.text) + sum(len(one.text) for one in turn.attachments) + calls
