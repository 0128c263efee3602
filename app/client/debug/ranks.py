"""The ranks of one engine as /debug tells them, and what their times say about each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from app.client.terminal_text import strip_escapes


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReading:
    """One rank. Seconds are means over its newest steps, None before the first.

    `waited_s` of a step it waited for other ranks. `held_bytes` is what its process holds of the
    RAM, or of its GPU's memory. `node` is its machine's address, None where all are on one.
    """

    name: str
    pid: int
    node: str | None
    state: str
    num_steps: int
    step_s: float | None
    waited_s: float | None
    weight_bytes: int
    kv_cache_bytes: int
    held_bytes: int | None

    @property
    def own_s(self) -> float | None:
        """What it computed itself in a step."""
        if self.step_s is None or self.waited_s is None:
            return None
        return max(0.0, self.step_s - self.waited_s)

    @property
    def is_running(self) -> bool:
        """False for one that has ended, or that a signal or a debugger has stopped."""
        return self.state == "running"


@dataclass(frozen=True, slots=True)
class Skew:
    """How much longer the slowest rank computes than the quickest, which waits for it."""

    slowest: RankReading
    seconds: float

    @property
    def share(self) -> float:
        """Of what the slowest one computes."""
        return self.seconds / self.slowest.own_s if self.slowest.own_s else 0.0


def skew_of(ranks: Iterable[RankReading]) -> Skew | None:
    """None while fewer than two ranks have times."""
    timed = [(rank.own_s, rank) for rank in ranks if rank.own_s is not None]
    if len(timed) < 2:
        return None
    most, slowest = max(timed, key=lambda pair: pair[0])
    return Skew(slowest, most - min(own_s for own_s, _ in timed))


def first_to_fail(ranks: Sequence[RankReading], cause: str) -> RankReading | None:
    """The rank that the cause of an end names first, else the first that does not run."""
    named = [(place, rank) for rank in ranks if (place := _place_in(cause, rank.name)) >= 0]
    if named:
        return min(named, key=lambda pair: pair[0])[1]
    return next((rank for rank in ranks if not rank.is_running), None)


def _place_in(text: str, name: str) -> int:
    """Where a name stands as a word: Worker_TP1 is no part of Worker_TP11."""
    place = text.find(name)
    while place >= 0 and text[place + len(name) : place + len(name) + 1].isdigit():
        place = text.find(name, place + 1)
    return place


def read_ranks(entries: Any) -> tuple[RankReading, ...]:
    """Out of /debug/scheduler; none where the worker is a part of EngineCore. KeyError, TypeError
    or ValueError where it is not as it should be.
    """
    return tuple(_read_rank(entry) for entry in entries or ())


def _read_rank(entry: Any) -> RankReading:
    return RankReading(
        name=strip_escapes(str(entry["name"])),
        pid=int(entry["pid"]),
        node=None if entry["node"] is None else strip_escapes(str(entry["node"])),
        state=strip_escapes(str(entry["state"])),
        num_steps=int(entry["num_steps"]),
        step_s=_optional(float, entry["step_s"]),
        waited_s=_optional(float, entry["waited_s"]),
        weight_bytes=int(entry["weight_bytes"]),
        kv_cache_bytes=int(entry["kv_cache_bytes"]),
        held_bytes=_optional(int, entry["held_bytes"]),
    )


def _optional(kind: Any, value: Any) -> Any:
    return None if value is None else kind(value)
