"""What a conversation is made of: turns, their attachments and tool calls, how an answer went.

All frozen; `document` and `turn_from_document` are their form in files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Any

from app.client import formatting
from app.client.chat.parameters import ChatParameters

NOT_RUN = "(the tool was not run)"
_LONGEST_TITLE = 60


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file that goes to the model with a question: a text, or an image with its media type and
    its content in base64.
    """

    name: str
    text: str
    media_type: str = ""
    data: str = ""

    @property
    def is_image(self) -> bool:
        """Whether it is an image, which has no text."""
        return bool(self.data)

    @property
    def size(self) -> str:
        """How much it is, for people."""
        if self.is_image:
            return f"{self.media_type}, {len(self.data) * 3 // 4 / 1024:,.0f} KiB"
        return f"{len(self.text):,} characters"

    def part(self) -> dict[str, object]:
        """An image as a part of a message."""
        url = f"data:{self.media_type};base64,{self.data}"
        return {"type": "image_url", "image_url": {"url": url}}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that the model wants to have called; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class AnswerStats:
    """How one answer went; None is unknown. `problem` says why it is not whole."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    ttft_s: float | None = None
    tokens_per_s: float | None = None
    finish_reason: str | None = None
    problem: str | None = None

    def text(self) -> str:
        """One line: tokens, time to the first one, the rate of the others, how it ended."""
        parts = []
        if self.prompt_tokens is not None:
            output = formatting.count(self.completion_tokens)
            parts.append(f"{self.prompt_tokens:,} prompt + {output} tokens")
        if self.ttft_s is not None:
            parts.append(f"first token {formatting.seconds(self.ttft_s)}")
        if self.tokens_per_s is not None:
            parts.append(f"{formatting.rate(self.tokens_per_s)} tok/s")
        if self.finish_reason:
            meaning = _FINISH_MEANINGS.get(self.finish_reason)
            parts.append(f"{self.finish_reason}{f' ({meaning})' if meaning else ''}")
        return " · ".join(parts)


_FINISH_MEANINGS = {
    "length": "cut off at the token limit",
    "content_filter": "withheld by the server",
}
STOPPED = "stopped by you"
_SPEAKERS = {"user": "You", "assistant": "Model", "tool": "Tool result"}


@dataclass(frozen=True, slots=True)
class Turn:
    """One question, answer, or result of a tool (`role` is the API's)."""

    role: str
    text: str
    reasoning: str = ""
    attachments: tuple[Attachment, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    stats: AnswerStats | None = None

    @property
    def speaker(self) -> str:
        """The role as people read it."""
        return _SPEAKERS.get(self.role, self.role)

    @property
    def is_empty(self) -> bool:
        """True for an answer of which nothing came."""
        return not (self.text or self.reasoning or self.tool_calls)

    @property
    def is_failed(self) -> bool:
        """True for an answer that says nothing; servers refuse to have one sent back."""
        return self.role == "assistant" and not (self.text or self.tool_calls)

    @property
    def whole_text(self) -> str:
        """The text with that of its files."""
        return self.text + "".join(_fenced(one) for one in self.attachments if not one.is_image)

    @property
    def images(self) -> tuple[Attachment, ...]:
        """The attached images."""
        return tuple(one for one in self.attachments if one.is_image)

    def message(self) -> dict[str, object]:
        """The turn as the chat endpoint wants it; reasoning is not sent back.

        Images come before the text, where models have learnt to expect them.
        """
        message: dict[str, object] = {"role": self.role, "content": self.whole_text}
        if self.images:
            text = {"type": "text", "text": self.whole_text}
            message["content"] = [*(image.part() for image in self.images), text]
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.tool_calls
            ]
        if self.tool_call_id:
            message["tool_call_id"] = self.tool_call_id
        return message

    def document(self) -> dict[str, Any]:
        """The turn without what is empty."""
        return {name: value for name, value in asdict(self).items() if value}


def turn_from_document(document: Mapping[str, Any]) -> Turn:
    """The reverse of `Turn.document`; unknown keys of a later version are left out."""
    stats = document.get("stats")
    return Turn(
        role=str(document["role"]),
        text=str(document.get("text", "")),
        reasoning=str(document.get("reasoning", "")),
        attachments=tuple(Attachment(**one) for one in document.get("attachments", ())),
        tool_calls=tuple(ToolCall(**one) for one in document.get("tool_calls", ())),
        tool_call_id=str(document.get("tool_call_id", "")),
        stats=AnswerStats(**stats) if stats else None,
    )


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation as it stands; `id` is None until it is saved."""

    turns: tuple[Turn, ...] = ()
    title: str = ""
    system: str = ""
    parameters: ChatParameters = field(default_factory=ChatParameters)
    model: str = ""
    id: int | None = None

    def messages(self) -> list[dict[str, object]]:
        """Everything the server is to see: a call without a result gets one that says so, a
        question that got no answer is left out, since many chat templates want the roles to take
        turns.
        """
        messages = list(self._turn_messages())
        if self.system:
            messages.insert(0, {"role": "system", "content": self.system})
        return messages

    def _turn_messages(self) -> Iterator[dict[str, object]]:
        open_ids: list[str] = []
        for turn in self.answered_turns():
            if turn.tool_call_id in open_ids:
                open_ids.remove(turn.tool_call_id)
            else:
                yield from _not_run(open_ids)
                open_ids = [call.id for call in turn.tool_calls]
            yield turn.message()
        yield from _not_run(open_ids)

    def answered_turns(self) -> list[Turn]:
        """The turns that are sent: without questions that got no answer."""
        kept: list[Turn] = []
        for turn in self.turns:
            if not turn.is_failed:
                kept.append(turn)
            elif kept and kept[-1].role == "user":
                kept.pop()
        return kept

    def question_numbers(self) -> list[int]:
        """Which question each turn is or answers; they count from 1, as /edit wants them."""
        return list(accumulate(int(turn.role == "user") for turn in self.turns))

    def open_call(self) -> ToolCall | None:
        """The first tool call at the end that has no result yet."""
        results: set[str] = set()
        for turn in reversed(self.turns):
            if turn.role != "tool":
                waiting = (call for call in turn.tool_calls if call.id not in results)
                return next(waiting, None)
            results.add(turn.tool_call_id)
        return None

    def shown_title(self) -> str:
        """The title, else the beginning of the first question."""
        first = next((turn.text for turn in self.turns if turn.role == "user"), "")
        title = self.title or " ".join(first.split())
        return title if len(title) <= _LONGEST_TITLE else title[: _LONGEST_TITLE - 1] + "…"


def _not_run(call_ids: list[str]) -> Iterator[dict[str, object]]:
    for call_id in call_ids:
        yield Turn("tool", NOT_RUN, tool_call_id=call_id).message()


def _fenced(attachment: Attachment) -> str:
    """The file in a fence that is longer than any inside it."""
    fence = "```"
    while fence in attachment.text:
        fence += "`"
    return f"\n\nFile {json.dumps(attachment.name)}:\n{fence}\n{attachment.text}\n{fence}"
