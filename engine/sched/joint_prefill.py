"""JointPrefill: how many prompt tokens of several requests one step computes together.

Where a step's time grows with its rows from a few dozen on, as on a CPU, prompts that arrive at
once are done as soon one after the other as they are together: together, all wait for the last.
"""

from __future__ import annotations


class JointPrefill:
    """The prompt tokens of the step that is being planned.

    One prompt alone may have the whole budget. Further ones join it up to `most` tokens in all,
    and nobody overtakes the first that does not fit. None is no limit. What a preempted request
    computes again counts as a prompt; one that is done in a later step does not, since nobody is to
    wait for all of its steps.

    While prompts take turns the decodes wait for as many of their tokens as one step may have, the
    `budget`: no longer than if all were computed in one. The answers of a burst so go on side by
    side, in steps of many rows.
    """

    def __init__(self, most: int | None, budget: int) -> None:
        self._most, self._budget = most, budget
        self._num_tokens = 0
        self._num_before_decodes = 0  # in the steps since the decodes had theirs
        self.has_held_back = False
        """Whether somebody in this step waits for a later one."""
        self.holds_decodes = False
        """Whether this step is one of prompts alone, if there is any that can be computed."""

    def begin(self) -> None:
        """A new step has none yet."""
        self._num_before_decodes += self._num_tokens
        if not self.holds_decodes:
            self._num_before_decodes = 0
        has_turns_left = self._num_before_decodes < self._budget
        self.holds_decodes = self.has_held_back and has_turns_left
        self._num_tokens = 0
        self.has_held_back = False

    def release_decodes(self) -> None:
        """No prompt can be computed in this step."""
        self.holds_decodes = False

    def has_room(self, count: int) -> bool:
        """Whether a request may compute `count` tokens, drafts not counted."""
        if self._most is None or count <= 1 or not self._num_tokens:
            return True
        self.has_held_back |= self._num_tokens + count > self._most
        return not self.has_held_back

    def note(self, count: int, num_drafted: int = 0) -> None:
        """A request computes `count` tokens in the step, the last ones that are known of it."""
        if count - num_drafted > 1:
            self._num_tokens += count

    def take_back(self, count: int, num_drafted: int) -> None:
        """It does not after all."""
        if count - num_drafted > 1:
            self._num_tokens -= count
