"""LocalRanks: the worker processes of one machine, as the process that started them holds them.

Starts them, writes to all of them at once through shared memory, reads what each answers, and
knows what is left of one that has ended. No torch here.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from engine.config import EngineConfig
from engine.errors import EngineError
from engine.machine.children import engine_command, kill_session, spawn
from engine.machine.processes import is_stopped, process_clock
from engine.rank_layout import RankPlace
from engine.worker.rank_channels import ChannelMap, Channels
from engine.worker.rank_memory import Inbox, Outbox, PeerGoneError, SharedMemory
from engine.worker.rank_progress import Progress
from engine.worker.standstill import ProcessLook
from engine.worker.worker_messages import NodePlace, WorkerInit
from engine.worker.worker_proc import LENGTH

EXIT_S = 3.0
"""What processes get to end by themselves."""

WorkerCommand = Callable[[str, int], Sequence[str]]
"""Makes the command of a rank from its name and the descriptor that it is spoken to over."""


def worker_command(name: str, control: int) -> Sequence[str]:
    return engine_command("worker", "--name", name, "--control", str(control))


class LocalRanks:
    """Empty again after `end`."""

    def __init__(
        self,
        config: EngineConfig,
        command: WorkerCommand = worker_command,
        node: NodePlace | None = None,
        on_full: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_full` is called while there is no room for a message, and may raise. EngineError when
        a process cannot be started.
        """
        self._map = ChannelMap.of(config)
        self._memory = SharedMemory.create(self._map.num_bytes)
        self._channels = Channels(self._map, self._memory)
        self.workers: list[WorkerProcess] = []
        try:
            self._start(config, command, node)
        except OSError as error:
            self.end()
            raise EngineError(f"The worker processes could not be started: {error}.") from error
        sockets = [worker.socket for worker in self.workers]
        self._steps = Outbox(self._channels.steps(), sockets, on_full)

    def _start(self, config: EngineConfig, command: WorkerCommand, node: NodePlace | None) -> None:
        store = os.memfd_create("stoker-store")
        pairs = _StageSockets(self._map)
        of_others = None if node is None else replace(node, listener=None)
        listener = [] if node is None or node.listener is None else [node.listener]
        try:
            for rank in self._map.local:
                place = self._map.places[rank]
                inherited = [self._memory.descriptor, store, *pairs.descriptors(place)]
                inherited += listener if rank == 0 else []
                worker = WorkerProcess.start(place, inherited, self._channels, command)
                self.workers.append(worker)
                worker.introduce(
                    WorkerInit(
                        config,
                        rank,
                        self._map,
                        self._memory.descriptor,
                        store,
                        *pairs.of(place),
                        node=of_others if rank else node,
                    )
                )
        finally:
            pairs.close()
            os.close(store)

    def send(self, message: memoryview) -> None:
        """To all of them; PeerGoneError when one has ended."""
        self._steps.send_bytes(message)

    def progress(self, rank: int) -> Progress:
        return self._channels.progress(rank)

    def looks(self) -> dict[int, ProcessLook]:
        """By rank: how far each is, and what its processes do."""
        return {
            worker.place.rank: ProcessLook.at(
                worker.process.pid, self.progress(worker.place.rank).steps
            )
            for worker in self.workers
        }

    def last_lines(self, rank: int) -> list[str]:
        """Of the rank's log, also when it is gone."""
        return self._channels.last_lines(rank).read()

    def ended(self) -> WorkerProcess | None:
        """The first of them that has."""
        return next((one for one in self.workers if one.process.poll() is not None), None)

    def stop(self) -> bool:
        """Have them stop at the next message; whether all have."""
        with contextlib.suppress(PeerGoneError, EngineError):
            self.send(memoryview(pickle.dumps(None)))
        deadline = time.monotonic() + EXIT_S
        codes = [one.exit_code(deadline - time.monotonic()) for one in self.workers]
        return None not in codes

    def end(self) -> None:
        """Kill what is left."""
        for worker in self.workers:
            worker.end()
        self.workers.clear()
        self._memory.close()


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """One rank."""

    place: RankPlace
    process: subprocess.Popen[bytes]
    socket: socket.socket
    answers: Inbox

    @classmethod
    def start(
        cls,
        place: RankPlace,
        inherited: Sequence[int],
        channels: Channels,
        command: WorkerCommand,
    ) -> WorkerProcess:
        ours, theirs = socket.socketpair()
        with theirs:
            process = spawn(
                command(place.name, theirs.fileno()),
                stdout=1,
                stderr=2,
                pass_fds=(*inherited, theirs.fileno()),
            )
        return cls(place, process, ours, Inbox(channels.answers(place.rank), 0, ours))

    def introduce(self, init: WorkerInit) -> None:
        message = pickle.dumps(init)
        self.socket.sendall(LENGTH.pack(len(message)) + message)

    def exit_code(self, timeout_s: float) -> int | None:
        """None while it runs; a signal's number is negative."""
        try:
            return self.process.wait(max(0.0, timeout_s))
        except subprocess.TimeoutExpired:
            return None

    @property
    def state(self) -> str:
        """As RankSnapshot has it."""
        if process_clock(self.process.pid) is None:
            return "gone"
        return "stopped" if is_stopped(self.process.pid) else "running"

    def end(self) -> None:
        kill_session(self.process)
        self.socket.close()


class _StageSockets:
    """Sockets from the first tensor rank of each stage to all ranks of the next, where both are on
    this node.
    """

    def __init__(self, channel_map: ChannelMap) -> None:
        self._pairs = {
            place.rank: socket.socketpair()
            for place in channel_map.places
            if not place.is_first_stage and channel_map.stay_here(place.stage - 1)
        }

    def of(self, place: RankPlace) -> tuple[int | None, tuple[int, ...]]:
        """The descriptor that the rank reads, and those that it writes."""
        pair = self._pairs.get(place.rank)
        next_stage = (place.stage + 1) * place.tensor_size
        readers = range(next_stage, next_stage + place.tensor_size)
        writes = place.tensor_rank == 0 and next_stage in self._pairs
        return (
            None if pair is None else pair[1].fileno(),
            tuple(self._pairs[rank][0].fileno() for rank in readers) if writes else (),
        )

    def descriptors(self, place: RankPlace) -> Iterator[int]:
        reads, writes = self.of(place)
        yield from () if reads is None else (reads,)
        yield from writes

    def close(self) -> None:
        """The workers have them now."""
        for pair in self._pairs.values():
            for one in pair:
                one.close()
