"""A bar graph of recent values out of block characters: pure text, one column per sample."""

from __future__ import annotations

from collections.abc import Sequence

_EIGHTHS = " ▁▂▃▄▅▆▇█"


def graph_rows(values: Sequence[float | None], width: int, height: int) -> list[str]:
    """`height` rows, top first, of the last `width` values; the newest is at the right edge.

    The scale starts at 0 and ends at the largest visible value. None leaves its column blank, 0 is
    the thinnest line: an idle server does not look like one that is away.
    """
    if width <= 0 or height <= 0:
        return []
    shown = list(values)[-width:]
    columns = [_levels(value, peak(shown), height) for value in shown]
    blank = [0] * height
    columns = [blank] * (width - len(columns)) + columns
    return ["".join(_EIGHTHS[column[row]] for column in columns) for row in range(height)]


def peak(values: Sequence[float | None]) -> float:
    """The largest known value, 0 without any."""
    return max((value for value in values if value is not None), default=0.0)


def _levels(value: float | None, top: float, height: int) -> list[int]:
    """How many eighths of each row, top first, one value fills."""
    if value is None:
        return [0] * height
    filled = max(1, round(value / top * height * 8)) if top > 0 else 1
    return [min(8, max(0, filled - 8 * below)) for below in range(height - 1, -1, -1)]


def bar(share: float | None, width: int) -> str:
    """A horizontal bar, full only at 1 and empty only at 0; unknown is blank."""
    if share is None:
        return " " * width
    filled = round(min(1.0, max(0.0, share)) * width)
    if share > 0:
        filled = max(1, filled)
    if share < 1:
        filled = min(width - 1, filled)
    return "▆" * filled + "▁" * (width - filled)
