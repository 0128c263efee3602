"""Which LoRA adapters a step may have, and that a busy one does not keep the others out for ever.

Requests with an adapter that is running go before older ones that wait for room, since that fills
steps; but only so many of them.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.sched.request import Request

MOST_PASSES = 16
"""Later requests with adapters that a waiting one lets go first."""


class AdapterTurns:
    """Asked for each waiting request, in their order. `max_loras` None is no limit."""

    def __init__(self, max_loras: int | None) -> None:
        self._max_loras = max_loras
        self._running: set[int] = set()
        self._passed: list[Request] = []
        self._is_full = False

    def begin(self, running: Iterable[Request]) -> None:
        """A step is planned in which these run already."""
        if self._max_loras is None:
            return
        self._running = {request.lora_id for request in running if request.lora_id}
        self._passed = []
        self._is_full = False

    def has_room(self, request: Request) -> bool:
        """Whether the step may have the request's adapter now; if not, others pass it."""
        if not request.lora_id or self._max_loras is None:
            return True
        if request.lora_id in self._running:
            return not self._is_full
        if len(self._running) < self._max_loras:
            return True
        self._passed.append(request)
        self._is_full |= request.num_passes >= MOST_PASSES
        return False

    def note_admitted(self, request: Request) -> None:
        """A request has gone before those that were asked about and had no room."""
        if request.lora_id:
            self._running.add(request.lora_id)
            for passed in self._passed:
                passed.num_passes += 1
                self._is_full |= passed.num_passes >= MOST_PASSES
