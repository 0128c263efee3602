"""RankLinks: what one rank has of the others. Tensor ranks sum, pipeline stages hand states on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch
import torch.distributed
from torch import Tensor

from engine.kernels.native.library import RankMemory
from engine.kernels.step_batch import FloatArray, StepBatch
from engine.layers.parallel import OneRank, RankGroup, TorchRanks, WaitClock
from engine.logger import get_logger
from engine.rank_layout import WHOLE, RankPlace
from engine.worker.rank_channels import Channels
from engine.worker.rank_memory import (
    Inbox,
    Outbox,
    PeerGoneError,
    RankLostError,
    inherited_socket,
)
from engine.worker.rank_progress import Progress
from engine.worker.worker_messages import WorkerInit

logger = get_logger(__name__)

_LinksT = TypeVar("_LinksT", bound="RankLinks")


@dataclass(frozen=True, slots=True)
class RankLinks:
    """A rank's place and its ways to others; the default is a rank that has the whole model."""

    place: RankPlace = WHOLE
    num_cores: int | None = None  # this rank's share; None is all that the process may use
    store: int | None = None
    states_in: Inbox | None = None
    states_out: Outbox | None = None
    sums: RankMemory | None = None  # of the tensor ranks of this stage
    progress: Progress | None = None
    waits: WaitClock = field(default_factory=WaitClock)
    local_rank: int = 0  # number of this rank's device among those that its process sees

    @classmethod
    def open(cls: type[_LinksT], init: WorkerInit, channels: Channels, num_cores: int) -> _LinksT:
        """Of a worker process, from the descriptors that it was given."""
        place = init.channels.places[init.rank]
        states_in = states_out = None
        if init.states_in is not None:
            source = inherited_socket(init.states_in)
            states_in = Inbox(channels.states(place.stage - 1), place.tensor_rank, source)
        if init.states_out:
            targets = [inherited_socket(one) for one in init.states_out]
            states_out = Outbox(channels.states(place.stage), targets)
        shares_memory = place.tensor_size > 1 and init.channels.are_local(place.stage)
        return cls(
            place,
            num_cores,
            init.store,
            states_in,
            states_out,
            channels.sums(place.stage) if shares_memory else None,
            channels.progress(init.rank),
            local_rank=place.rank - init.channels.local.start,
        )

    def join(self, device: torch.device) -> RankGroup:
        """The tensor ranks of this stage as a process group; waits until all have come."""
        place = self.place
        if self.store is None or place.tensor_size == 1:
            return OneRank()
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # nobody outside this machine takes part
        store = torch.distributed.FileStore(  # type: ignore[attr-defined]
            f"/proc/self/fd/{self.store}", place.world_size
        )
        backend = "gloo" if device.type == "cpu" else "nccl"
        log_meeting(place, self.local_rank, "file://memory", backend)
        torch.distributed.init_process_group(
            backend, store=store, rank=place.rank, world_size=place.world_size
        )
        group = group_of_stage(place, self.waits)
        logger.info(
            "rank %d in world size %d is assigned as DP rank %d, PP rank %d, TP rank %d",
            place.rank,
            place.world_size,
            place.replica or 0,
            place.stage,
            place.tensor_rank,
        )
        return group

    @property
    def waited_s(self) -> float:
        """Seconds that this rank has waited for others, in all."""
        in_kernels = 0 if self.sums is None else self.sums.waited_ns(self.place.tensor_rank)
        return self.waits.seconds + in_kernels / 1e9

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Around a step: notes how long it takes, and how much of that is waiting."""
        assert self.progress is not None, "a rank alone notes nothing"
        self.progress.begin_step()
        before_s = self.waited_s
        yield
        self.progress.end_step(self.waited_s - before_s)

    def note_batch(self, batch: StepBatch) -> None:
        """What this rank is about to compute, for EngineCore to compare."""
        if self.progress is not None:
            self.progress.note_batch(batch)

    def send_states(self, states: Tensor) -> None:
        """Float32 [T, hidden] for the next stage; the first tensor rank's are those of all."""
        if self.states_out is not None:
            flat: FloatArray = states.contiguous().cpu().numpy()
            with _lost_when_gone():
                self.states_out.send_bytes(flat.data.cast("B"))

    def receive_states(self, num_tokens: int) -> FloatArray:
        """Float32 [T, hidden] of the stage before."""
        assert self.states_in is not None, "the first stage begins with the tokens"
        with _lost_when_gone():
            with self.waits.running():
                received = self.states_in.receive_bytes()
            data = bytearray(received)  # torch wants to be able to write
        return np.frombuffer(data, dtype=np.float32).reshape(num_tokens, -1)


@contextlib.contextmanager
def _lost_when_gone() -> Iterator[None]:
    """A neighbour's end is not EngineCore's."""
    try:
        yield
    except PeerGoneError as error:
        raise RankLostError("a neighbour in the pipeline") from error


def log_meeting(place: RankPlace, local_rank: int, method: str, backend: str) -> None:
    """vLLM's line of a rank that joins the others."""
    logger.info(
        "world_size=%d rank=%d local_rank=%d distributed_init_method=%s backend=%s",
        place.world_size,
        place.rank,
        local_rank,
        method,
        backend,
    )


def group_of_stage(place: RankPlace, waits: WaitClock) -> RankGroup:
    """The tensor ranks of the stage, out of the process group that all ranks have joined.

    Every rank makes the groups of all stages, as torch.distributed wants it.
    """
    firsts = range(0, place.world_size, place.tensor_size)
    groups = [
        torch.distributed.new_group(range(first, first + place.tensor_size)) for first in firsts
    ]
    return OneRank() if place.tensor_size == 1 else TorchRanks(groups[place.stage], waits)
