"""What EngineCore and its worker processes say to each other, pickled: both are of one program."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.config import EngineConfig
from engine.sched.scheduler_output import SchedulerOutput
from engine.worker.rank_channels import ChannelMap


@dataclass(frozen=True, slots=True)
class WorkerInit:
    """The first message, over the socket itself. Descriptors are open in the worker.

    `states_out` are sockets to the ranks of the next stage; `store` is a file in memory where the
    ranks find each other.
    """

    config: EngineConfig
    rank: int
    channels: ChannelMap
    memory: int
    store: int
    states_in: int | None
    states_out: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A method of the worker that every rank runs and answers."""

    method: str
    arguments: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One step, which the output rank answers.

    `sampled` are (request, token) of the steps whose results came since the last message: ranks
    that do not sample learn them here, as in vLLM's CachedRequestData.new_token_ids.
    """

    scheduler_output: SchedulerOutput
    sampled: list[tuple[str, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RankLost:
    """An answer: the rank waits in vain for another one, which must have ended."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An answer: the rank cannot go on. `kind` is the class of the error."""

    kind: str
    message: str
    is_expected: bool  # one of the engine's own errors, which says all
