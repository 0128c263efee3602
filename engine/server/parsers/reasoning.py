"""Thinking and answer told apart: the tags of each family, and a splitter for text in pieces.

Names are those of vLLM's --reasoning-parser. Where the thought begins is read from the rendered
prompt: a template may have opened it, or closed it at once.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """How a family marks its thought. `label` is a word that stands behind the opening tag.

    With `is_assumed` an answer is a thought until the closing tag comes, also where neither the
    prompt nor the model wrote the opening one.
    """

    opening: str
    closing: str
    label: str = ""
    is_assumed: bool = False


_THINK = ReasoningTags("<think>", "</think>")
_THINKING = ReasoningTags("<think>", "</think>", is_assumed=True)

REASONING_PARSERS: Mapping[str, ReasoningTags] = {
    "qwen3": _THINK,
    "glm45": _THINK,
    "deepseek_v3": _THINK,
    "hunyuan_a13b": _THINK,
    "deepseek_r1": _THINKING,
    "minimax_m2": _THINKING,
    "kimi_k2": ReasoningTags("◁think▷", "◁/think▷"),
    "mistral": ReasoningTags("[THINK]", "[/THINK]"),
    "seed_oss": ReasoningTags("<seed:think>", "</seed:think>"),
    "gemma4": ReasoningTags("<|channel>", "<channel|>", label="thought"),
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
    if end.endswith(tags.closing):
        return Start.OUTSIDE
    return Start.INSIDE if tags.is_assumed else Start.OPEN_QUESTION


@dataclass(frozen=True, slots=True)
class Split:
    """What became certain with one piece of text."""

    reasoning: str = ""
    content: str = ""


class ReasoningSplitter:
    """Tells one answer's thought from its content; what it returns depends on the text alone.

    Neither tag is ever shown. Blanks around the thought, those before it, and those before the
    content that follows it, are dropped.
    """

    def __init__(self, tags: ReasoningTags, start: Start) -> None:
        self._tags = tags
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
        tags = (self._tags.closing, self._tags.opening)
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
        sizes = range(min(len(held), max(map(len, tags)) - 1), 0, -1)
        begun = next((n for n in sizes if any(t.startswith(held[-n:]) for t in tags)), 0)
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
