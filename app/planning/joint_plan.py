"""One device shared out among several servers, each planned with its own share.

Knows vLLM's rule: a share is of the whole card, and a start wants its share free. On a CPU each
cache gets a size instead. Reads no file, asks no GPU.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.errors import StokerError, UsageError
from app.launch.engines import LLAMA_CPP
from app.planning.memory_estimates import graphs_beside_share
from app.planning.plan import MemoryPlan, make_plan, process_bytes
from app.planning.plan_fixes import fewer_requests_help, quantised_forms
from app.planning.plan_models import PlannedModel
from app.planning.plan_request import LEAST_LENGTH, PlanRequest
from app.planning.start_commands import StartCommand, serve_command
from app.planning.vllm_versions import version_rules
from engine.kv_sizing import cpu_cap, longest_model_len, requested_memory
from engine.machine.sizes import GIB

_STEPS = 100  # shares are hundredths of the card
_MOST = 96  # of them that are given away, so that the desktop and the driver have the rest
_RAM_MOST = 0.92
_ROUNDING = 1 << 20  # a hundredth of a card is not a whole number of bytes
_FEWER_REQUESTS = (64, 16)
_FIRST_PORT = 8000
_NO_FLAG_HELPS = "a larger device, fewer servers, or smaller or quantised models"


@dataclass(frozen=True, slots=True)
class _Case:
    """How high estimates are taken; `context_gib` is CUDA's own memory, in nobody's share."""

    are_high: bool
    context_gib: float


_WORST, _LIKELY = _Case(True, 0.6), _Case(False, 0.4)
_CASES = (_WORST, _Case(False, 0.6), _LIKELY)


@dataclass(frozen=True, slots=True)
class JointStart:
    """A server that is asked for. `has_share`: the user gave --gpu-memory-utilization."""

    model: PlannedModel
    request: PlanRequest
    has_share: bool = False
    port: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JointMember:
    """A server with its place. `held_bytes` is all that it takes, CUDA's own memory included."""

    start: JointStart
    plan: MemoryPlan
    port: int
    held_bytes: int
    command: StartCommand | None  # None where they do not fit


@dataclass(frozen=True, slots=True)
class JointPlan:
    """In the order of the starts. `shortfall` is why they do not fit together.

    Each advice is enough alone, with all other flags as they are; empty when they fit.
    """

    members: tuple[JointMember, ...]
    total_bytes: int
    shortfall: str | None
    fits_at_worst: bool
    advice: tuple[str, ...] = ()

    @property
    def left_bytes(self) -> int:
        """Bytes of the device that none of the servers takes."""
        return self.total_bytes - sum(member.held_bytes for member in self.members)


@dataclass(slots=True)
class _Need:
    """What one server needs at least, and its cache as it grows; bytes."""

    start: JointStart
    plan: MemoryPlan
    fixed: int  # weights, states, activations, processes: all beside the cache
    context: int
    request_bytes: int  # of the cache, for one request of the longest length
    kv: int = field(init=False)
    size: int = 0  # its share

    def __post_init__(self) -> None:
        request = self.plan.request
        least = self.request_bytes
        if request.max_model_len == -1:
            least = self.plan.tightest.spec.bytes_for_one_request(LEAST_LENGTH)
        self.kv = least if request.kv_memory_bytes is None else request.kv_memory_bytes

    @property
    def can_grow(self) -> bool:
        """Whether more memory would make its cache larger."""
        request = self.plan.request
        is_open = request.kv_memory_bytes is None and not self.start.has_share
        return is_open and request.engine != LLAMA_CPP and self.kv < self.most_kv

    @property
    def most_kv(self) -> int:
        """More than this serves nobody: all requests that may run, at their full length."""
        most = self.request_bytes * self.plan.scheduler.max_num_seqs
        if self.plan.request.gpu is None:
            most = min(most, cpu_cap(self.plan.tightest.spec, self.plan.max_model_len))
        return most


def share_out(starts: Sequence[JointStart]) -> JointPlan:
    """Share the device of the first start out among all; StokerError for flags that cannot work.

    Each gets what it needs for one request of its longest length; what is left is shared so that
    all can hold equally many of those.
    """
    _require_one_device(starts)
    joint = _placed(starts)
    if joint.shortfall is None:
        return joint
    advice = tuple(_advice(starts)) or (_NO_FLAG_HELPS,)
    return dataclasses.replace(joint, advice=advice)


def _require_one_device(starts: Sequence[JointStart]) -> None:
    for start in starts:
        request = start.request
        ranks = (
            request.tensor_parallel_size,
            request.pipeline_parallel_size,
            request.data_parallel_size,
            request.nnodes,
        )
        if max(ranks) > 1:
            raise UsageError(
                "several servers are planned on one device",
                hint="leave --tp, --pp, --dp and --nnodes out, or plan each model by itself",
            )
    ports = [start.port for start in starts if start.port is not None]
    if len(set(ports)) < len(ports):
        raise UsageError("two servers cannot listen on one port", hint="give each its own --port")


