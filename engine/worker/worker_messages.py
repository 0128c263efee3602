"""What EngineCore and its worker processes say to each other, pickled: both are of one program."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.config import EngineConfig
from engine.sched.scheduler_output import ModelRunnerOutput, SchedulerOutput
from engine.worker.rank_channels import ChannelMap
from engine.worker.rank_progress import StepNote


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the ranks of several nodes find each other: a store of torch, which rank 0 serves."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class NodePlace:
    """What a rank of an engine on several nodes knows of its own node.

    `interface` is the network's that leads to the others, None where it has no name; `listener` is
    the descriptor of the store's listening socket, which rank 0 has.
    """

    meeting: Meeting
    interface: str | None
    listener: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerInit:
    """The first message, over the socket itself. Descriptors are open in the worker.

    `states_out` are sockets to the ranks of the next stage; `store` is a file in memory where the
    ranks find each other, where they are all on one node: `node` is None then.
    """

    config: EngineConfig
    rank: int
    channels: ChannelMap
    memory: int
    store: int
    states_in: int | None
    states_out: tuple[int, ...]
    node: NodePlace | None = None


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
class StepAnswer:
    """What a rank on another node, or of Ray, says after a step, since its memory is not
    EngineCore's.

    `held_bytes` is of that machine's RAM, or of its GPU's memory.
    """

    output: ModelRunnerOutput | None  # of the rank that samples
    note: StepNote
    pid: int
    held_bytes: int | None


@dataclass(frozen=True, slots=True)
class RankLost:
    """An answer: the rank waits in vain for another one, which must have ended."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An answer: the rank cannot go on. `kind` is the class of the error."""

    kind: str
    message: str
    is_expected: bool  # one of the engine's own errors, which says all
