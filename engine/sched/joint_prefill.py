"""JointPrefill: how many prompt tokens of several requests one step computes together.

Where a step's time grows with its rows from a few dozen on, as on a CPU, prompts that arrive at
once are done as soon one after the other as they are together: together, all wait for the last.
"""

from __future__ import annotations

_PROMPT_TOKENS_FOR_A_DECODE = 8
"""Decodes that run beside a queue of prompts must not make it much longer: a row of theirs costs
little more than one of a prompt, so that all of them together take a sixth of a step.
"""


def room_beside(most: int, num_decode_rows: int) -> int:
    """Prompt tokens of several requests that a step with so many rows of decodes takes."""
    return max(most, _PROMPT_TOKENS_FOR_A_DECODE * num_decode_rows)


class JointPrefill:
    """The prompt tokens of the step that is being planned.

    One prompt alone may have the whole budget. Further ones join it up to `most` tokens in all, or
    eight for each row of decodes where that is more, and nobody overtakes the first that does not
    fit. None is no limit. What a preempted request computes again counts as a prompt; one that is
    done in a later step does not, since nobody is to wait for all of its steps.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._num_tokens = 0
        self._num_decode_rows = 0
        self.has_held_back = False
        """Whether somebody in this step waits for a later one."""

    def begin(self) -> None:
        """A new step has none yet."""
        self._num_tokens = self._num_decode_rows = 0
        self.has_held_back = False

    def has_room(self, count: int) -> bool:
        """Whether a request may compute `count` tokens, drafts not counted."""
        if self._most is None or count <= 1 or not self._num_tokens:
            return True
        room = room_beside(self._most, self._num_decode_rows)
        self.has_held_back |= self._num_tokens + count > room
        return not self.has_held_back

    def note(self, count: int, num_drafted: int = 0) -> None:
        """A request computes `count` tokens in the step, the last ones that are known of it."""
        self._add(count, count - num_drafted)

    def take_back(self, count: int, num_drafted: int) -> None:
        """It does not after all."""
        self._add(-count, count - num_drafted)

    def _add(self, rows: int, num_known: int) -> None:
        if num_known > 1:
            self._num_tokens += rows
        else:
            self._num_decode_rows += rows
