"""When EngineCore did what for each request: states, first and last step, sums over all steps.

Kept only with the debug endpoints on, for the newest requests. Holds no tokens and no text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from engine.messages import EngineCoreOutput
from engine.sched.request import Request, RequestStatus
from engine.sched.scheduler_output import ModelRunnerOutput, SchedulerOutput
from engine.sched.snapshot import miss_document

MAX_TRACES = 512
_MAX_STATES = 32
_LAST_STATES = {status.finish_reason: status.name for status in RequestStatus if status.is_finished}


@dataclass(frozen=True, slots=True)
class StepClock:
    """Readings of the monotonic clock around the parts of one step.

    `blocks_s` is a length: what the KV cache manager took of the planning.
    """

    start_s: float
    planned_s: float
    executed_s: float
    updated_s: float
    blocks_s: float


class CallTimer:
    """How long calls of some methods of an object took together; the object knows nothing of it."""

    def __init__(self, target: object, *names: str) -> None:
        self._spent_s = 0.0
        for name in names:
            setattr(target, name, self._timed(getattr(target, name)))

    def take_s(self) -> float:
        """Seconds since this was last asked."""
        spent_s, self._spent_s = self._spent_s, 0.0
        return spent_s

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **named: Any) -> Any:
            start_s = time.monotonic()
            result = call(*args, **named)
            self._spent_s += time.monotonic() - start_s
            return result

        return timed


@dataclass(frozen=True, slots=True)
class TracedStep:
    """One step, the same object for all its requests."""

    clock: StepClock
    forward_s: float
    sampler_s: float
    num_requests: int

    def document(self, num_tokens: int) -> dict[str, Any]:
        """The step as a request saw it: `num_tokens` are its own, the times the whole batch's."""
        return {
            **asdict(self.clock),
            "forward_s": self.forward_s,
            "sampler_s": self.sampler_s,
            "num_tokens": num_tokens,
            "num_requests": self.num_requests,
        }


@dataclass(slots=True)
class _Trace:
    queued_s: float
    states: list[tuple[str, float]]
    num_steps: int = 0
    first_step: tuple[TracedStep, int] | None = None
    last_step: tuple[TracedStep, int] | None = None
    schedule_s: float = 0.0
    blocks_s: float = 0.0
    forward_s: float = 0.0
    sampler_s: float = 0.0
    update_s: float = 0.0
    prefix_miss: dict[str, Any] | None = None

    def enter(self, state: str, at_s: float) -> None:
        if len(self.states) < _MAX_STATES and self.states[-1][0] != state:
            self.states.append((state, at_s))

    def add(self, step: TracedStep, num_tokens: int) -> None:
        clock = step.clock
        self.num_steps += 1
        self.last_step = (step, num_tokens)
        self.first_step = self.first_step or self.last_step
        self.schedule_s += clock.planned_s - clock.start_s
        self.blocks_s += clock.blocks_s
        self.forward_s += step.forward_s
        self.sampler_s += step.sampler_s
        self.update_s += clock.updated_s - clock.executed_s

    def document(self) -> dict[str, Any]:
        """Everything, for /debug."""
        return {
            "queued_s": self.queued_s,
            "states": self.states,
            "num_steps": self.num_steps,
            "first_step": self.first_step and self.first_step[0].document(self.first_step[1]),
            "last_step": self.last_step and self.last_step[0].document(self.last_step[1]),
            "totals": {name: getattr(self, name) for name in _TOTALS},
            "prefix_miss": self.prefix_miss,
        }


_TOTALS = ("schedule_s", "blocks_s", "forward_s", "sampler_s", "update_s")


class RequestTraces:
    """The newest MAX_TRACES requests, by id; times are EngineCore's monotonic clock."""

    def __init__(self) -> None:
        self._traces: dict[str, _Trace] = {}

    def begin(self, request_id: str) -> None:
        """A request has come in and is queued."""
        now = time.monotonic()
        self._traces[request_id] = _Trace(now, [(RequestStatus.WAITING.name, now)])
        if len(self._traces) > MAX_TRACES:
            del self._traces[next(iter(self._traces))]

    def record(
        self,
        clock: StepClock,
        scheduled: SchedulerOutput,
        result: ModelRunnerOutput,
        live: Mapping[str, Request],
    ) -> None:
        """Add a step that ran; `live` are the requests that have not ended."""
        for request_id in scheduled.finished_req_ids:  # dropped by the runner: preempted, or over
            if request_id in live and request_id not in scheduled.num_scheduled_tokens:
                self._enter(request_id, RequestStatus.PREEMPTED.name, clock.start_s)
        counts = scheduled.num_scheduled_tokens
        step = TracedStep(clock, result.forward_s, result.sampler_s, len(counts))
        for request_id, num_tokens in counts.items():
            trace = self._traces.get(request_id)
            if trace is None:
                continue
            trace.enter(RequestStatus.RUNNING.name, clock.planned_s)
            if trace.first_step is None and request_id in live:
                trace.prefix_miss = miss_document(live[request_id].prefix_miss)
            trace.add(step, num_tokens)

    def note_ends(self, outputs: Iterable[EngineCoreOutput]) -> None:
        """Requests whose last output this is."""
        for output in outputs:
            trace = self._traces.get(output.request_id)
            if trace is not None and output.prefill_stats is not None:
                trace.prefix_miss = miss_document(output.prefill_stats.miss)
            if output.finish_reason is not None:
                name = _LAST_STATES[output.finish_reason]
                self._enter(output.request_id, name, time.monotonic())

    def note_aborts(self, request_ids: Iterable[str]) -> None:
        """Requests that were ended from outside."""
        for request_id in request_ids:
            self._enter(request_id, RequestStatus.FINISHED_ABORTED.name, time.monotonic())

    def document(self, request_id: str) -> dict[str, Any] | None:
        """What is known of one request; None if it is not, or no longer, known."""
        trace = self._traces.get(request_id)
        return None if trace is None else trace.document()

    def _enter(self, request_id: str, state: str, at_s: float) -> None:
        trace = self._traces.get(request_id)
        if trace is not None:
            trace.enter(state, at_s)
