"""Where in the shared memory each channel of an engine's ranks lies, the same in every process.

EngineCore writes steps for all ranks, each rank answers EngineCore, and the first tensor rank of a
pipeline stage writes its hidden states for all ranks of the next.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import EngineConfig
from engine.kernels.native.library import RankMemory, RankSizes
from engine.rank_layout import RankPlace, rank_places
from engine.worker.rank_memory import (
    LastLines,
    Layout,
    MessageRing,
    RingShape,
    SharedMemory,
)
from engine.worker.rank_progress import Progress

_MESSAGE_BYTES = 16 << 20
_STATES_BYTES = 64 << 20
_NUM_SLOTS = 8
LEAST_TOKENS = 16
"""A warm-up has so many tokens, whatever a step may have."""


@dataclass(frozen=True, slots=True)
class ChannelMap:
    """Slices of the memory; one per rank, the hidden states' one per stage but the last."""

    steps: slice
    answers: tuple[slice, ...]
    progress: tuple[slice, ...]
    last_lines: tuple[slice, ...]
    states: tuple[slice, ...]
    sums: tuple[slice, ...]  # of each stage's tensor ranks, for the native kernels
    sum_sizes: RankSizes
    num_bytes: int
    places: tuple[RankPlace, ...]
    local: range  # the ranks on this node, which read the steps; the others' slices stay untouched

    @classmethod
    def of(cls, config: EngineConfig) -> ChannelMap:
        places, local = tuple(rank_places(config.parallel)), config.parallel.local_ranks
        layout, shapes = Layout(), _Shapes(len(local), places[0].tensor_size)
        sizes = RankSizes(
            places[0].tensor_size,
            max(config.scheduler.max_num_batched_tokens, LEAST_TOKENS),
            config.model.hidden_size,
            config.model.vocab_size,
        )
        return cls(
            steps=layout.take(shapes.steps.num_bytes),
            answers=tuple(layout.take(shapes.answers.num_bytes) for _ in places),
            progress=tuple(layout.take(Progress.NUM_BYTES) for _ in places),
            last_lines=tuple(layout.take(LastLines.NUM_BYTES) for _ in places),
            states=tuple(
                layout.take(shapes.states.num_bytes) for _ in range(places[0].num_stages - 1)
            ),
            sums=tuple(layout.take(sizes.num_bytes) for _ in range(places[0].num_stages)),
            sum_sizes=sizes,
            num_bytes=layout.num_bytes,
            places=places,
            local=local,
        )

    def are_local(self, stage: int) -> bool:
        """Whether all tensor ranks of that stage are on this node."""
        return all(one.rank in self.local for one in self.places if one.stage == stage)

    def stay_here(self, stage: int) -> bool:
        """Whether the states that `stage` hands on come from this node and do not leave it."""
        return stage * self.places[0].tensor_size in self.local and self.are_local(stage + 1)


@dataclass(frozen=True, slots=True)
class _Shapes:
    num_ranks: int
    tensor_size: int

    @property
    def steps(self) -> RingShape:
        return RingShape(self.num_ranks, _NUM_SLOTS, _MESSAGE_BYTES)

    @property
    def answers(self) -> RingShape:
        return RingShape(1, _NUM_SLOTS, _MESSAGE_BYTES)

    @property
    def states(self) -> RingShape:
        return RingShape(self.tensor_size, _NUM_SLOTS, _STATES_BYTES)


class Channels:
    """The channels as one process sees them."""

    def __init__(self, channel_map: ChannelMap, memory: SharedMemory) -> None:
        self._map = channel_map
        self._view = memory.view
        self._address = memory.address()
        places = channel_map.places
        self._shapes = _Shapes(len(channel_map.local), places[0].tensor_size)

    def steps(self) -> MessageRing:
        return MessageRing(self._view[self._map.steps], self._shapes.steps)

    def answers(self, rank: int) -> MessageRing:
        return MessageRing(self._view[self._map.answers[rank]], self._shapes.answers)

    def states(self, stage: int) -> MessageRing:
        """Hidden states that `stage` leaves for the next one."""
        return MessageRing(self._view[self._map.states[stage]], self._shapes.states)

    def sums(self, stage: int) -> RankMemory:
        """What the tensor ranks of `stage` add up."""
        return RankMemory.at(self._address + self._map.sums[stage].start, self._map.sum_sizes)

    def progress(self, rank: int) -> Progress:
        return Progress(self._view[self._map.progress[rank]])

    def last_lines(self, rank: int) -> LastLines:
        return LastLines(self._view[self._map.last_lines[rank]])
