"""RayRank: one rank as an actor of Ray, and its way to the others: TCP, also between machines."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch.distributed

from engine.config import EngineConfig
from engine.logger import setup_logging
from engine.machine.memory import free_ram_bytes
from engine.rank_layout import RankPlace
from engine.worker.rank_progress import Progress
from engine.worker.tcp_links import TcpLinks, group_backend
from engine.worker.worker import Worker
from engine.worker.worker_messages import Step, StepAnswer

_Result = TypeVar("_Result")


class RayRank:
    """What the executor calls, in the order that stands here; `live` lasts beside the others."""

    def __init__(self, config: EngineConfig, place: RankPlace) -> None:
        setup_logging(place.name)
        self._config = config
        self._place = place
        self._num_neighbours = 1
        self._next_turn = 0
        self._turns = threading.Condition()
        # One thread for all of the worker: torch and OpenMP keep settings and threads for each.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="worker")

    def home(self) -> tuple[str, str, int]:
        """The address of this machine in the cluster, Ray's name for it, and this process."""
        import ray

        node = ray.get_runtime_context().get_node_id()
        return _address(), node, os.getpid()

    def live(self) -> None:
        """Wait for the end of this process."""
        threading.Event().wait()

    def meeting_point(self) -> str:
        """A free port of this machine, for all ranks to meet."""
        with socket.socket() as found:
            found.bind((_address(), 0))
            host, port = found.getsockname()
        return f"tcp://{host}:{port}"

    def join(self, meeting_point: str, num_neighbours: int) -> None:
        """Meet the other ranks; `num_neighbours` of this engine are on this machine."""
        place = self._place
        self._num_neighbours = num_neighbours
        torch.distributed.init_process_group(
            group_backend(self._config),
            init_method=meeting_point,
            rank=place.rank,
            world_size=place.world_size,
        )
        self._progress = Progress(bytearray(Progress.NUM_BYTES))
        self._links = TcpLinks(
            place,
            num_cores=1,
            progress=self._progress,
            hidden_size=self._config.model.hidden_size,
        )
        self._worker = Worker(self._config, self._links)

    def call(self, turn: int, method: str, *arguments: object) -> object:
        """A method of the worker that every rank runs."""
        return self._in_turn(turn, lambda: getattr(self._worker, method)(*arguments))

    def _in_turn(self, turn: int, work: Callable[[], _Result]) -> _Result:
        """The calls of the executor one after the other, in the order in which it made them.

        Calls of an actor with several threads may overtake each other: one whose arguments are here
        does not wait for an earlier one whose arguments are still on their way.
        """
        with self._turns:
            self._turns.wait_for(lambda: self._next_turn == turn)
        try:
            return self._thread.submit(work).result()
        finally:
            with self._turns:
                self._next_turn += 1
                self._turns.notify_all()

    def ram_share(self) -> int:
        """Of the RAM that is free on this machine every rank of the engine gets as much, bytes."""
        return free_ram_bytes() // self._num_neighbours

    def execute_model(self, turn: int, step: Step) -> StepAnswer:
        """Run a step; the executor compares what the ranks noted of it."""
        return self._in_turn(turn, lambda: self._run(step))

    def _run(self, step: Step) -> StepAnswer:
        with self._links.step():
            output = self._worker.execute_model(step.scheduler_output, step.sampled)
        (note,) = self._progress.latest(1)
        told = output if self._place.is_output else None
        return StepAnswer(told, note, os.getpid(), self._worker.held_bytes)


def _address() -> str:
    import ray

    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
