"""MultiprocExecutor: one worker process per rank on this machine (vLLM's `mp`). No torch here.

Starts them, tells them each step through shared memory, and watches them: a rank that ends, stands
still or fails is named, with its last log lines, and the others are ended.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NoReturn, cast

from engine.config import EngineConfig
from engine.core.handshake import error_from_name
from engine.errors import EngineError
from engine.kv_sizing import KVCacheSpec
from engine.logger import get_logger
from engine.machine.children import engine_command, kill_session, spawn
from engine.machine.processes import process_clock, rss_bytes
from engine.rank_layout import RankPlace
from engine.sched.scheduler_output import ModelRunnerOutput, SchedulerOutput
from engine.sched.snapshot import RankSnapshot
from engine.worker.ram import ram_for_cache, ram_reserved
from engine.worker.rank_channels import ChannelMap, Channels
from engine.worker.rank_memory import Inbox, Outbox, PeerGoneError, SharedMemory
from engine.worker.rank_progress import stray_ranks
from engine.worker.rank_steps import (
    TIMED_STEPS,
    PendingStep,
    RankError,
    SampledTokens,
    disagrees_on_blocks,
    disagrees_on_step,
    mean_times,
    rank_with_other_blocks,
    tightest_rank,
)
from engine.worker.standstill import LOOK_S, StandstillWatch, is_stopped
from engine.worker.worker_messages import Call, Failure, RankLost, Step, WorkerInit
from engine.worker.worker_proc import LENGTH

logger = get_logger(__name__)

_EXIT_S = 3.0
_CALL_LOOKS = 60
"""So often a rank may be seen without a moment of CPU time in a call: it may wait for a file."""

_WorkerCommand = Callable[[str, int], Sequence[str]]
"""Makes the command of a rank from its name and the descriptor that it is spoken to over."""


def _worker_command(name: str, control: int) -> Sequence[str]:
    return engine_command("worker", "--name", name, "--control", str(control))


class MultiprocExecutor:
    """The Executor of several ranks, each in a process of its own."""

    def __init__(
        self, config: EngineConfig, worker_command: _WorkerCommand = _worker_command
    ) -> None:
        self._config = config
        self._worker_command = worker_command
        self._is_on_cpu = config.device.device == "cpu"
        self._weight_bytes: list[int] = []  # of each rank, as are the cache's
        self._cache_bytes: list[int] = []
        self._specs: list[KVCacheSpec] = []  # of each rank's cache, once the memory was measured
        self._num_steps_done = 0
        channel_map = ChannelMap.of(config)
        self._memory = SharedMemory.create(channel_map.num_bytes)
        self._channels = Channels(channel_map, self._memory)
        self._progress = [self._channels.progress(place.rank) for place in channel_map.places]
        self._output_rank = next(place.rank for place in channel_map.places if place.is_output)
        self._workers: list[_WorkerProcess] = []
        self._waiting: deque[PendingStep] = deque()
        self._sampled = SampledTokens()
        self._tightest = 0
        try:
            self._start(config, channel_map)
        except OSError as error:
            self._end_all()
            raise EngineError(f"The worker processes could not be started: {error}.") from error
        sockets = [worker.socket for worker in self._workers]
        self._steps = Outbox(self._channels.steps(), sockets, self.check_health)
        self._poll = select.poll()
        for worker in self._workers:
            self._poll.register(worker.socket, select.POLLIN)

    # ---- the start -----------------------------------------------------------------------------

    def _start(self, config: EngineConfig, channel_map: ChannelMap) -> None:
        store = os.memfd_create("stoker-store")
        pairs = _StageSockets(channel_map.places)
        try:
            for place in channel_map.places:
                inherited = [self._memory.descriptor, store, *pairs.descriptors(place)]
                worker = _WorkerProcess.start(
                    place, inherited, self._channels, self._worker_command
                )
                self._workers.append(worker)
                init = WorkerInit(
                    config,
                    place.rank,
                    channel_map,
                    self._memory.descriptor,
                    store,
                    *pairs.of(place),
                )
                worker.introduce(init)
        finally:
            pairs.close()
            os.close(store)

    def load_model(self) -> None:
        """Every rank prepares its device and loads its part of the weights."""
        self._call_all("init_device")
        self._call_all("load_model")

    def determine_available_memory(self) -> int:
        """Bytes for the KV cache of the rank that has room for the fewest blocks."""
        self._weight_bytes = cast(list[int], self._call_all("warm_up"))
        room = ram_for_cache(self._config, sum(self._weight_bytes)) if self._is_on_cpu else 0
        share = room // len(self._workers)  # all ranks are on this machine
        available = cast(list[int], self._call_all("determine_available_memory", share))
        self._specs = cast(list[KVCacheSpec], self._call_all("get_kv_cache_spec"))
        self._tightest = tightest_rank(available, self._specs)
        return available[self._tightest]

    def get_kv_cache_spec(self) -> KVCacheSpec:
        """Of the rank that has room for the fewest blocks, once the memory was measured."""
        return self._specs[self._tightest]

    def initialize_kv_cache(self, num_blocks: int) -> int:
        """As many blocks on every rank, whose block tables are the same; the RAM that it all may
        take.
        """
        self._cache_bytes = cast(list[int], self._call_all("initialize_kv_cache", num_blocks))
        if other := rank_with_other_blocks(self._cache_bytes, self._specs, num_blocks):
            worker = self._workers[other[0]]
            self._fail(disagrees_on_blocks(worker.place.name, other[1], num_blocks), worker)
        if not self._is_on_cpu:
            return 0
        return ram_reserved(sum(self._weight_bytes), sum(self._cache_bytes))

    def _call_all(self, method: str, *arguments: object) -> list[object]:
        """The ranks' answers in order; raises what one of them could not do."""
        self._tell(Call(method, arguments))
        answers: dict[int, object] = {}
        watch = StandstillWatch(_CALL_LOOKS)
        while len(answers) < len(self._workers):
            ready = self._ready(LOOK_S)
            for worker in ready:
                (answers[worker.place.rank],) = cast(tuple[object], self._answer(worker))
            owing = [one for one in self._workers if one.place.rank not in answers]
            if not ready and (still := watch.look({one.process.pid: () for one in owing})):
                self._fail_with_still(still, watch.seconds, f"during {method}")
        return [answers[rank] for rank in range(len(self._workers))]

    # ---- steps ---------------------------------------------------------------------------------

    def execute_model(self, scheduler_output: SchedulerOutput) -> Future[ModelRunnerOutput]:
        """Tell all ranks; the future waits for the output rank when its result is asked for."""
        self._tell(Step(scheduler_output, self._sampled.take()))
        step = PendingStep(self._finish_until)
        self._waiting.append(step)
        return step

    def _finish_until(self, wanted: PendingStep) -> None:
        """Take answers, the oldest step's first, until the one of `wanted` is there."""
        watch = StandstillWatch()
        while not wanted.done():
            ready = self._ready(LOOK_S)
            for worker in ready:
                self._take_step(worker)
            if not ready and (still := watch.look(self._steps_of_ranks())):
                self._fail_with_still(still, watch.seconds, "in a step that the others wait for")

    def _steps_of_ranks(self) -> dict[int, tuple[int, ...]]:
        return {one.process.pid: self._progress[one.place.rank].steps for one in self._workers}

    @property
    def max_concurrent_batches(self) -> int:
        """One for each pipeline stage."""
        return self._config.parallel.pipeline_parallel_size

    def call_workers(self, method: str, *arguments: object) -> list[object]:
        """The answers of all ranks, which finish what they were told before."""
        if self._waiting:
            self._finish_until(self._waiting[-1])
        return self._call_all(method, *arguments)

    def check_health(self) -> None:
        """RankError when a rank has ended or failed; takes answers that have come."""
        for worker in self._ready(0.0):
            self._take_step(worker)

    @property
    def wake_descriptors(self) -> Sequence[int]:
        """Readable when there is something for `check_health`."""
        return [worker.socket.fileno() for worker in self._workers]

    def _take_step(self, worker: _WorkerProcess) -> None:
        output = self._answer(worker)
        assert isinstance(output, ModelRunnerOutput), output
        self._num_steps_done += 1
        self._require_agreement(self._num_steps_done)
        self._sampled.add(output)
        self._waiting.popleft().set_result(output)

    def _require_agreement(self, number: int) -> None:
        """RankError when a rank computed something else in that step than the others: its part of
        every sum is wrong, and so are all tokens.
        """
        notes = {rank: progress.note(number) for rank, progress in enumerate(self._progress)}
        if stray := stray_ranks(notes, self._output_rank):
            names = [one.place.name for one in self._workers if one.place.rank not in stray]
            worker = self._workers[stray[0]]
            self._fail(disagrees_on_step(worker.place.name, names, number), worker)

    def _tell(self, message: object) -> None:
        try:
            self._steps.send(message)
        except PeerGoneError:
            self._fail_with_ended()

    def _ready(self, timeout_s: float) -> list[_WorkerProcess]:
        descriptors = {found for found, _ in self._poll.poll(timeout_s * 1000)}
        return [worker for worker in self._workers if worker.socket.fileno() in descriptors]

    def _answer(self, worker: _WorkerProcess) -> object:
        answer: object
        try:
            answer = worker.answers.receive()
        except PeerGoneError:
            answer = RankLost()
        if isinstance(answer, RankLost):
            self._fail_with_ended()
        if not isinstance(answer, Failure):
            return answer
        self._require_agreement(self._num_steps_done + 1)  # which may be why it failed
        self._end_all()
        if answer.is_expected:
            raise error_from_name(answer.kind, answer.message)
        raise RankError(
            f"{worker.place.name} failed with {answer.kind}: {answer.message} (see its traceback "
            "above)."
        )

    def rank_snapshots(self) -> Sequence[RankSnapshot]:
        """Each rank's memory and times, read without a word to it."""
        return [self._snapshot(worker) for worker in self._workers]

    def _snapshot(self, worker: _WorkerProcess) -> RankSnapshot:
        place, pid = worker.place, worker.process.pid
        progress = self._progress[place.rank]
        step_s, waited_s = mean_times(progress.latest(TIMED_STEPS))
        held_bytes = rss_bytes(pid) if self._is_on_cpu else progress.device_bytes
        return RankSnapshot(
            name=place.name,
            stage=place.stage,
            tensor_rank=place.tensor_rank,
            pid=pid,
            node=None,
            state=_state_of(pid),
            num_steps=progress.steps[1],
            step_s=step_s,
            waited_s=waited_s,
            weight_bytes=self._weight_bytes[place.rank],
            kv_cache_bytes=self._cache_bytes[place.rank],
            held_bytes=held_bytes,
        )

    # ---- ends ----------------------------------------------------------------------------------

    def _fail_with_still(self, pids: Sequence[int], seconds: float, where: str) -> NoReturn:
        """Some ranks do nothing; where one has gone astray, that is why."""
        self._require_agreement(self._num_steps_done + 1)
        still = [one for one in self._workers if one.process.pid in pids]
        self._fail(_stands_still(still, seconds, where), still[0])

    def _fail_with_ended(self) -> NoReturn:
        """Some rank's socket has closed: that rank, or the first of those that have ended."""
        worker = self._first_ended()
        code = worker.exit_code(_EXIT_S)
        self._fail(
            f"Worker proc {worker.place.name} died unexpectedly (exit code: {code}), shutting "
            "down executor.",
            worker,
        )

    def _first_ended(self) -> _WorkerProcess:
        deadline = time.monotonic() + _EXIT_S
        while time.monotonic() < deadline:
            for worker in self._workers:
                if worker.process.poll() is not None:
                    return worker
            time.sleep(0.01)
        return self._workers[0]

    def _fail(self, reason: str, worker: _WorkerProcess) -> NoReturn:
        logger.error("%s", reason)
        for line in self._channels.last_lines(worker.place.rank).read():
            logger.error("last lines of %s: %s", worker.place.name, line)
        self._end_all()
        raise RankError(reason)

    def shutdown(self) -> None:
        """End the ranks: they stop at the next message, or are killed."""
        if self._workers:
            logger.info("[shutdown] Executor: waiting for worker exit count=%d", len(self._workers))
            with contextlib.suppress(PeerGoneError, RankError):
                self._steps.send(None)
            deadline = time.monotonic() + _EXIT_S
            codes = [one.exit_code(deadline - time.monotonic()) for one in self._workers]
            if None in codes:
                logger.warning("[shutdown] Executor: workers still running after grace period")
            else:
                logger.info("[shutdown] Executor: all workers exited gracefully")
        self._end_all()

    def _end_all(self) -> None:
        for worker in self._workers:
            worker.end()
        self._workers.clear()
        self._memory.close()


