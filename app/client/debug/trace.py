"""A request's walk through the 13 hops from the HTTP route to the answer, with measured times.

Joins what our engine keeps of a request with what a client sees; what nobody measured is None, and
the hop says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.client.debug.prefix_miss import PrefixMiss, read_prefix_miss
from app.client.errors import BadAnswer
from app.client.terminal_text import strip_escapes

NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStep:
    """One step that the request was part of; times since it came in, `num_tokens` its own."""

    start_s: float
    planned_s: float
    executed_s: float
    updated_s: float
    forward_s: float
    sampler_s: float
    num_tokens: int
    num_requests: int
    blocks_s: float | None = None  # of the planning; older engines do not tell


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What the engine keeps: named times in seconds since the request came in, and its steps.

    `totals` are sums over all steps. `queued_s` None means EngineCore no longer knows the request.
    """

    id: str
    client: str | None
    prompt_tokens: int
    num_outputs: int
    num_events: int
    processing_s: float
    marks: Mapping[str, float]
    queued_s: float | None = None
    states: tuple[tuple[str, float], ...] = ()
    num_steps: int = 0
    first_step: TraceStep | None = None
    last_step: TraceStep | None = None
    totals: Mapping[str, float] | None = None
    prefix_miss: PrefixMiss | None = None
    prompt: str | None = None  # only of a server that was started with --show-prompts
    is_prompt_cut: bool = False

    def between(self, earlier: str, later: str) -> tuple[float | None, float | None]:
        """Start and length of the stretch between two marks; None where one was not taken."""
        start, end = self.marks.get(earlier), self.marks.get(later)
        return start, None if start is None or end is None else end - start


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One of the 13. `later_mean_s` is the mean over the steps after the first.

    `note` says what else is known, or why nothing is.
    """

    number: int
    process: str
    file: str
    what: str
    start_s: float | None = None
    duration_s: float | None = None
    later_mean_s: float | None = None
    note: str = ""


_HOPS = (
    ("APIServer", "engine/server/api.py", "POST arrives; body read and checked"),
    ("APIServer", "engine/server/routes/chat.py", "chat template rendered"),
    ("APIServer", "engine/frontend/async_llm.py", "registered with the output processor"),
    ("APIServer", "engine/frontend/input_processor.py", "token ids, limits, sampling settings"),
    ("APIServer", "engine/core/client.py", "msgpack over ZMQ to EngineCore"),
    ("EngineCore", "engine/core/engine_core_proc.py", "received between two steps"),
    ("EngineCore", "engine/sched/scheduler.py", "queued, then schedule()"),
    ("EngineCore", "engine/sched/kv_cache_manager.py", "prefix looked up, blocks allocated"),
    ("Worker", "engine/worker/model_runner.py", "forward pass over the batch"),
    ("Worker", "engine/worker/sampler.py", "next token chosen"),
    ("EngineCore", "engine/sched/scheduler.py", "update_from_output"),
    ("APIServer", "engine/frontend/output_processor.py", "detokenized, stop strings"),
    ("APIServer", "engine/server/streaming.py", "first event written"),
)


def walk(trace: Trace | None, reason: str = "") -> tuple[Hop, ...]:
    """The 13 hops; without a trace nothing is measured, for `reason`."""
    if trace is None:
        note = f"{NOT_MEASURED}: {reason}" if reason else NOT_MEASURED
        return tuple(_hop(number, note=note) for number in range(1, 14))
    return (*_way_in(trace), *_in_the_engine(trace), *_way_out(trace))


def _hop(number: int, **values: Any) -> Hop:
    process, file, what = _HOPS[number - 1]
    if values.get("duration_s") is None and not values.get("note"):
        values["note"] = NOT_MEASURED
    return Hop(number=number, process=process, file=file, what=what, **values)


def _marked(trace: Trace, number: int, earlier: str, later: str, note: str = "") -> Hop:
    start_s, duration_s = trace.between(earlier, later)
    return _hop(number, start_s=start_s, duration_s=duration_s, note=note)


def _way_in(trace: Trace) -> tuple[Hop, ...]:
    is_chat = "rendered" in trace.marks
    tokens = f"{trace.prompt_tokens:,} prompt tokens"
    made_from = "rendered" if is_chat else "read"
    return (
        _marked(trace, 1, "received", "read"),
        _marked(trace, 2, "read", "rendered")
        if is_chat
        else _hop(2, note="a raw prompt has no template"),
        _marked(trace, 3, "built", "registered"),
        _marked(trace, 4, made_from, "built", f"{tokens}; before hop 3 in this engine"),
        _hop(5, start_s=trace.marks.get("registered"), duration_s=_sending_s(trace)),
    )


def _sending_s(trace: Trace) -> float | None:
    """Until the send call came back, or EngineCore had the message, whichever was first."""
    start_s, duration_s = trace.between("registered", "sent")
    if start_s is None or duration_s is None or trace.queued_s is None:
        return duration_s
    return max(0.0, min(duration_s, trace.queued_s - start_s))


def _in_the_engine(trace: Trace) -> tuple[Hop, ...]:
    first = trace.first_step
    if trace.queued_s is None:
        return tuple(_hop(n, note=f"{NOT_MEASURED}: no longer kept") for n in range(6, 12))
    registered, sending_s = trace.marks.get("registered"), _sending_s(trace)
    sent = None if registered is None or sending_s is None else registered + sending_s
    arrived = _hop(
        6,
        start_s=sent,
        duration_s=None if sent is None else trace.queued_s - sent,
        note="socket, and the rest of the step under way",
    )
    if first is None:
        note = f"{NOT_MEASURED}: still in the queue"
        return (arrived, *(_hop(number, note=note) for number in range(7, 12)))
    waited_s = max(0.0, first.start_s - trace.queued_s)
    forward = f"{first.num_tokens:,} of its tokens, {first.num_requests} requests in the step"
    return (
        arrived,
        _hop(
            7,
            start_s=first.start_s,
            duration_s=first.planned_s - first.start_s,
            later_mean_s=_later_mean(trace, "schedule_s", first.planned_s - first.start_s),
            note=f"after {_length(waited_s)} in the queue",
        ),
        _hop(
            8,
            duration_s=first.blocks_s,
            later_mean_s=_later_mean(trace, "blocks_s", first.blocks_s),
            note="part of hop 7" if first.blocks_s is not None else "",
        ),
        _hop(
            9,
            start_s=first.planned_s,
            duration_s=first.forward_s,
            later_mean_s=_later_mean(trace, "forward_s", first.forward_s),
            note=forward,
        ),
        _hop(
            10,
            start_s=first.executed_s - first.sampler_s,
            duration_s=first.sampler_s,
            later_mean_s=_later_mean(trace, "sampler_s", first.sampler_s),
        ),
        _hop(
            11,
            start_s=first.executed_s,
            duration_s=first.updated_s - first.executed_s,
            later_mean_s=_later_mean(trace, "update_s", first.updated_s - first.executed_s),
        ),
    )


def _later_mean(trace: Trace, name: str, first_s: float | None) -> float | None:
    """Mean over the steps after the first one."""
    if trace.num_steps < 2 or trace.totals is None or first_s is None:
        return None
    return max(0.0, trace.totals[name] - first_s) / (trace.num_steps - 1)


def _way_out(trace: Trace) -> tuple[Hop, ...]:
    start_s, first_s = trace.between("first_output", "first_text")
    later_s = None
    if first_s is not None and trace.num_outputs > 1:
        later_s = max(0.0, trace.processing_s - first_s) / (trace.num_outputs - 1)
    note = "" if start_s is not None else f"{NOT_MEASURED}: no token yet"
    processed = _hop(
        12, start_s=start_s, duration_s=first_s, later_mean_s=later_s, note=note or _return(trace)
    )
    if trace.num_events:
        return processed, _marked(trace, 13, "first_text", "first_event")
    why = "the answer was not streamed" if trace.num_outputs else "no token yet"
    return processed, _hop(13, note=f"{NOT_MEASURED}: {why}")


def _return(trace: Trace) -> str:
    """The message back is no hop of its own."""
    first, came = trace.first_step, trace.marks.get("first_output")
    if first is None or came is None or trace.num_outputs == 0 or came < first.updated_s:
        return ""
    if trace.prompt_tokens > first.num_tokens:
        return ""  # the prompt took several steps, so the first output came from a later one
    return f"after {_length(came - first.updated_s)} on the way back"


def _length(value_s: float) -> str:
    return f"{value_s * 1000:.2f} ms" if value_s < 1 else f"{value_s:.2f} s"


def read_trace(document: Any) -> Trace:
    """The answer of GET /debug/requests/ID/trace."""
    try:
        core = document["core"]
        return Trace(
            id=strip_escapes(str(document["id"])),
            client=_text(document["client"] or None),
            prompt_tokens=int(document["prompt_tokens"]),
            num_outputs=int(document["num_outputs"]),
            num_events=int(document["num_events"]),
            processing_s=float(document["processing_s"]),
            marks=_floats(document["marks"]),
            prompt=_text(document.get("prompt")),
            is_prompt_cut=bool(document.get("is_prompt_cut")),
            **({} if core is None else _read_core(core)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadAnswer("/debug/requests/ID/trace answered in a form that is not known") from error


def _text(value: Any) -> str | None:
    return None if value is None else strip_escapes(str(value))


def _read_core(core: Any) -> dict[str, Any]:
    return {
        "queued_s": float(core["queued_s"]),
        "states": tuple((strip_escapes(str(name)), float(at)) for name, at in core["states"]),
        "num_steps": int(core["num_steps"]),
        "first_step": _read_step(core["first_step"]),
        "last_step": _read_step(core["last_step"]),
        "totals": _floats(core["totals"]),
        "prefix_miss": read_prefix_miss(core.get("prefix_miss")),
    }


def _read_step(step: Any) -> TraceStep | None:
    if step is None:
        return None
    return TraceStep(
        start_s=float(step["start_s"]),
        planned_s=float(step["planned_s"]),
        executed_s=float(step["executed_s"]),
        updated_s=float(step["updated_s"]),
        forward_s=float(step["forward_s"]),
        sampler_s=float(step["sampler_s"]),
        num_tokens=int(step["num_tokens"]),
        num_requests=int(step["num_requests"]),
        blocks_s=None if step.get("blocks_s") is None else float(step["blocks_s"]),
    )


def _floats(values: Any) -> dict[str, float]:
    return {strip_escapes(str(name)): float(value) for name, value in values.items()}
