"""Thinking and answer told apart: the tags of each family, and a splitter for text in pieces.

Names are those of vLLM's --reasoning-parser. Where the thought begins is read from the rendered
prompt: a template may have opened it, or closed it at once.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from engine.server.parsers.harmony import (
    ANALYSIS,
    CHANNEL,
    END,
    FINAL,
    MESSAGE,
    START,
    HarmonyScanner,
    Head,
    Piece,
)
from engine.server.parsers.marks import num_begun


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """How a family marks its thought. `label` is a word that stands behind the opening tag.

    With `is_assumed` an answer is a thought until the closing tag comes, also where neither the
    prompt nor the model wrote the opening one. A mark of `call_marks` ends a thought, too, where
    tools were offered: models forget to close it. `answer_head` has to stand between the closing
    tag and an answer, and behind `answer_begun` where the model has not thought.
    """

    opening: str
    closing: str
    label: str = ""
    is_assumed: bool = False
    call_marks: tuple[str, ...] = ()
    answer_head: str = "\n\n"
    answer_begun: str = ""

    def splitter(self, start: Start, *, keeps_calls: bool = False) -> Splitter:
        """What tells an answer's thought from its content; with `keeps_calls` tool calls keep the
        marks that a tool parser needs.
        """
        return ReasoningSplitter(self, start, self.call_marks if keeps_calls else ())


class HarmonyTags(ReasoningTags):
    """Thoughts are messages of a channel; a head says which, and a message has its own."""

    __slots__ = ()

    def splitter(self, start: Start, *, keeps_calls: bool = False) -> Splitter:
        """One that reads the heads of messages."""
        return HarmonySplitter(start, keeps_calls=keeps_calls)


_THINK = ReasoningTags("<think>", "</think>")
_THINK_OR_CALL = replace(_THINK, call_marks=("<tool_call>",))
_THINKING = ReasoningTags("<think>", "</think>", is_assumed=True)

REASONING_PARSERS: Mapping[str, ReasoningTags] = {
    **dict.fromkeys(("deepseek_v3", "hunyuan_a13b"), _THINK),
    **dict.fromkeys(("glm45", "glm47", "mimo", "nemotron_v3", "qwen3"), _THINK_OR_CALL),
    "kimi_k2": replace(_THINK, call_marks=("<|tool_calls_section_begin|>",)),
    **dict.fromkeys(("deepseek_r1", "minimax_m2", "step3"), _THINKING),
    "kimi_vl": ReasoningTags("◁think▷", "◁/think▷"),
    "mistral": ReasoningTags("[THINK]", "[/THINK]"),
    "seed_oss": ReasoningTags("<seed:think>", "</seed:think>"),
    "gemma4": ReasoningTags("<|channel>", "<channel|>", label="thought"),
    "openai_gptoss": HarmonyTags(
        f"{CHANNEL}{ANALYSIS}{MESSAGE}",
        END,
        answer_head=f"{START}assistant{CHANNEL}{FINAL}{MESSAGE}",
        answer_begun=f"{START}assistant",
    ),
}
"""By their flag's value."""


class Start(enum.Enum):
    """Where an answer begins, as far as its prompt tells."""

    INSIDE = "inside"  # the thought is open
    OUTSIDE = "outside"  # it was closed at once: there will be none
    OPEN_QUESTION = "open question"  # the model decides


def start_of(prompt: str, tags: ReasoningTags) -> Start:
    """What the end of a rendered chat says about the answer that follows."""
    end = prompt.rstrip()
    bare = end.removesuffix(tags.label).rstrip() if tags.label else end
    if bare.endswith(tags.opening):
        return Start.INSIDE
    answer_head = tags.answer_head.strip()
    if end.endswith(answer_head or tags.closing):
        return Start.OUTSIDE
    return Start.INSIDE if tags.is_assumed else Start.OPEN_QUESTION


@dataclass(frozen=True, slots=True)
class Split:
    """What became certain with one piece of text."""

    reasoning: str = ""
    content: str = ""


class Splitter(Protocol):
    """Takes an answer's text in pieces of any size; what it returns depends on the text alone."""

    @property
    def is_inside(self) -> bool:
        """Whether what comes next belongs to a thought, as far as is known."""

    @property
    def has_thought(self) -> bool:
        """Whether there was one, or is."""

    def feed(self, text: str) -> Split:
        """Take the next piece of text."""

    def finish(self) -> Split:
        """The text has ended: what was held back comes out."""


