"""A node without an API server: its ranks, and the way from EngineCore on node 0 to them.

It starts the ranks when node 0 says so, hands on what comes from there, tells what its ranks
answer and which of them has ended, and ends with node 0. No torch here.
"""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import time
from collections.abc import Callable

from engine.config import EngineConfig, ParallelConfig
from engine.core.memory_turn import hold_memory
from engine.env import device_starts
from engine.errors import ConfigError, EngineError
from engine.logger import get_logger, setup_logging
from engine.machine.addresses import interface_of
from engine.node_key import read_node_key
from engine.rank_layout import node_name
from engine.version import __version__
from engine.worker.local_ranks import LocalRanks, WorkerProcess
from engine.worker.node_link import NodeLink, StrangerError
from engine.worker.node_messages import (
    AskLooks,
    AskRoom,
    End,
    FromRank,
    Join,
    Looks,
    NodeStopped,
    RankEnded,
    Refused,
    Room,
    Serving,
    ToRanks,
    Welcome,
)
from engine.worker.ram import ram_for_cache, ram_reserved
from engine.worker.rank_memory import PeerGoneError
from engine.worker.rank_steps import RankError
from engine.worker.remote_nodes import settings_of
from engine.worker.worker_messages import NodePlace

logger = get_logger(__name__)

_TRY_AGAIN_S = 0.5
_CONNECT_S = 5.0
_SAY_EVERY_S = 10.0
_EXIT_S = 1.0
_FULL_S = 4.0


def run_node(node_rank: int, configure: Callable[[], EngineConfig]) -> int:
    """Serve node 0 to its end; returns the process's exit code.

    0: node 0 or a signal ended it. 1: node 0, a rank or another node failed. 2: wrong flags.
    """
    setup_logging(node_name(node_rank))
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # so far there is nothing that has to be ended
    try:
        config = configure()
        return _run(config, _StopSignal())
    except EngineError as error:
        logger.error("%s: %s", type(error).__name__, error)
        return 2 if isinstance(error, ConfigError) else 1


def _run(config: EngineConfig, stop: _StopSignal) -> int:
    parallel = config.parallel
    link = _join(config, stop)
    if link is None:
        return 0
    logger.info(
        "Joined node 0 at %s:%d; waiting for the other nodes.",
        parallel.master_addr,
        parallel.master_port,
    )
    try:
        welcome = _wait_for_start(link, stop)
        if welcome is None:
            _say_stopped(link, stop)
            return 0
        place = NodePlace(welcome.meeting, interface_of(link.local_host))
        return _HeadlessNode(config, link, place, stop).run()
    except EngineError as error:
        with contextlib.suppress(PeerGoneError):
            link.send(NodeStopped(str(error)))
        raise
    finally:
        link.close()


class _StopSignal:
    """SIGINT and SIGTERM become something to read."""

    def __init__(self) -> None:
        self._read, self._write = socket.socketpair()
        self._write.setblocking(False)
        self.number: int | None = None
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def fileno(self) -> int:
        return self._read.fileno()

    def _note(self, number: int, _frame: object) -> None:
        self.number = number
        with contextlib.suppress(OSError):
            self._write.send(b".")

    def came_within(self, timeout_s: float) -> bool:
        """Whether one has come; waits for so long at most."""
        return bool(select.select([self], [], [], timeout_s)[0])


def _join(config: EngineConfig, stop: _StopSignal) -> NodeLink | None:
    """Node 0 may come later than this one; None when a signal comes first."""
    parallel = config.parallel
    secret = read_node_key(parallel.node_key_file)
    address = parallel.master_addr, parallel.master_port
    deadline, say_at = time.monotonic() + parallel.distributed_timeout_s, 0.0
    while True:
        try:
            connection = socket.create_connection(address, _CONNECT_S)
        except OSError as error:
            if time.monotonic() >= deadline:
                raise EngineError(_nobody_there(parallel, error)) from error
            if time.monotonic() >= say_at:
                say_at = time.monotonic() + _SAY_EVERY_S
                logger.info("Waiting for node 0 at %s:%d.", *address)
            if stop.came_within(_TRY_AGAIN_S):
                return None
            continue
        try:
            link = NodeLink.connected(connection, secret)
            link.send(Join(parallel.node_rank, __version__, settings_of(config)))
        except (StrangerError, PeerGoneError) as error:
            connection.close()
            raise ConfigError(
                f"Node 0 at {address[0]}:{address[1]} does not take this one: {error}. Give both "
                "the same --node-key-file, and --master-port to node 0 itself."
            ) from error
        return link


def _nobody_there(parallel: ParallelConfig, error: OSError) -> str:
    return (
        f"There is no node 0 at {parallel.master_addr}:{parallel.master_port} after "
        f"{parallel.distributed_timeout_s:g} s (--distributed-timeout-seconds): "
        f"{error.strerror or error}. Type the command of this node there, with --node-rank 0; this "
        "machine must reach that address and port."
    )


