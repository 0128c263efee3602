"""LogprobsBudget: how many rows of log probabilities one step may make, and for whom.

Each costs a row of logits over the vocabulary, and its entries are copied, sent and written as
text: without a bound one request makes every step, and so every other request, slow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engine.sched.request import Request

_ROWS_ALONE = 512
_ROWS_SHARED = 32
"""Prompt tokens of a step with rows of their own; fewer where others wait for the step's end, who
would have a second of it on a CPU.
"""

_ALONE_AFTER_STEPS = 64  # the next of the others must not meet a long step in every gap

_ENTRIES = 16_384
"""Log probabilities of one step; at least one row goes through, however wide it is."""


@dataclass(slots=True)
class LogprobsBudget:
    """What has been handed out in the step that is being planned."""

    rows: int = 0
    entries: int = 0
    _requests: Iterable[Request] = ()
    _max_rows: int = 0
    _steps_alone: int = _ALONE_AFTER_STEPS

    def begin(self, requests: Iterable[Request]) -> None:
        """Start with a new step; `requests` are all that wait for its end."""
        self.rows = self.entries = self._max_rows = 0
        self._requests = requests

    def take(self, request: Request, count: int, *, is_split: bool) -> int:
        """How many of `count` tokens the request may compute; what they need is booked.

        Without `is_split` a prompt goes whole or not at all. The first row of a step always goes
        through, so whoever asks comes to an end.
        """
        params = request.sampling_params
        num_prompt = min(count, request.num_prompt_tokens - request.num_computed_tokens)
        if params.prompt_logprobs is not None and num_prompt > 0:
            width = params.prompt_logprobs + 1
            room = min(self._row_limit() - self.rows, (_ENTRIES - self.entries) // width)
            if not self.rows:
                room = max(room, 1 if is_split else count)
            count = min(count, max(room, 0)) if is_split or room >= count else 0
            self.rows += count
            self.entries += count * width
        elif params.logprobs is not None:
            width = params.logprobs + 1
            if self.entries and self.entries + width > _ENTRIES:
                return 0
            self.entries += width
        return count

    def _row_limit(self) -> int:
        """Found once in a step: has anybody waited lately who wants none of a prompt's rows?"""
        if not self._max_rows:
            has_others = any(
                request.sampling_params.prompt_logprobs is None for request in self._requests
            )
            self._steps_alone = 0 if has_others else self._steps_alone + 1
            is_alone = self._steps_alone > _ALONE_AFTER_STEPS
            self._max_rows = _ROWS_ALONE if is_alone else _ROWS_SHARED
        return self._max_rows
