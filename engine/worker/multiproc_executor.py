"""MultiprocExecutor: one worker process per rank (vLLM's `mp`), on this machine or on several.

Tells them each step, through shared memory here and over a NodeLink on other nodes, and watches
them: a rank or a node that ends, stands still or fails is named, with its last log lines, and the
others are ended. No torch here.
"""

from __future__ import annotations

import pickle
import select
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import NoReturn, cast

from engine.config import EngineConfig
from engine.core.handshake import error_from_name
from engine.kv_sizing import KVCacheSpec
from engine.logger import get_logger
from engine.machine.addresses import interface_of
from engine.machine.processes import rss_bytes
from engine.rank_layout import rank_places
from engine.sched.scheduler_output import GrammarBitmask, ModelRunnerOutput, SchedulerOutput
from engine.sched.snapshot import RankSnapshot
from engine.worker.local_ranks import (
    EXIT_S,
    LocalRanks,
    WorkerCommand,
    WorkerProcess,
    worker_command,
)
from engine.worker.node_messages import (
    AskLooks,
    AskRoom,
    FromRank,
    Looks,
    NodeStopped,
    RankEnded,
    Room,
    Serving,
    ToRanks,
)
from engine.worker.ram import ram_for_cache, ram_reserved
from engine.worker.rank_memory import PeerGoneError
from engine.worker.rank_progress import StepNote, stray_ranks
from engine.worker.rank_steps import (
    TIMED_STEPS,
    PendingStep,
    RankError,
    SampledTokens,
    ToldRank,
    disagrees_on_blocks,
    disagrees_on_step,
    mean_times,
    rank_with_other_blocks,
    tightest_rank,
)
from engine.worker.remote_nodes import (
    RemoteNode,
    end_nodes,
    gather_nodes,
    open_store,
    welcome_nodes,
)
from engine.worker.standstill import LOOK_S, ProcessLook, StandstillWatch
from engine.worker.worker_messages import (
    Call,
    Failure,
    Meeting,
    NodePlace,
    RankLost,
    Step,
    StepAnswer,
)

logger = get_logger(__name__)

_CALL_LOOKS = 60
"""So often a rank may be seen without a moment of CPU time in a call: it may wait for a file."""


