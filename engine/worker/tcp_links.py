"""TcpLinks: what one rank has of others on other machines, all of it through torch.distributed."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from datetime import timedelta

import numpy as np
import torch
import torch.distributed
from torch import Tensor

from engine.config import EngineConfig
from engine.kernels.step_batch import FloatArray
from engine.layers.parallel import RankGroup
from engine.rank_layout import RankPlace
from engine.worker.rank_channels import Channels
from engine.worker.rank_links import RankLinks, group_of_stage, log_meeting
from engine.worker.worker_messages import NodePlace, WorkerInit


@dataclass(frozen=True, slots=True)
class TcpLinks(RankLinks):
    """Links between machines, once the process group of all ranks is there.

    States stay in shared memory where both stages are on this node (`states_in`, `states_out`), and
    so do the sums of the native kernels (`sums`). `hidden_size` is the length of a state; `group`
    are the tensor ranks of this stage, where they are made already.
    """

    hidden_size: int = 0
    group: RankGroup | None = None

    def join(self, device: torch.device) -> RankGroup:
        """The tensor ranks of this stage out of the process group."""
        return self.group or group_of_stage(self.place, self.waits)

    def send_states(self, states: Tensor) -> None:
        """From the first tensor rank to all ranks of the next stage."""
        if self.states_out is not None:
            RankLinks.send_states(self, states)
            return
        if self.place.is_last_stage or self.place.tensor_rank:
            return
        following = (self.place.stage + 1) * self.place.tensor_size
        for rank in range(following, following + self.place.tensor_size):
            torch.distributed.send(states.float().contiguous().cpu(), rank)

    def receive_states(self, num_tokens: int) -> FloatArray:
        """Of the first tensor rank of the stage before."""
        if self.states_in is not None:
            return RankLinks.receive_states(self, num_tokens)
        states = torch.empty(num_tokens, self.hidden_size)
        with self.waits.running():
            torch.distributed.recv(states, (self.place.stage - 1) * self.place.tensor_size)
        found: FloatArray = np.asarray(states.numpy())
        return found


def group_backend(config: EngineConfig) -> str:
    """States travel through gloo, on GPUs sums through NCCL."""
    return "gloo" if config.device.device == "cpu" else "cpu:gloo,cuda:nccl"


def open_node_links(init: WorkerInit, channels: Channels, num_cores: int) -> TcpLinks:
    """Meet the ranks of all nodes; waits until all have come."""
    assert init.node is not None, "the ranks of one node meet in a file"
    links = TcpLinks.open(init, channels, num_cores)
    _meet(init.config, links.place, links.local_rank, init.node)
    # Here and not in `join`: all ranks make the groups, and one with other kernels joins none.
    group = group_of_stage(links.place, links.waits)
    return replace(links, hidden_size=init.config.model.hidden_size, group=group)


def _meet(config: EngineConfig, place: RankPlace, local_rank: int, node: NodePlace) -> None:
    if node.interface is not None:
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, node.interface)
    limit = timedelta(seconds=config.parallel.distributed_timeout_s)
    meeting, backend = node.meeting, group_backend(config)
    sums = "gloo" if config.device.device == "cpu" else "nccl"
    log_meeting(place, local_rank, f"tcp://{meeting.host}:{meeting.port}", sums)
    store = torch.distributed.TCPStore(  # type: ignore[attr-defined]
        meeting.host,
        meeting.port,
        is_master=node.listener is not None,
        wait_for_workers=False,
        timeout=limit,
        master_listen_fd=node.listener,
    )
    torch.distributed.init_process_group(
        backend, store=store, rank=place.rank, world_size=place.world_size
    )