class HarmonySplitter:
    """Tells the channel `analysis` from the others; of no head or mark anything is shown.

    With `keeps_calls` a call comes out as content with a head of its own, for the tool parser.
    """

    def __init__(self, start: Start, *, keeps_calls: bool = False) -> None:
        begun = {Start.INSIDE: Head(ANALYSIS), Start.OUTSIDE: Head()}
        self._scanner = HarmonyScanner(begun.get(start))
        self._keeps_calls = keeps_calls
        self.has_thought = start is Start.INSIDE
        self._has_reasoning = False

    @property
    def is_inside(self) -> bool:
        """In a message of the channel `analysis`."""
        head = self._scanner.head
        return head is not None and head.is_thought

    def feed(self, text: str) -> Split:
        """Take the next piece of text."""
        return self._split(self._scanner.feed(text))

    def finish(self) -> Split:
        """The text has ended: what was held back comes out."""
        return self._split(self._scanner.finish())

    def _split(self, pieces: Sequence[Piece]) -> Split:
        reasoning, content = [], []
        for piece in pieces:
            if piece.head.is_thought:
                self.has_thought = True
                reasoning.append(self._thought_of(piece))
            elif piece.head.function is not None and self._keeps_calls:
                content.append(piece.written())
            else:
                content.append(piece.text)
        return Split("".join(reasoning), "".join(content))

    def _thought_of(self, piece: Piece) -> str:
        """A second message stands on a line of its own."""
        lead = "\n" if piece.is_first and self._has_reasoning else ""
        self._has_reasoning |= bool(piece.text)
        return lead + piece.text


class ReasoningSplitter:
    """Tells one answer's thought from its content; what it returns depends on the text alone.

    Neither tag is ever shown. Blanks around the thought, those before it, and those before the
    content that follows it, are dropped.
    """

    def __init__(self, tags: ReasoningTags, start: Start, call_marks: Sequence[str] = ()) -> None:
        self._tags = tags
        self._call_marks = tuple(call_marks)
        self._held = ""
        self._label = tags.label
        self.is_inside = start is Start.INSIDE
        self.has_thought = self.is_inside
        self._is_at_beginning = True  # of the thought or the content: blanks are dropped

    def feed(self, text: str) -> Split:
        """Take the next piece of text."""
        self._held += text
        return self._split(is_last=False)

    def finish(self) -> Split:
        """The text has ended: what was held back comes out."""
        return self._split(is_last=True)

    def _split(self, *, is_last: bool) -> Split:
        reasoning: list[str] = []
        content: list[str] = []
        while True:
            was_inside = self.is_inside
            text, is_turn = self._next_part(is_last=is_last)
            (reasoning if was_inside else content).append(text)
            if not is_turn:
                return Split("".join(reasoning), "".join(content))

    def _next_part(self, *, is_last: bool) -> tuple[str, bool]:
        """Certain text of the part that we are in, and whether a tag ended that part."""
        self._drop_beginning(is_last=is_last)
        tags: tuple[str, ...] = (self._tags.closing, self._tags.opening)
        if self.is_inside:
            tags += self._call_marks
        found = sorted((at, tag) for tag in tags if (at := self._held.find(tag)) >= 0)
        if not found:
            end = len(self._held) - (0 if is_last else self._num_uncertain(tags))
            text = self._take(end)
            self._is_at_beginning &= not text
            return (text.rstrip() if is_last and self.is_inside else text), False
        at, tag = found[0]
        text = self._take(at)
        is_before_thought = self._is_at_beginning and tag == self._tags.opening
        if self.is_inside or (is_before_thought and not text.strip()):
            text = text.rstrip()
        if tag not in self._call_marks:
            self._held = self._held[len(tag) :]
        self.is_inside = tag == self._tags.opening
        self.has_thought |= self.is_inside
        self._label = self._tags.label
        self._is_at_beginning = True
        return text, True

    def _num_uncertain(self, tags: tuple[str, ...]) -> int:
        """Characters at the end that may begin a tag, and the blanks before them in a thought or
        where one may begin.
        """
        held = self._held
        begun = num_begun(held, tags)
        certain = held[: len(held) - begun]
        if not self.is_inside and (certain.strip() or not self._is_at_beginning):
            return begun
        return len(held) - len(certain.rstrip())

    def _drop_beginning(self, *, is_last: bool) -> None:
        if not self._is_at_beginning or not (self.is_inside or self.has_thought):
            return
        self._held = self._held.lstrip()
        if self.is_inside and self._label and self._held:
            if self._held.startswith(self._label):
                self._held = self._held[len(self._label) :].lstrip()
            elif self._label.startswith(self._held) and not is_last:
                return
            self._label = ""
        self._is_at_beginning = not self._held

    def _take(self, end: int) -> str:
        if self._label and self.is_inside and self._label.startswith(self._held) and self._held:
            end = 0  # whether it is the label is not known yet
        taken, self._held = self._held[:end], self._held[end:]
        return taken
