"""BarState bars: vLLM's shard bar, tqdm's own form, and lines that a carriage return overwrites."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from logparse.redact import safe_text

_BAR = re.compile(
    r"\d{1,3}%(?: Completed \||\|[^|]{0,200}\|)\s{0,8}(?P<done>\d{1,12})/(?P<total>\d{1,12}) \["
)


_MAX_TITLE = 200


class BarState(NamedTuple):
    """The state of one bar."""

    text: str
    done: int
    total: int


def is_bar(text: str) -> bool:
    """A cheap test; `read_bar` may still say None (units that are not plain counts)."""
    return ("%" in text and ("% Completed |" in text or "%|" in text)) or "it/s]" in text


def read_bar(text: str) -> BarState | None:
    """The last state in `text`, which may hold several states glued together."""
    last, before = None, 0
    at = text.find("%") if text.count("%") == 1 else 0
    for match in _BAR.finditer(text, max(0, at - 3)):
        if last is not None:
            before = text.find("]", last.end(), match.start()) + 1
        last = match
    if last is None:
        return None
    title = text[max(before, last.start() - _MAX_TITLE) : last.start()]
    return BarState(_safe_title(title.strip(" :")), int(last["done"]), int(last["total"]))


@functools.lru_cache(maxsize=64)
def _safe_title(title: str) -> str:
    """The same for each of a bar's many states."""
    return safe_text(title, _MAX_TITLE)


def drop_overwritten(line: str) -> list[str]:
    """The parts of a line that a terminal would still show: text, and the last state of a bar."""
    parts = [part for part in line.split("\r") if part and not part.isspace()]
    if len(parts) == 1 or (len(parts) == 2 and not is_bar(parts[0])):
        return parts
    bars = [index for index, part in enumerate(parts) if is_bar(part) and _is_pure_bar(part)]
    if len(bars) < 2:
        return parts
    dropped = set(bars[:-1])
    return [part for index, part in enumerate(parts) if index not in dropped]


def is_bar_alone(part: str) -> bool:
    """Whether the part is a bar and nothing else: its only bracket closes it."""
    return part.endswith("]") and part.count("]") == 1 and is_bar(part)


def _is_pure_bar(part: str) -> bool:
    return part.rstrip().endswith("]")
