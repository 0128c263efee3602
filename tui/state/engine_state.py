"""What the engine view says about a DebugSample: state, step, limit. Pure functions, no widget."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from app.client import formatting
from app.client.debug.documents import DebugSample, EngineStep, SchedulerState
from app.client.errors import BadStatus, ClientError, EngineInStep, Unauthorized
from app.client.metrics.names import ENGINE_NAMES
from app.client.metrics.sample import MetricsSample
from tui.state.limits import COMPUTE_FLAGS, kv_flag

STALL_S = 5.0


class EngineActivity(enum.Enum):
    """Whether the engine steps; the value is what the screen says, sign first."""

    IDLE = "○ idle"
    BUSY = "● busy"
    STALLED = "▲ stalled"

    @property
    def word(self) -> str:
        """The state's name without the sign before it."""
        return self.value.partition(" ")[2]


@dataclass(frozen=True, slots=True)
class EngineState:
    """The newest sample, and why the last question was not answered ("" if it was).

    Without a sample nothing is known, and `reason` says why.
    """

    sample: DebugSample | None = None
    reason: str = ""
    is_in_step: bool = False  # the engine has not ended a step for so long that it did not answer

    @property
    def activity(self) -> EngineActivity | None:
        """Stalled means: requests are there, and no step ends or begins."""
        if self.is_in_step:
            return EngineActivity.STALLED
        if self.sample is None or self.reason:
            return None
        scheduler = self.sample.scheduler
        if not scheduler.num_unfinished:
            return EngineActivity.IDLE
        is_stalled = scheduler.last_step_age_s >= STALL_S
        return EngineActivity.STALLED if is_stalled else EngineActivity.BUSY


def after_failure(state: EngineState, error: ClientError, engine: str | None) -> EngineState:
    """The state once a question was not answered; a refusal takes the last sample away."""
    if isinstance(error, BadStatus) and error.is_refusal:
        return EngineState(None, _refusal(error, engine))
    if isinstance(error, EngineInStep):
        return EngineState(state.sample, error.detail, is_in_step=True)
    return EngineState(state.sample, str(error))


def _refusal(error: ClientError, engine: str | None) -> str:
    if isinstance(error, Unauthorized):
        return "the API key is missing or wrong: set STOKER_API_KEY or use --api-key-file"
    if engine in (None, "stoker"):
        return "the server was started without --enable-debug-endpoints"
    return f"{ENGINE_NAMES.get(engine, engine)} has no endpoint that tells it"


def activity_text(state: EngineState) -> str:
    """The state with its evidence."""
    activity, sample = state.activity, state.sample
    if activity is None:
        return f"n/a: {state.reason}" if state.reason else "n/a: not asked yet"
    if state.is_in_step or sample is None:
        return f"{activity.value}: {state.reason}"
    scheduler = sample.scheduler
    counts = f"{scheduler.num_running} running, {scheduler.num_waiting} waiting"
    if scheduler.num_waiting_for_grammar:
        counts += f", {scheduler.num_waiting_for_grammar} for a grammar"
    if activity is EngineActivity.STALLED:
        counts += f", no step for {formatting.age(scheduler.last_step_age_s)}"
    return f"{activity.value} · {counts}"


def step_text(scheduler: SchedulerState) -> str:
    """What the newest step computed, against its budget."""
    step = scheduler.step
    if step is None:
        return "n/a: no step yet"
    total = step.num_decode_tokens + step.num_prefill_tokens
    budget = scheduler.max_num_batched_tokens
    requests = "1 request" if step.num_requests == 1 else f"{step.num_requests} requests"
    parts = f"{step.num_decode_tokens:,} decode + {step.num_prefill_tokens:,} prefill"
    return f"{parts} = {total:,} of {budget:,} tokens, {requests}"


def limit_text(scheduler: SchedulerState, sample: MetricsSample | None = None) -> tuple[str, str]:
    """What kept the newest step from doing more, with evidence; and the flag that moves it.

    `sample` tells whether a flag has fixed the number of blocks.
    """
    step = scheduler.step
    if step is None:
        return "n/a: no step yet", "-"
    if not scheduler.num_unfinished:
        return "none: nothing is queued", "-"
    if step.limit == "kv_memory":
        return f"KV memory: {_memory_evidence(step)}", kv_flag(sample)
    if step.limit == "max_num_seqs":
        seats = f"{step.num_running} of {scheduler.max_num_seqs} run"
        return f"max_num_seqs: {seats}, {step.num_waiting} wait", "--max-num-seqs"
    if step.limit == "token_budget":
        total = step.num_decode_tokens + step.num_prefill_tokens
        used = f"{total:,} of {scheduler.max_num_batched_tokens:,} tokens"
        return f"token budget: {used}, {step.num_waiting} wait", "--max-num-batched-tokens"
    if step.limit == "prompt_turns":
        return f"prompts take turns: {step.num_waiting} wait for those before them", "-"
    if step.limit == "none":
        return "compute: the step took all there was; its time is the limit", COMPUTE_FLAGS[
            "stoker"
        ]
    return f"{step.limit}, {step.num_waiting} wait", "-"


def _memory_evidence(step: EngineStep) -> str:
    # Blocks that only hold a cached prefix can be handed out too, so this is not the map's "free".
    free = f"{step.num_free_blocks:,} blocks left"
    if step.num_preempted:
        return f"{step.num_preempted} preempted, {free}, {step.num_waiting} wait"
    return f"{free}, the next in line needs up to {step.next_waiting_blocks or 0:,}"