def _wait_for_start(link: NodeLink, stop: _StopSignal) -> Welcome | None:
    """Until all nodes are there; None when a signal comes first."""
    ready, _, _ = select.select([link.fileno(), stop.fileno()], [], [])
    if stop.fileno() in ready:
        return None
    try:
        message = link.receive_one(_CONNECT_S)
    except PeerGoneError as error:
        raise EngineError("Node 0 has ended before all nodes were there.") from error
    if isinstance(message, Refused):
        raise ConfigError(f"Node 0 refuses this node: {message.reason}")
    if isinstance(message, End):
        raise EngineError(f"Node 0 has ended the start: {message.reason}")
    assert isinstance(message, Welcome), message
    return message


def _say_stopped(link: NodeLink, stop: _StopSignal) -> None:
    name = signal.Signals(stop.number or signal.SIGTERM).name
    logger.info("[shutdown] Node: trigger received signal=%s", name)
    with contextlib.suppress(PeerGoneError):
        link.send(NodeStopped(f"it was ended there ({name})"))


class _HeadlessNode:
    """The loop: messages of node 0, answers of the ranks, and the signals that end it."""

    def __init__(
        self, config: EngineConfig, link: NodeLink, place: NodePlace, stop: _StopSignal
    ) -> None:
        self._config = config
        self._link = link
        self._stop = stop
        self._full_until = 0.0
        self._ranks = LocalRanks(config, node=place, on_full=self._require_patience)
        self._poll = select.poll()
        ranks = (worker.socket.fileno() for worker in self._ranks.workers)
        for descriptor in (link.fileno(), stop.fileno(), *ranks):
            self._poll.register(descriptor, select.POLLIN)

    def run(self) -> int:
        """Until node 0, a failure or a signal ends it; the exit code."""
        try:
            while True:
                ready = {descriptor for descriptor, _ in self._poll.poll()}
                if self._stop.fileno() in ready:
                    return self._leave()
                code = self._hear() if self._link.fileno() in ready else None
                if code is not None:
                    return code
                for worker in self._ranks.workers:
                    if worker.socket.fileno() in ready:
                        self._tell(worker)
        except PeerGoneError as error:
            return self._without_node_0(error)
        finally:
            self._ranks.end()

    def _leave(self) -> int:
        _say_stopped(self._link, self._stop)
        self._ranks.end()
        self._link.finish(_EXIT_S)
        return 0

    def _without_node_0(self, error: PeerGoneError) -> int:
        """It may have said why, and closed before it took our last word."""
        with contextlib.suppress(PeerGoneError):
            for message in self._link.receive():
                if isinstance(message, End):
                    return self._end(message)
        why = f": {error}" if str(error) else ""
        logger.error("Node 0 at %s is gone%s.", self._config.parallel.master_addr, why)
        return 1

    def _hear(self) -> int | None:
        """What node 0 says; the exit code where that ends this node."""
        for message in self._link.receive():
            if isinstance(message, End):
                return self._end(message)
            self._obey(message)
        return None

    def _obey(self, message: object) -> None:
        if isinstance(message, ToRanks):
            self._full_until = time.monotonic() + _FULL_S
            with contextlib.suppress(PeerGoneError):  # its socket says so too, and tells which
                self._ranks.send(memoryview(message.message))
        elif isinstance(message, AskLooks):
            self._link.send(Looks(self._ranks.looks()))
        elif isinstance(message, AskRoom):
            self._link.send(Room(ram_for_cache(self._config, message.weight_bytes)))
        elif isinstance(message, Serving):
            self._hold_memory(message)
            names = ", ".join(worker.place.name for worker in self._ranks.workers)
            logger.info("Node serves node 0 at %s with %s.", self._link.peer_host, names)

    def _hold_memory(self, serving: Serving) -> None:
        """Let later starts on this machine see what the cache may come to hold, touched or not."""
        if (device := self._config.device.device) == "cpu":
            hold_memory(device, ram_reserved(serving.weight_bytes, serving.cache_bytes))
        else:
            device_starts("cpu").leave_with_server()

    def _require_patience(self) -> None:
        """A rank that takes nothing must not keep this process from hearing of the end."""
        if time.monotonic() > self._full_until:
            raise EngineError(f"The ranks of this node have taken no message for {_FULL_S:g} s.")

    def _end(self, message: End) -> int:
        """The exit code; RankError where something went wrong."""
        if message.reason is None:
            logger.info("[shutdown] Node: node 0 has ended, waiting for worker exit")
            self._ranks.stop()
            return 0
        logger.error("Node 0 ends this node.")
        raise RankError(message.reason)

    def _tell(self, worker: WorkerProcess) -> None:
        rank = worker.place.rank
        try:
            answer = worker.answers.receive_bytes()
        except PeerGoneError:
            self._poll.unregister(worker.socket.fileno())
            code = worker.exit_code(_EXIT_S)
            logger.error("%s has ended (exit code: %s).", worker.place.name, code)
            self._link.send(RankEnded(rank, code, self._ranks.last_lines(rank)))
            return
        self._link.send(FromRank(rank, answer))
