"""When the API server did what for each request: marks on the monotonic clock, and who asked.

Kept only with the debug endpoints on, for the newest requests. Holds no text, and the first tokens
of a prompt only if it is told to.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_TRACES = 512
MAX_SHOWN_TOKENS = 1024


@dataclass(slots=True)
class Marks:
    """Named readings of the monotonic clock, in the order in which they were taken."""

    client: str | None = None
    times: dict[str, float] = field(default_factory=dict)

    def note(self, name: str) -> None:
        """Read the clock; an earlier reading of the same name is kept."""
        self.times.setdefault(name, time.monotonic())


@dataclass(slots=True)
class FrontendTrace:
    """One request: what happened once, and the first and last of what happens again and again."""

    client: str | None
    times: dict[str, float]
    num_prompt_tokens: int
    prompt_start: Sequence[int] | None
    num_outputs: int = 0
    processing_s: float = 0.0
    num_events: int = 0
    last_output: float = 0.0
    last_text: float = 0.0
    last_event: float = 0.0

    def note_outputs(self, came_s: float, processed_s: float) -> None:
        """Outputs of one step came and became text."""
        if not self.num_outputs:
            self.times |= {"first_output": came_s, "first_text": processed_s}
        self.num_outputs += 1
        self.processing_s += processed_s - came_s
        self.last_output = came_s
        self.last_text = processed_s

    def note_event(self) -> None:
        """An event of the stream has been handed to the socket."""
        self.last_event = time.monotonic()
        if not self.num_events:
            self.times["first_event"] = self.last_event
        self.num_events += 1

    @property
    def marks(self) -> dict[str, float]:
        """All readings of the clock by their names."""
        marks = dict(self.times)
        if self.num_outputs:
            marks |= {"last_output": self.last_output, "last_text": self.last_text}
        if self.num_events:
            marks["last_event"] = self.last_event
        return marks


class FrontendTraces:
    """The newest MAX_TRACES requests, by id."""

    def __init__(self, *, keeps_prompts: bool = False) -> None:
        self._keeps_prompts = keeps_prompts
        self._traces: dict[str, FrontendTrace] = {}

    def begin(self, request_id: str, marks: Marks, prompt_token_ids: Sequence[int]) -> None:
        """A request has been checked and made; `marks` says what led to it."""
        kept = prompt_token_ids[:MAX_SHOWN_TOKENS] if self._keeps_prompts else None
        num_tokens = len(prompt_token_ids)
        self._traces[request_id] = FrontendTrace(marks.client, dict(marks.times), num_tokens, kept)
        if len(self._traces) > MAX_TRACES:
            del self._traces[next(iter(self._traces))]

    def of(self, request_id: str) -> FrontendTrace | None:
        """The trace of a request, if it is kept."""
        return self._traces.get(request_id)

    def note(self, request_id: str, name: str) -> None:
        """Read the clock for a request; the first reading of a name is kept."""
        trace = self._traces.get(request_id)
        if trace is not None:
            trace.times.setdefault(name, time.monotonic())

    def note_outputs(self, request_ids: Iterable[str], came_s: float, processed_s: float) -> None:
        """One step's outputs came and became text; the time is that of all of them together."""
        for request_id in request_ids:
            trace = self._traces.get(request_id)
            if trace is not None:
                trace.note_outputs(came_s, processed_s)

    def note_event(self, request_id: str) -> None:
        """An event of the stream has been handed to the socket."""
        trace = self._traces.get(request_id)
        if trace is not None:
            trace.note_event()

    def client_of(self, request_id: str) -> str | None:
        """Address of the client that asked, if it is known."""
        trace = self._traces.get(request_id)
        return trace.client if trace else None

    def prompt_start(self, request_id: str) -> Sequence[int] | None:
        """The prompt's first tokens; None where they are not kept."""
        trace = self._traces.get(request_id)
        return trace.prompt_start if trace else None

    def document(self, request_id: str, core: dict[str, Any] | None) -> dict[str, Any] | None:
        """Both sides of a request; seconds since it came in. None if it is not known."""
        trace = self._traces.get(request_id)
        if trace is None or "received" not in trace.times:
            return None
        zero_s = trace.times["received"]
        return {
            "object": "trace",
            "id": request_id,
            "client": trace.client,
            "prompt_tokens": trace.num_prompt_tokens,
            "num_outputs": trace.num_outputs,
            "processing_s": round(trace.processing_s, 6),
            "num_events": trace.num_events,
            "marks": {name: round(at - zero_s, 6) for name, at in trace.marks.items()},
            "core": None if core is None else _since(core, zero_s),
        }


_CLOCK_FIELDS = ("start_s", "planned_s", "executed_s", "updated_s", "queued_s")


def _since(core: dict[str, Any], zero_s: float) -> dict[str, Any]:
    """EngineCore's readings count from the same zero: both processes read one clock."""
    document: dict[str, Any] = {}
    for name, value in core.items():
        if isinstance(value, dict):
            document[name] = _since(value, zero_s)
        elif name in _CLOCK_FIELDS:
            document[name] = round(value - zero_s, 6)
        elif name == "states":
            document[name] = [[state, round(at - zero_s, 6)] for state, at in value]
        else:
            document[name] = round(value, 6) if isinstance(value, float) else value
    return document