def _placed(starts: Sequence[JointStart]) -> JointPlan:
    for case in _CASES:
        if (needs := _shares(starts, case)) is not None:
            joint = _with_shares(starts, needs)
            return dataclasses.replace(
                joint, fits_at_worst=case is _WORST and joint.shortfall is None
            )
    return _too_small(starts)


def _shares(starts: Sequence[JointStart], case: _Case) -> list[_Need] | None:
    """Every need with its cache at the size it gets; None when there is no room for all."""
    needs = [_need(start, case) for start in starts]
    total = _usable(starts[0].request, needs, case)
    step, left = _step(starts[0].request), total
    for need in needs:
        need.size = _size(need, step, case)
        left -= need.size
    if left < 0:
        return None
    while left >= step and (growing := [need for need in needs if need.can_grow]):
        poorest = min(growing, key=lambda need: need.kv / need.request_bytes)
        poorest.size += step
        poorest.kv = min(poorest.most_kv, poorest.size - poorest.fixed)
        left -= step
    return needs


def _need(start: JointStart, case: _Case) -> _Need:
    request = start.request
    whole = request if start.has_share else dataclasses.replace(request, gpu_memory_utilization=1.0)
    plan = make_plan(start.model.shape, start.model.weights, whole)
    guesses = sum(guess.high if case.are_high else guess.num_bytes for guess in plan.assumptions)
    fixed = plan.tightest.fixed_bytes + guesses
    context = 0
    if request.gpu is None:
        fixed += process_bytes(request)
    elif request.engine != LLAMA_CPP:  # whose estimate has its context
        context = int(case.context_gib * GIB) + graphs_beside_share(
            plan.graphs, version_rules(request.vllm_version)
        )
    length = plan.max_model_len
    need = _Need(start, plan, fixed, context, plan.tightest.spec.bytes_for_one_request(length))
    if start.has_share and request.gpu is not None and request.kv_memory_bytes is None:
        need.kv = max(need.kv, _given_share(request) - fixed)
    return need


