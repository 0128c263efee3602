"""A bar graph of values over time out of block characters: pure text, one column per stretch."""

from __future__ import annotations

from collections.abc import Sequence

from tui.state.history import Series

_EIGHTHS = " ▁▂▃▄▅▆▇█"


def columns(series: Series, window_s: float, width: int) -> list[float | None]:
    """The mean value in each of `width` equal parts of the window that ends with the newest dot.

    None where nothing is known: before the first sample, and while the server was away.
    """
    if width <= 0 or not series:
        return [None] * max(0, width)
    end_s, part_s = series[-1][1], window_s / width
    sums = [0.0] * width
    counts = [0] * width
    for start_s, stop_s, value in series:
        if value is None:
            continue
        newest = width - 1 - int((end_s - stop_s) / part_s)
        # Half open: the part that holds the sample before belongs to that one.
        oldest = width - int((end_s - start_s) / part_s) if start_s < stop_s else newest
        if oldest >= newest >= 0:  # nearly all, of a long window
            sums[newest] += value
            counts[newest] += 1
            continue
        for column in range(max(0, min(oldest, newest)), newest + 1):
            sums[column] += value
            counts[column] += 1
    return [total / n if n else None for total, n in zip(sums, counts, strict=True)]


def graph_rows(values: Sequence[float | None], height: int, top: float | None = None) -> list[str]:
    """`height` rows, top first, one column per value.

    The scale starts at 0 and ends at `top`, by default the largest value. None leaves its column
    blank, 0 is the thinnest line: an idle server does not look like one that is away.
    """
    if height <= 0:
        return []
    top = peak(values) if top is None else top
    levels = [_levels(value, top, height) for value in values]
    return ["".join(_EIGHTHS[column[row]] for column in levels) for row in range(height)]


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