class MultiprocExecutor:
    """The Executor of several ranks, each in a process of its own."""

    def __init__(
        self, config: EngineConfig, worker_command: WorkerCommand = worker_command
    ) -> None:
        self._config = config
        self._is_on_cpu = config.device.device == "cpu"
        self._places = rank_places(config.parallel)
        self._output_rank = next(place.rank for place in self._places if place.is_output)
        self._weight_bytes: list[int] = []  # of each rank, as are the cache's
        self._cache_bytes: list[int] = []
        self._specs: list[KVCacheSpec] = []  # of each rank's cache, once the memory was measured
        self._num_steps_done = 0
        self._waiting: deque[PendingStep] = deque()
        self._outputs: deque[ModelRunnerOutput] = deque()  # whose steps are not over everywhere
        self._sampled = SampledTokens()
        self._tightest = 0
        self._nodes = gather_nodes(config)
        self._told = {rank: ToldRank() for node in self._nodes for rank in node.ranks}
        try:
            self._local = self._start(worker_command)
        except BaseException as error:
            end_nodes(self._nodes, str(error))
            raise
        self._poll = select.poll()
        for descriptor in self.wake_descriptors:
            self._poll.register(descriptor, select.POLLIN)

    # ---- the start -----------------------------------------------------------------------------

    def _start(self, command: WorkerCommand) -> LocalRanks:
        if not self._nodes:
            return LocalRanks(self._config, command, on_full=self.check_health)
        host = self._nodes[0].link.local_host
        with open_store(host) as listener:
            meeting = Meeting(host, listener.getsockname()[1])
            welcome_nodes(self._nodes, meeting)
            node = NodePlace(meeting, interface_of(host), listener.fileno())
            return LocalRanks(self._config, command, node, on_full=self.check_health)

    def load_model(self) -> None:
        """Every rank prepares its device and loads its part of the weights."""
        self._call_all("init_device")
        self._call_all("load_model")

    def determine_available_memory(self) -> int:
        """Bytes for the KV cache of the rank that has room for the fewest blocks."""
        self._weight_bytes = cast(list[int], self._call_all("warm_up"))
        rooms = [self._room_at(node) if self._is_on_cpu else 0 for node in self._nodes]
        room = self._room_here() if self._is_on_cpu else 0
        method = "determine_available_memory"
        self._tell_here(_packed(Call(method, (room // len(self._local.workers),))))
        for node, room in zip(self._nodes, rooms, strict=True):
            self._tell_node(node, _packed(Call(method, (room // len(node.ranks),))))
        available = cast(list[int], self._answers_to(method))
        self._specs = cast(list[KVCacheSpec], self._call_all("get_kv_cache_spec"))
        self._tightest = tightest_rank(available, self._specs)
        return available[self._tightest]

    def _room_here(self) -> int:
        """RAM for the KV cache of this machine's ranks, all together."""
        return ram_for_cache(
            self._config, _sum(self._weight_bytes, self._config.parallel.local_ranks)
        )

    def _room_at(self, node: RemoteNode) -> int:
        self._send(node, AskRoom(_sum(self._weight_bytes, node.ranks)))
        while not node.rooms:
            self._ask_nodes()
            self._answers(LOOK_S)
        return node.rooms.pop()

    def get_kv_cache_spec(self) -> KVCacheSpec:
        """Of the rank that has room for the fewest blocks, once the memory was measured."""
        return self._specs[self._tightest]

    def initialize_kv_cache(self, num_blocks: int) -> int:
        """As many blocks on every rank, whose block tables are the same; the RAM of this machine
        that it all may take.
        """
        self._cache_bytes = cast(list[int], self._call_all("initialize_kv_cache", num_blocks))
        if other := rank_with_other_blocks(self._cache_bytes, self._specs, num_blocks):
            rank, found = other
            self._fail(disagrees_on_blocks(self._name(rank), found, num_blocks), rank)
        for node in self._nodes:
            weights, caches = (
                _sum(one, node.ranks) for one in (self._weight_bytes, self._cache_bytes)
            )
            self._send(node, Serving(weights, caches))
        if not self._is_on_cpu:
            return 0
        local = self._config.parallel.local_ranks
        return ram_reserved(_sum(self._weight_bytes, local), _sum(self._cache_bytes, local))

    def _call_all(self, method: str, *arguments: object) -> list[object]:
        """The ranks' answers in order; raises what one of them could not do."""
        self._tell(Call(method, arguments))
        return self._answers_to(method)

    def _answers_to(self, method: str) -> list[object]:
        answers: dict[int, object] = {}
        watch = StandstillWatch(_CALL_LOOKS)
        while len(answers) < len(self._places):
            found = self._answers_until_look()
            for rank, answer in found:
                (answers[rank],) = cast(tuple[object], answer)
            owing = [place.rank for place in self._places if place.rank not in answers]
            if not found and owing:
                self._require_movement(watch, f"during {method}", owing)
        return [answers[place.rank] for place in self._places]

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
            found = self._answers_until_look()
            for rank, answer in found:
                self._take_step(rank, answer)
            if not found:
                self._require_movement(watch, "in a step that the others wait for")

    def choose_tokens(self, _bitmask: GrammarBitmask | None) -> None:
        """No step is started before the tokens of its requests are known."""

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
        for rank, answer in self._answers(0.0):
            self._take_step(rank, answer)

    @property
    def wake_descriptors(self) -> Sequence[int]:
        """Readable when there is something for `check_health`."""
        here = [worker.socket.fileno() for worker in self._local.workers]
        return [*here, *(node.link.fileno() for node in self._nodes)]

    def _take_step(self, rank: int, answer: object) -> None:
        """A step is over once its output has come, and what each rank elsewhere noted of it."""
        output = answer
        if isinstance(answer, StepAnswer):
            self._told[rank].take(answer)
            output = answer.output
        if output is not None:
            assert isinstance(output, ModelRunnerOutput), output
            self._outputs.append(output)
        while self._outputs and all(
            told.num_steps > self._num_steps_done for told in self._told.values()
        ):
            self._num_steps_done += 1
            self._require_agreement(self._num_steps_done)
            output = self._outputs.popleft()
            self._sampled.add(output)
            self._waiting.popleft().set_result(output)

    def _require_agreement(self, number: int) -> None:
        """RankError when a rank computed something else in that step than the others: its part of
        every sum is wrong, and so are all tokens.
        """
        notes = {place.rank: self._note(place.rank, number) for place in self._places}
        if stray := stray_ranks(notes, self._output_rank):
            names = [self._name(rank) for rank in notes if rank not in stray]
            self._fail(disagrees_on_step(self._name(stray[0]), names, number), stray[0])

    def _note(self, rank: int, number: int) -> StepNote | None:
        told = self._told.get(rank)
        return self._local.progress(rank).note(number) if told is None else told.note(number)

    # ---- what ranks are told, and say ----------------------------------------------------------

    def _tell(self, message: object) -> None:
        packed = _packed(message)
        self._tell_here(packed)
        for node in self._nodes:
            self._tell_node(node, packed)

    def _tell_here(self, packed: bytes) -> None:
        try:
            self._local.send(memoryview(packed))
        except PeerGoneError:
            self._fail_with_ended()

    def _tell_node(self, node: RemoteNode, packed: bytes) -> None:
        self._send(node, ToRanks(packed))

    def _send(self, node: RemoteNode, message: object) -> None:
        try:
            node.link.send(message)
        except PeerGoneError:
            self._look_for_ended_nodes()  # it may have said why
            self._fail(
                f"{_upper(node)} is gone: it takes no message any more, shutting down executor."
            )

    def _answers_until_look(self) -> list[tuple[int, object]]:
        """As `_answers`, within LOOK_S; halfway the nodes are asked what their ranks do."""
        found = self._answers(LOOK_S / 2)
        if not found:
            self._ask_nodes()
        return found or self._answers(LOOK_S / 2)

    def _answers(self, timeout_s: float) -> list[tuple[int, object]]:
        """(rank, answer) of those that have answered; waits for the first of them so long at most.

        Raises what one of them could not do.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            found = list(self._ready_answers(max(0.0, deadline - time.monotonic())))
            if found or time.monotonic() >= deadline:
                # A rank that failed is why others have lost it.
                found.sort(key=lambda one: isinstance(one[1], RankLost))
                return [(rank, self._checked(rank, answer)) for rank, answer in found]

    def _ready_answers(self, timeout_s: float) -> Iterator[tuple[int, object]]:
        ready = {found for found, _ in self._poll.poll(timeout_s * 1000)}
        try:
            for worker in self._local.workers:
                if worker.socket.fileno() in ready:
                    yield worker.place.rank, worker.answers.receive()
            for node in self._nodes:
                if node.link.fileno() in ready:
                    yield from self._heard(node)
        except PeerGoneError:
            self._fail_with_ended()

    def _heard(self, node: RemoteNode) -> Iterator[tuple[int, object]]:
        """What its ranks have answered; the rest that it says is noted."""
        for message in node.link.receive():
            if isinstance(message, FromRank):
                answer = pickle.loads(message.answer)  # from a node with our secret
                if isinstance(answer, Failure):  # why it ends, and so before its end is told
                    self._checked(message.rank, answer)
                yield message.rank, answer
            elif isinstance(message, Looks):
                node.note_looks(message)
            elif isinstance(message, Room):
                node.rooms.append(message.num_bytes)
            elif isinstance(message, RankEnded):
                self._fail_with_rank(message.rank, message.exit_code, message.last_lines)
            elif isinstance(message, NodeStopped):
                self._fail(f"{_upper(node)} is gone: {message.reason}, shutting down executor.")

    def _checked(self, rank: int, answer: object) -> object:
        if isinstance(answer, RankLost):
            self._fail_with_ended()
        if not isinstance(answer, Failure):
            return answer
        self._require_agreement(self._num_steps_done + 1)  # which may be why it failed
        reason = (
            f"{self._name(rank)} failed with {answer.kind}: {answer.message} (see its traceback "
            "above)."
        )
        self._end_all(reason)
        if answer.is_expected:
            raise error_from_name(answer.kind, answer.message)
        raise RankError(reason)

    def _name(self, rank: int) -> str:
        """As an error has it; with its node where there are several."""
        name, parallel = self._places[rank].name, self._config.parallel
        if parallel.nnodes == 1:
            return name
        node = next((one for one in self._nodes if rank in one.ranks), None)
        host = parallel.master_addr if node is None else node.host
        return f"{name} (node {0 if node is None else node.number}, {host})"

    # ---- what `top` shows ----------------------------------------------------------------------

    def rank_snapshots(self) -> Sequence[RankSnapshot]:
        """Each rank's memory and times: here as they are now, elsewhere as of the last step."""
        here = (self._snapshot_here(worker) for worker in self._local.workers)
        return [*here, *(self._snapshot_there(n, r) for n in self._nodes for r in n.ranks)]

    def _snapshot_here(self, worker: WorkerProcess) -> RankSnapshot:
        rank, pid = worker.place.rank, worker.process.pid
        progress = self._local.progress(rank)
        return self._snapshot(
            rank,
            node=None if not self._nodes else self._config.parallel.master_addr,
            pid=pid,
            state=worker.state,
            notes=progress.latest(TIMED_STEPS),
            num_steps=progress.steps[1],
            held_bytes=rss_bytes(pid) if self._is_on_cpu else progress.device_bytes,
        )

    def _snapshot_there(self, node: RemoteNode, rank: int) -> RankSnapshot:
        told = self._told[rank]
        look = node.looks.get(rank)
        return self._snapshot(
            rank,
            node=node.host,
            pid=told.pid,
            state="stopped" if look is not None and look.is_stopped else "running",
            notes=told.notes,
            num_steps=told.num_steps,
            held_bytes=told.held_bytes,
        )

    def _snapshot(
        self,
        rank: int,
        *,
        node: str | None,
        pid: int,
        state: str,
        notes: Collection[StepNote],
        num_steps: int,
        held_bytes: int | None,
    ) -> RankSnapshot:
        place = self._places[rank]
        step_s, waited_s = mean_times(notes)
        return RankSnapshot(
            name=place.name,
            stage=place.stage,
            tensor_rank=place.tensor_rank,
            pid=pid,
            node=node,
            state=state,
            num_steps=num_steps,
            step_s=step_s,
            waited_s=waited_s,
            weight_bytes=self._weight_bytes[rank],
            kv_cache_bytes=self._cache_bytes[rank],
            held_bytes=held_bytes,
        )

    # ---- ends ----------------------------------------------------------------------------------

    def _require_movement(
        self, watch: StandstillWatch, where: str, owing: Collection[int] | None = None
    ) -> None:
        """RankError when a rank that others wait for, or a node, does nothing. To be called when
        nobody has answered for LOOK_S; without `owing` those are waited for that have come least
        far.
        """
        if any(node.unanswered for node in self._nodes):
            return  # what its ranks do is not known
        looks = self._local.looks()
        for node in self._nodes:
            looks.update(node.looks)
        if owing is not None:
            looks = {rank: ProcessLook((), looks[rank].clocks) for rank in owing if rank in looks}
        if looks and (still := watch.look(looks)):
            self._fail_with_still(still, looks, watch.seconds, where)

    def _ask_nodes(self) -> None:
        """What their ranks do; RankError for a node that has not answered for long."""
        for node in self._nodes:
            if node.is_silent:
                self._fail(
                    f"{_upper(node)} has not answered for {node.silent_s:g} s: its process is "
                    "stopped, or the network between it and node 0 is cut, shutting down executor."
                )
            self._send(node, AskLooks())
            node.unanswered += 1

    def _fail_with_still(
        self, ranks: Sequence[int], looks: Mapping[int, ProcessLook], seconds: float, where: str
    ) -> NoReturn:
        """Some ranks do nothing; where one has gone astray, that is why."""
        self._require_agreement(self._num_steps_done + 1)
        why = " It is stopped by a signal or a debugger." if looks[ranks[0]].is_stopped else ""
        names = ", ".join(f"{self._name(rank)}{self._pid_words(rank)}" for rank in ranks)
        self._fail(
            f"Worker proc {names} has not moved for {seconds:g} s {where}, shutting down executor."
            f"{why}",
            ranks[0],
        )

    def _pid_words(self, rank: int) -> str:
        pids = {one.place.rank: one.process.pid for one in self._local.workers}
        pid = pids.get(rank) or (self._told[rank].pid if rank in self._told else 0)
        return f" (pid {pid})" if pid else ""

    def _fail_with_ended(self) -> NoReturn:
        """Some socket has closed: that of a rank or of a node, or the first that has ended."""
        deadline = time.monotonic() + EXIT_S
        while time.monotonic() < deadline:
            if (worker := self._local.ended()) is not None:
                self._fail_with_rank(worker.place.rank, worker.exit_code(EXIT_S))
            self._look_for_ended_nodes()
            time.sleep(0.01)
        if self._nodes:
            self._fail(
                "A rank cannot reach another one, and none is known to have ended: the network "
                "between the nodes is cut, or lets these ports not through, shutting down executor."
            )
        self._fail_with_rank(self._local.workers[0].place.rank, None)

    def _look_for_ended_nodes(self) -> None:
        """RankError where a rank or a node elsewhere is known to have ended."""
        ready, _, _ = select.select([node.link for node in self._nodes], [], [], 0)
        for node in self._nodes:
            if node.link not in ready:
                continue
            try:
                for _ in self._heard(node):
                    pass
            except PeerGoneError:
                self._fail(
                    f"{_upper(node)} is gone: its process has ended, or the network between it and "
                    "node 0 is cut, shutting down executor."
                )

    def _fail_with_rank(
        self, rank: int, code: int | None, last_lines: Sequence[str] | None = None
    ) -> NoReturn:
        self._fail(
            f"Worker proc {self._name(rank)} died unexpectedly (exit code: {code}), shutting down "
            "executor.",
            rank,
            last_lines,
        )

    def _fail(
        self, reason: str, rank: int | None = None, last_lines: Sequence[str] | None = None
    ) -> NoReturn:
        """End all and raise; with the last lines of a rank's log, which are here for local ones."""
        logger.error("%s", reason)
        if last_lines is None and rank in self._config.parallel.local_ranks:
            assert rank is not None
            last_lines = self._local.last_lines(rank)
        for line in last_lines or ():
            assert rank is not None
            logger.error("last lines of %s: %s", self._name(rank), line)
        self._end_all(reason)
        raise RankError(reason)

    def shutdown(self) -> None:
        """End the ranks: they stop at the next message, or are killed."""
        if self._local.workers:
            count = len(self._places)
            logger.info("[shutdown] Executor: waiting for worker exit count=%d", count)
            for node in self._nodes:
                node.tell_end(None)
            if self._local.stop():
                logger.info("[shutdown] Executor: all workers exited gracefully")
            else:
                logger.warning("[shutdown] Executor: workers still running after grace period")
        self._end_all(None)

    def _end_all(self, reason: str | None) -> None:
        nodes, self._nodes = self._nodes, []
        end_nodes(nodes, reason, meanwhile=self._local.end)


def _packed(message: object) -> bytes:
    """As ranks get it, here and elsewhere."""
    return pickle.dumps(message, protocol=5)


def _sum(of_ranks: Sequence[int], ranks: range) -> int:
    """Of some of all ranks."""
    return sum(of_ranks[ranks.start : ranks.stop])


def _upper(node: RemoteNode) -> str:
    """At the beginning of a sentence."""
    return str(node).capitalize()
