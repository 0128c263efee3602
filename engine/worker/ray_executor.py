"""RayExecutor: one Ray actor per rank, on the machines of a Ray cluster that runs already.

Owns the placement group and the actors; the ranks speak to each other over TCP
(`engine/worker/ray_rank.py`). No torch here. Ray is imported when the executor is made.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NoReturn

from engine.config import EngineConfig
from engine.core.handshake import error_from_name
from engine.errors import ConfigError, EngineError
from engine.kv_sizing import KVCacheSpec
from engine.logger import get_logger
from engine.rank_layout import RankPlace, rank_places
from engine.sched.scheduler_output import GrammarBitmask, ModelRunnerOutput, SchedulerOutput
from engine.sched.snapshot import RankSnapshot
from engine.worker.rank_progress import StepNote, stray_ranks
from engine.worker.rank_steps import (
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
from engine.worker.worker_messages import Step, StepAnswer

logger = get_logger(__name__)

_PLACEMENT_S = 60.0
_ANSWER_S = 5.0


@dataclass(frozen=True, slots=True)
class _Rank:
    place: RankPlace
    actor: Any
    address: str  # of its machine
    node: str  # Ray's name for it
    pid: int
    told: ToldRank = field(default_factory=ToldRank)

    def __str__(self) -> str:
        return f"{self.place.name} (node {self.address}, {self.node[:8]}, pid {self.pid})"


class RayExecutor:
    """The Executor of ranks on the machines of a Ray cluster (vLLM's `ray`)."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._ray = ray = _connect()
        self._group = _place(ray, config)
        self._sampled = SampledTokens()
        self._turns = itertools.count()  # of what ranks have to do in order
        self._weight_bytes: list[int] = []  # of each rank, as are the cache's
        self._cache_bytes: list[int] = []
        self._specs: list[KVCacheSpec] = []  # of each rank's cache, once the memory was measured
        self._tightest = 0
        self._dead: str | None = None
        self._is_over = False
        self._wake, self._waker = socket.socketpair()
        self._ranks: list[_Rank] = []
        try:
            self._ranks = self._start(rank_places(config.parallel))
        except BaseException:
            self.shutdown()
            raise
        for rank in self._ranks:
            threading.Thread(
                target=self._watch, args=(rank,), name=f"watch-{rank.place.name}", daemon=True
            ).start()

    def _start(self, places: Sequence[RankPlace]) -> list[_Rank]:
        """Actors in their places; the first one's machine is where all of them meet."""
        from engine.worker.ray_rank import RayRank

        on_gpu = self._config.device.device != "cpu"
        strategy = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        actor_class = self._ray.remote(RayRank)
        actors = [
            actor_class.options(
                num_cpus=0 if on_gpu else 1,
                num_gpus=1 if on_gpu else 0,
                # The call that lasts as long as the actor, the steps that are under way, and one
                # more: they wait for their turn there, since Ray keeps no order among them.
                max_concurrency=2 + self.max_concurrent_batches,
                scheduling_strategy=strategy(self._group, placement_group_bundle_index=place.rank),
            ).remote(self._config, place)
            for place in places
        ]
        homes = self._get([actor.home.remote() for actor in actors], places)
        ranks = [
            _Rank(place, actor, *home)
            for place, actor, home in zip(places, actors, homes, strict=True)
        ]
        for rank in ranks:
            logger.info("%s is an actor of Ray.", rank)
        meeting = self._get([ranks[0].actor.meeting_point.remote()], places)[0]
        nodes = [rank.node for rank in ranks]
        self._get(
            [rank.actor.join.remote(meeting, nodes.count(rank.node)) for rank in ranks], places
        )
        return ranks

    def load_model(self) -> None:
        """Every rank prepares its device and loads its part of the weights."""
        self._call_all("init_device")
        self._call_all("load_model")

    def determine_available_memory(self) -> int:
        """Bytes for the KV cache of the rank that has room for the fewest blocks."""
        self._weight_bytes = self._call_all("warm_up")
        rooms = [rank.actor.ram_share.remote() for rank in self._ranks]
        turn, method = next(self._turns), "determine_available_memory"
        available = self._get(
            [
                rank.actor.call.remote(turn, method, room)
                for rank, room in zip(self._ranks, rooms, strict=True)
            ],
            [rank.place for rank in self._ranks],
        )
        self._specs = self._call_all("get_kv_cache_spec")
        self._tightest = tightest_rank(available, self._specs)
        return int(available[self._tightest])

    def get_kv_cache_spec(self) -> KVCacheSpec:
        """Of the rank that has room for the fewest blocks, once the memory was measured."""
        return self._specs[self._tightest]

    def initialize_kv_cache(self, num_blocks: int) -> int:
        """As many blocks on every rank; no RAM of this machine is counted for them."""
        self._cache_bytes = self._call_all("initialize_kv_cache", num_blocks)
        if other := rank_with_other_blocks(self._cache_bytes, self._specs, num_blocks):
            self._fail(disagrees_on_blocks(str(self._ranks[other[0]]), other[1], num_blocks))
        return 0

    def execute_model(self, scheduler_output: SchedulerOutput) -> Future[ModelRunnerOutput]:
        """Tell all ranks; the future waits for the output rank when its result is asked for."""
        self.check_health()
        step, turn = self._ray.put(Step(scheduler_output, self._sampled.take())), next(self._turns)
        answers = [rank.actor.execute_model.remote(turn, step) for rank in self._ranks]
        return PendingStep(lambda pending: pending.set_result(self._take_step(answers)))

    def _take_step(self, answers: list[Any]) -> ModelRunnerOutput:
        found: list[StepAnswer] = self._get(answers, [rank.place for rank in self._ranks])
        for rank, answer in zip(self._ranks, found, strict=True):
            rank.told.take(answer)
        self._require_agreement([answer.note for answer in found])
        (output,) = [answer.output for answer in found if answer.output is not None]
        self._sampled.add(output)
        return output

    def _require_agreement(self, notes: Sequence[StepNote]) -> None:
        """RankError when a rank computed something else than the others."""
        (output_rank,) = [one.place.rank for one in self._ranks if one.place.is_output]
        if stray := stray_ranks(dict(enumerate(notes)), output_rank):
            names = [one.place.name for one in self._ranks if one.place.rank not in stray]
            self._fail(disagrees_on_step(str(self._ranks[stray[0]]), names, notes[0].number))

    def rank_snapshots(self) -> Sequence[RankSnapshot]:
        """Each rank's memory and times, as of the last step."""
        return [self._snapshot(rank) for rank in self._ranks]

    def _snapshot(self, rank: _Rank) -> RankSnapshot:
        step_s, waited_s = mean_times(rank.told.notes)
        return RankSnapshot(
            name=rank.place.name,
            stage=rank.place.stage,
            tensor_rank=rank.place.tensor_rank,
            pid=rank.pid,
            node=rank.address,
            state="running",  # the engine ends with the first that is gone
            num_steps=rank.told.num_steps,
            step_s=step_s,
            waited_s=waited_s,
            weight_bytes=self._weight_bytes[rank.place.rank],
            kv_cache_bytes=self._cache_bytes[rank.place.rank],
            held_bytes=rank.told.held_bytes,
        )

    def choose_tokens(self, _bitmask: GrammarBitmask | None) -> None:
        """No step is started before the tokens of its requests are known."""

    @property
    def max_concurrent_batches(self) -> int:
        """One for each pipeline stage."""
        return self._config.parallel.pipeline_parallel_size

    def call_workers(self, method: str, *arguments: object) -> list[object]:
        """The answers of all ranks, which finish what they were told before."""
        return self._call_all(method, *arguments)

    def check_health(self) -> None:
        """RankError when a rank or its machine is gone."""
        if self._dead is not None:
            self._fail(self._dead)

    @property
    def wake_descriptors(self) -> Sequence[int]:
        """Readable when a rank has gone."""
        return [self._wake.fileno()]

    def shutdown(self) -> None:
        """End the actors and give their places back; may be called more than once."""
        if self._is_over:
            return
        self._is_over = True
        with contextlib.suppress(Exception):  # a cluster that is gone has nothing to give back
            for rank in self._ranks:
                self._ray.kill(rank.actor)
            self._ray.util.remove_placement_group(self._group)
            self._ray.shutdown()
        self._wake.close()
        self._waker.close()

    # ---- inside --------------------------------------------------------------------------------

    def _call_all(self, method: str, *arguments: object) -> list[Any]:
        turn = next(self._turns)
        calls = [rank.actor.call.remote(turn, method, *arguments) for rank in self._ranks]
        return self._get(calls, [rank.place for rank in self._ranks])

    def _get(self, calls: list[Any], places: Sequence[RankPlace]) -> list[Any]:
        """The answers in order; the first rank that fails, in time, is named."""
        answers: dict[Any, Any] = {}
        left = list(calls)
        while left:
            (done,), left = self._ray.wait(left, num_returns=1)
            try:
                answers[done] = self._ray.get(done)
            except Exception as error:
                self._fail_of(places[calls.index(done)], error)
        return [answers[call] for call in calls]

    def _fail_of(self, place: RankPlace, error: Exception) -> NoReturn:
        cause = getattr(error, "cause", None)
        if isinstance(cause, EngineError):
            raise error_from_name(type(cause).__name__, str(cause)) from None
        known = [rank for rank in self._ranks if rank.place == place]
        name = str(known[0]) if known else place.name
        if isinstance(error, self._ray.exceptions.RayActorError):
            self._fail(_died(name, error))
        self._fail(f"Worker proc {name} failed: {_first_line(cause or error)}")

    def _fail(self, reason: str) -> NoReturn:
        logger.error("%s", reason)
        self.shutdown()
        raise RankError(reason)

    def _watch(self, rank: _Rank) -> None:
        """Waits as long as the rank lives; its end, or its machine's, is seen without a step."""
        with contextlib.suppress(Exception):
            try:
                self._ray.get(rank.actor.live.remote())
            except self._ray.exceptions.RayActorError as error:
                if not self._is_over:
                    self._dead = self._dead or _died(str(rank), error)
                    self._waker.send(b".")


def _connect() -> Any:
    """Ray, joined to the cluster that runs; ConfigError says how to have one."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_COLOR_PREFIX", "0")
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise ConfigError(
            "--distributed-executor-backend ray needs Ray: pip install 'stoker[ray]'."
        ) from error
    if not ray.is_initialized():
        address = os.environ.get("RAY_ADDRESS", "auto")
        try:
            _require_answer(address)
            ray.init(address=address, logging_level=logging.WARNING)
        except OSError as error:
            where = "" if address == "auto" else f" at RAY_ADDRESS={address}"
            raise ConfigError(
                f"There is no Ray cluster{where} that this machine belongs to. Type "
                "`ray start --head` here and `ray start --address HEAD:6379` on the others, or set "
                "RAY_ADDRESS."
            ) from error
    return ray


def _require_answer(address: str) -> None:
    """OSError where nobody listens: Ray itself would try for two minutes and end the process."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "://" not in address:
        socket.create_connection((host, int(port)), timeout=_ANSWER_S).close()


def _place(ray: Any, config: EngineConfig) -> Any:
    """A bundle per rank, close together; ConfigError when the cluster has no room for them."""
    unit = "CPU" if config.device.device == "cpu" else "GPU"
    num_ranks = config.parallel.world_size
    group = ray.util.placement_group([{unit: 1}] * num_ranks, strategy="PACK")
    ready, _ = ray.wait([group.ready()], timeout=_PLACEMENT_S)
    if not ready:
        has = ray.cluster_resources().get(unit, 0)
        ray.util.remove_placement_group(group)
        raise ConfigError(
            f"The Ray cluster has {has:g} {unit}s and not {num_ranks} free ones, one for each rank "
            "of this engine. Add machines, stop what runs there, or lower "
            "--tensor-parallel-size and --pipeline-parallel-size."
        )
    return group


def _died(name: str, error: Exception) -> str:
    return f"Worker proc {name} died unexpectedly ({_first_line(error)}), shutting down executor."


def _first_line(error: object) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
