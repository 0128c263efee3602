"""What node 0 and the other nodes of an engine say to each other, over a NodeLink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.worker.standstill import ProcessLook
from engine.worker.worker_messages import Meeting

# ---- from another node -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Join:
    """The first word of a node; `settings` is its configuration as plain data, for comparison."""

    node_rank: int
    version: str
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FromRank:
    """What one of its ranks has answered, pickled."""

    rank: int
    answer: bytes


@dataclass(frozen=True, slots=True)
class RankEnded:
    """One of its ranks has ended; a signal's number is negative."""

    rank: int
    exit_code: int | None
    last_lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Looks:
    """Answers AskLooks: what its ranks do, by their numbers."""

    by_rank: Mapping[int, ProcessLook]


@dataclass(frozen=True, slots=True)
class Room:
    """Answers AskRoom."""

    num_bytes: int


@dataclass(frozen=True, slots=True)
class NodeStopped:
    """Somebody ends the node on its own machine."""

    reason: str


# ---- from node 0 -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Refused:
    """It cannot take part."""

    reason: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """All nodes are there; its ranks are to be started."""

    meeting: Meeting


@dataclass(frozen=True, slots=True)
class ToRanks:
    """A message for each of its ranks, pickled."""

    message: bytes


@dataclass(frozen=True, slots=True)
class AskLooks:
    """What do its ranks do?"""


@dataclass(frozen=True, slots=True)
class AskRoom:
    """How much RAM has its KV cache, beside weights of so many bytes?"""

    weight_bytes: int


@dataclass(frozen=True, slots=True)
class Serving:
    """The engine answers requests from now on; what that node's ranks hold for it, together."""

    weight_bytes: int
    cache_bytes: int


@dataclass(frozen=True, slots=True)
class End:
    """Its ranks are to end; `reason` is None where that is wanted."""

    reason: str | None
