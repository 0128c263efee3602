"""Answers in pieces: cut anywhere, and split into thought and content as they come."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from engine.server.parsers.reasoning import ReasoningTags, Start


def cut(text: str, places: Sequence[int]) -> list[str]:
    """Between two characters at every place, counted around the text's length."""
    ends = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(ends)]


def split(
    tags: ReasoningTags, start: Start, pieces: Sequence[str], *, keeps_calls: bool = False
) -> tuple[str, str]:
    """Thought and content of all pieces together."""
    splitter = tags.splitter(start, keeps_calls=keeps_calls)
    parts = [*map(splitter.feed, pieces), splitter.finish()]
    return "".join(p.reasoning for p in parts), "".join(p.content for p in parts)