@dataclass(frozen=True, slots=True)
class _WorkerProcess:
    """One rank as EngineCore holds it."""

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
        command: _WorkerCommand,
    ) -> _WorkerProcess:
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

    def end(self) -> None:
        kill_session(self.process)
        self.socket.close()


class _StageSockets:
    """Sockets from the first tensor rank of each stage to all ranks of the next."""

    def __init__(self, places: Sequence[RankPlace]) -> None:
        self._pairs = {
            place.rank: socket.socketpair() for place in places if not place.is_first_stage
        }

    def of(self, place: RankPlace) -> tuple[int | None, tuple[int, ...]]:
        """The descriptor that the rank reads, and those that it writes."""
        pair = self._pairs.get(place.rank)
        next_stage = (place.stage + 1) * place.tensor_size
        readers = range(next_stage, next_stage + place.tensor_size)
        writes = place.tensor_rank == 0 and not place.is_last_stage
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


def _stands_still(workers: Sequence[_WorkerProcess], seconds: float, where: str) -> str:
    names = ", ".join(f"{one.place.name} (pid {one.process.pid})" for one in workers)
    why = " It is stopped by a signal or a debugger." if is_stopped(workers[0].process.pid) else ""
    return (
        f"Worker proc {names} has not moved for {seconds:g} s {where}, shutting down executor.{why}"
    )


def _state_of(pid: int) -> str:
    if process_clock(pid) is None:
        return "gone"
    return "stopped" if is_stopped(pid) else "running"
