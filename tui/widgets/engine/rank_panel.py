"""The ranks of an engine: what each holds, how long its part of a step takes, and who failed first.

Not on the screen where the engine has one device, or is another that does not tell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from app.client import formatting
from app.client.debug.ranks import RankReading, Skew, first_to_fail, skew_of
from tui.widgets.panel import Panel
from tui.widgets.rows import Row, styled

_MOST_RANKS = 8
_BORDER_AND_HEAD = 4
_LEAST_ROWS = 4
_MARK = "▲ "
_NO_MARK = "  "

_Column = tuple[str, int, Callable[[RankReading], str]]


def _of_step(rank: RankReading) -> str:
    return "-" if rank.step_s is None else formatting.seconds(rank.step_s)


def _waiting(rank: RankReading) -> str:
    share = rank.waited_s / rank.step_s if rank.waited_s is not None and rank.step_s else None
    return formatting.percent(share)


def _held(rank: RankReading) -> str:
    return "-" if rank.held_bytes is None else formatting.human_bytes(rank.held_bytes)


def _process(rank: RankReading) -> str:
    return f"pid {rank.pid}" if rank.node is None else f"pid {rank.pid} on {rank.node}"


_COLUMNS: tuple[_Column, ...] = (
    ("step", 9, _of_step),
    ("waits", 8, _waiting),
    ("holds", 10, _held),
    ("weights", 10, lambda rank: formatting.human_bytes(rank.weight_bytes)),
    ("KV cache", 10, lambda rank: formatting.human_bytes(rank.kv_cache_bytes)),
    ("steps", 9, lambda rank: f"{rank.num_steps:,}"),
)
"""Title, width and value; the last ones are left out where there is no room."""


class RankPanel(Panel):
    """A row for each rank, in their order; where there is no room for all, the slowest ones."""

    TITLE = "Ranks"
    READING: ClassVar[tuple[tuple[str, str], ...]] = (
        ("waits", "share of its step that a rank waits for others; the slowest waits least"),
        ("skew", "how much longer the slowest rank computes than the quickest"),
        ("failed first", "the rank whose end took the others with it"),
    )

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._ranks: Sequence[RankReading] = ()
        self._cause = ""
        self.display = False

    def show_ranks(self, ranks: Sequence[RankReading], cause: str) -> None:
        """`cause` is why the server is away, "" while it answers."""
        self._ranks, self._cause = ranks, cause
        self.display = bool(ranks)
        self.redraw()

    def take_rows(self, room: int) -> int:
        """Be as high as there is `room` for, the border counted, and say how high that is."""
        wanted = min(len(self._ranks), _MOST_RANKS) + _BORDER_AND_HEAD
        rows = max(_LEAST_ROWS, min(wanted, room)) if self._ranks else 0
        self.styles.height = rows
        num_hidden = len(self._ranks) - max(1, rows - _BORDER_AND_HEAD)
        self.caption(f"{num_hidden} quicker ones not shown" if num_hidden > 0 else "")
        return rows

    def rows(self, width: int, height: int) -> list[Row]:
        failed = first_to_fail(self._ranks, self._cause)
        if height < _BORDER_AND_HEAD - 1:
            (worst,) = _worth_showing(self._ranks, failed, 1)
            values = ", ".join(f"{name} {value(worst)}" for name, _, value in _COLUMNS[:3])
            return [self._summary(failed), styled(f"{worst.name}: {values}", "value")]
        names = max([len(rank.name) for rank in self._ranks], default=0)
        columns = _fitting(width - names - len(_MARK))
        title = "".join(name.rjust(size) for name, size, _ in columns)
        rows = [styled(_NO_MARK + " " * names + title + "  process", "label")]
        for rank in _worth_showing(self._ranks, failed, max(1, height - 2)):
            values = "".join(value(rank).rjust(size) for _, size, value in columns)
            is_bad = rank is failed or not rank.is_running
            mark = _MARK if is_bad else _NO_MARK
            text = f"{mark}{rank.name.ljust(names)}{values}  {_process(rank)}"
            rows.append(styled(text, "alarm" if is_bad else "value"))
        return [*rows, self._summary(failed)]

    def _summary(self, failed: RankReading | None) -> Row:
        if failed is not None:
            what = "failed first" if failed.is_running else f"is {failed.state}"
            return styled(f"{failed.name} {what}; the others need it", "alarm")
        return styled(_skew_text(skew_of(self._ranks)), "note")


def _skew_text(skew: Skew | None) -> str:
    if skew is None:
        return "skew n/a: no step yet"
    amount = f"skew {formatting.seconds(skew.seconds)} ({formatting.percent(skew.share)})"
    return f"{amount}: {skew.slowest.name} computes longest"


def _fitting(width: int) -> list[_Column]:
    """Those that there is room for, beside some of the process."""
    found: list[_Column] = []
    for column in _COLUMNS:
        if sum(size for _, size, _ in (*found, column)) + len("  process") <= width:
            found.append(column)
    return found


def _worth_showing(
    ranks: Sequence[RankReading], failed: RankReading | None, most: int
) -> list[RankReading]:
    def rank_worth(rank: RankReading) -> tuple[bool, bool, float]:
        return rank is failed, not rank.is_running, rank.own_s or 0.0

    chosen = sorted(ranks, key=rank_worth, reverse=True)[:most]
    return [rank for rank in ranks if rank in chosen]