def _usable(request: PlanRequest, needs: Sequence[_Need], case: _Case) -> int:
    """Bytes that can be given away in shares."""
    gpu = request.gpu
    if gpu is None:
        return int(request.free_ram_bytes * _RAM_MOST)
    least = gpu.memory_bytes * (1 - (gpu.memory_tolerance if case.are_high else 0.0))
    free = int(least) - sum(need.context for need in needs) - _ROUNDING
    return min(free, gpu.memory_bytes * _MOST // _STEPS)


def _step(request: PlanRequest) -> int:
    whole = request.free_ram_bytes if request.gpu is None else request.gpu.memory_bytes
    return max(1, whole // _STEPS)


def _size(need: _Need, step: int, case: _Case) -> int:
    """Its share in whole steps; of a card known by name a little more: its memory may be less."""
    gpu = need.plan.request.gpu
    needed = need.fixed + need.kv
    if gpu is not None and need.start.has_share:
        return max(needed, _given_share(need.start.request))
    tolerance = gpu.memory_tolerance if gpu is not None and case.are_high else 0.0
    return math.ceil(needed / (1 - tolerance) / step) * step


def _given_share(request: PlanRequest) -> int:
    """In the steps in which shares are counted, so that one that was printed is the same again."""
    return int(round(request.gpu_memory_utilization * _STEPS, 6) * _step(request))


def _share_bytes(request: PlanRequest) -> int:
    assert request.gpu is not None
    return requested_memory(request.gpu.memory_bytes, request.gpu_memory_utilization)


def _with_shares(starts: Sequence[JointStart], needs: Sequence[_Need]) -> JointPlan:
    ports = _ports(starts)
    members = tuple(
        _member(need, start, port) for need, start, port in zip(needs, starts, ports, strict=True)
    )
    shortfalls = [
        f"{member.start.model.shape.name}: {member.plan.shortfall}"
        for member in members
        if member.plan.shortfall is not None
    ]
    return JointPlan(members, _whole(starts[0].request), "; ".join(shortfalls) or None, False)


def _member(need: _Need, start: JointStart, port: int) -> JointMember:
    plan = _planned(need, start)
    request = plan.request
    if request.gpu is None or request.engine == LLAMA_CPP:
        held = need.fixed + need.kv
    else:
        held = max(_share_bytes(request), need.fixed + need.kv) + need.context
    command = serve_command(start.model, plan, port)
    return JointMember(start=start, plan=plan, port=port, held_bytes=held, command=command)


def _planned(need: _Need, start: JointStart) -> MemoryPlan:
    """With the share of the card, or on a CPU with the size of the cache."""
    request = start.request
    changes: dict[str, Any] = {}
    if request.gpu is None:
        changes["kv_memory_bytes"] = need.kv
    elif request.engine != LLAMA_CPP and not start.has_share:
        changes["gpu_memory_utilization"] = need.size // _step(request) / _STEPS
    return make_plan(
        start.model.shape, start.model.weights, dataclasses.replace(request, **changes)
    )


def _too_small(starts: Sequence[JointStart]) -> JointPlan:
    """With the least that each needs, which is more than there is."""
    needs = [_need(start, _LIKELY) for start in starts]
    whole = _whole(starts[0].request)
    members = tuple(
        JointMember(
            start=start,
            plan=need.plan,
            port=port,
            held_bytes=need.fixed + need.kv + need.context,
            command=None,
        )
        for need, start, port in zip(needs, starts, _ports(starts), strict=True)
    )
    needed = sum(member.held_bytes for member in members)
    usable = _usable(starts[0].request, needs, _LIKELY) + sum(n.context for n in needs)
    return JointPlan(
        members,
        whole,
        f"Together they need at least {needed / GIB:.2f} GiB, and {usable / GIB:.2f} GiB of the "
        f"{whole / GIB:.2f} GiB can be given away.",
        fits_at_worst=False,
    )


def _whole(request: PlanRequest) -> int:
    return request.free_ram_bytes if request.gpu is None else request.gpu.memory_bytes


def _ports(starts: Sequence[JointStart]) -> list[int]:
    given = {start.port for start in starts}
    free = (port for port in range(_FIRST_PORT, 65536) if port not in given)
    return [next(free) if start.port is None else start.port for start in starts]


def _advice(starts: Sequence[JointStart]) -> Iterator[str]:
    """Changes of one server, then the same change of all, each planned with the others as asked."""
    found = 0
    for number, start in enumerate(starts):
        seen: set[str] = set()
        for flags, changes in _changes(start, starts):
            kind = flags.partition(" ")[0]
            if kind not in seen and _would_fit(starts, {number: changes}):
                seen.add(kind)
                found += 1
                yield f"for {start.model.shape.name}: {flags}"
    if found == 0:
        for flags, changes in _changes_of_all(starts):
            if _would_fit(starts, dict.fromkeys(range(len(starts)), changes)):
                yield f"for all: {flags}"
                return


def _would_fit(starts: Sequence[JointStart], changes: dict[int, dict[str, Any]]) -> bool:
    changed = [_changed(start, changes.get(number, {})) for number, start in enumerate(starts)]
    try:
        return _placed(changed).shortfall is None
    except StokerError:  # this model or engine cannot have it
        return False


def _changed(start: JointStart, changes: dict[str, Any]) -> JointStart:
    if not changes:
        return start
    return dataclasses.replace(start, request=dataclasses.replace(start.request, **changes))


def _changes(
    start: JointStart, starts: Sequence[JointStart]
) -> Iterator[tuple[str, dict[str, Any]]]:
    need = _need(start, _LIKELY)
    if (longest := _longest_beside(need, start, starts)) >= LEAST_LENGTH:
        yield f"--max-model-len {longest}", {"max_model_len": longest}
    if start.has_share and start.request.gpu is not None:
        needed = (need.fixed + need.request_bytes) / start.request.gpu.memory_bytes
        if (share := math.ceil(needed * _STEPS) / _STEPS) <= 1.0:
            yield f"--gpu-memory-utilization {share}", {"gpu_memory_utilization": share}
    if fewer_requests_help(need.plan):
        for number in _FEWER_REQUESTS:
            if number < need.plan.scheduler.max_num_seqs:
                yield f"--max-num-seqs {number}", {"max_num_seqs": number}
    yield from quantised_forms(need.plan)


def _longest_beside(need: _Need, start: JointStart, starts: Sequence[JointStart]) -> int:
    """The longest request of this one while each other one has the least that it needs."""
    needs = [_need(other, _LIKELY) for other in starts if other is not start]
    step = _step(start.request)
    total = _usable(start.request, [*needs, need], _LIKELY)
    others = sum(_size(other, step, _LIKELY) for other in needs)
    room = (total - others) // step * step - need.fixed
    spec = need.plan.tightest.spec
    longest = longest_model_len(max(0, room), spec, need.plan.max_model_len)
    return longest if longest < need.plan.max_model_len else 0


def _changes_of_all(starts: Sequence[JointStart]) -> Iterator[tuple[str, dict[str, Any]]]:
    for length in (8192, 4096, 2048, 1024):
        yield f"--max-model-len {length}", {"max_model_len": length}
    for number in _FEWER_REQUESTS:
        yield f"--max-num-seqs {number}", {"max_num_seqs": number}
    yield from quantised_forms(_need(starts[0], _LIKELY).plan)
