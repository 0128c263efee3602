"""WorkerProc: one rank in a process of its own. Does what EngineCore's messages say, in order.

Knows nothing of requests. It ends with EngineCore, whatever way that ends.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import struct
from collections import deque
from pathlib import Path

from engine.errors import EngineError
from engine.logger import get_logger, setup_logging
from engine.machine.cores import pin_to_cores
from engine.machine.secrets import masked
from engine.sched.scheduler_output import ModelRunnerOutput
from engine.worker.rank_channels import Channels
from engine.worker.rank_memory import (
    Inbox,
    LastLines,
    Outbox,
    PeerGoneError,
    RankLostError,
    SharedMemory,
    inherited_socket,
    receive_exactly,
)
from engine.worker.worker_messages import (
    Call,
    Failure,
    RankLost,
    Step,
    StepAnswer,
    WorkerInit,
)

logger = get_logger(__name__)

_NUM_LAST_LINES = 4
LENGTH = struct.Struct("<I")
"""Stands before the first message, which comes through the socket."""


def main(name: str, control: int) -> int:
    """Run one rank until EngineCore ends it; returns the process's exit code."""
    setup_logging(name)
    _take_name(name)
    # EngineCore decides what a signal means for the requests that run.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with inherited_socket(control) as source:
        try:
            return _run(source)
        except PeerGoneError:
            logger.info("Parent process exited, terminating worker queues")
            return 1


def _run(source: socket.socket) -> int:
    init = _first_message(source)
    memory = SharedMemory(init.memory, init.channels.num_bytes)
    channels = Channels(init.channels, memory)
    _keep_last_lines(channels.last_lines(init.rank))
    answers = Outbox(channels.answers(init.rank), [source])
    try:
        proc = WorkerProc(init, channels)
    except Exception as error:
        answers.send(_failure(error, "WorkerProc failed to start."))
        return 1
    inbox = Inbox(channels.steps(), init.rank - init.channels.local.start, source)
    while (message := inbox.receive()) is not None:
        try:
            answer = proc.handle(message)
        except Exception as error:
            if _is_lost_rank(error):
                # EngineCore names the rank that ended, and ends this one.
                logger.info("Another rank is gone: %s", str(error).partition(". ")[0])
                answers.send(RankLost())
                continue
            answers.send(_failure(error, _title(message)))
            return 1
        if answer is not None:
            answers.send(answer)
    return 0


class WorkerProc:
    """The worker of one rank, with its neighbours in the pipeline."""

    def __init__(self, init: WorkerInit, channels: Channels) -> None:
        from engine.worker.rank_links import RankLinks
        from engine.worker.worker import Worker

        self._place = init.channels.places[init.rank]
        self._config = init.config
        num_cores = _own_cores(init)
        self._progress = channels.progress(init.rank)
        if init.node is None:
            self._links = RankLinks.open(init, channels, num_cores)
        else:
            from engine.worker.tcp_links import open_node_links

            self._links = open_node_links(init, channels, num_cores)
        self._worker = Worker(init.config, self._links)

    def handle(self, message: object) -> object:
        """The answer to a message; None when nobody waits for one."""
        if isinstance(message, Call):
            answer = getattr(self._worker, message.method)(*message.arguments)
            self._progress.device_bytes = self._worker.device_bytes
            return (answer,)
        assert isinstance(message, Step), message
        with self._links.step():
            output = self._worker.execute_model(message.scheduler_output, message.sampled)
        told = output if self._place.is_output else None
        return self._step_answer(told) if self._config.parallel.node_rank else told

    def _step_answer(self, output: ModelRunnerOutput | None) -> StepAnswer:
        (note,) = self._progress.latest(1)
        return StepAnswer(output, note, os.getpid(), self._worker.held_bytes)


def _own_cores(init: WorkerInit) -> int:
    """Keep to this rank's share of its own machine; how many cores that are."""
    parallel, local = init.config.parallel, init.channels.local
    before = parallel.data_parallel_rank * len(local)  # ranks of other replicas
    num_processes = parallel.data_parallel_size * len(local)
    return pin_to_cores(before + init.rank - local.start, num_processes)


def _first_message(source: socket.socket) -> WorkerInit:
    (size,) = LENGTH.unpack(receive_exactly(source, LENGTH.size))
    first = receive_exactly(source, size)
    init = pickle.loads(first)  # from EngineCore, which started this process
    assert isinstance(init, WorkerInit), init
    return init


def _take_name(name: str) -> None:
    """What `ps -o comm`, `top` and `htop` show."""
    Path("/proc/self/comm").write_text(name)


def _is_lost_rank(error: Exception) -> bool:
    """Also what torch says of a connection that the other side has dropped."""
    return isinstance(error, RankLostError) or "gloo/transport" in str(error)


def _failure(error: Exception, title: str) -> Failure:
    is_expected = isinstance(error, EngineError)
    kind = type(error).__name__
    if is_expected:
        logger.error("%s", title)
        logger.error("%s: %s", kind, error)
    else:
        logger.exception("%s", title)
    return Failure(kind, str(error), is_expected)


def _title(message: object) -> str:
    is_start = isinstance(message, Call) and message.method not in ("sleep", "wake_up")
    return "WorkerProc failed to start." if is_start else "WorkerProc hit an exception."


def _keep_last_lines(last_lines: LastLines) -> None:
    logging.getLogger("engine").addHandler(_LastLinesHandler(last_lines))


class _LastLinesHandler(logging.Handler):
    """Writes the latest lines where EngineCore finds them when this process is gone."""

    def __init__(self, last_lines: LastLines) -> None:
        super().__init__()
        self._last_lines = last_lines
        self._lines: deque[str] = deque(maxlen=_NUM_LAST_LINES)
        self.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.extend(masked(self.format(record), ()).splitlines())
        self._last_lines.write(list(self._lines))
