"""When a newcomer's first token would come, judged by how long the engine's last steps took.

A step costs something as such and something for each prompt token in it. Both are learnt from the
steps themselves, so that answers under way, long contexts and a busy machine are in them. Knows
neither HTTP nor limits.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from engine.frontend.iteration_stats import IterationStats
from engine.messages import SchedulerStats

_KEEP = 0.9  # of what was known, at each step: about the last ten count
_ENOUGH_SPREAD = 256.0  # prompt tokens squared: steps that are more alike tell nothing of a token
_FIRST_GUESS_S = 1e-3  # of a prompt token, before anything was measured
_ENDS = 64  # steps in which requests ended: in one step many may end


@dataclass(slots=True)
class _Means:
    """Of the last steps, the newest most: prompt tokens, seconds, and their products."""

    tokens: float = 0.0
    seconds: float = 0.0
    tokens_squared: float = 0.0
    tokens_seconds: float = 0.0
    weight: float = 0.0

    def add(self, tokens: float, seconds: float) -> None:
        self.weight = self.weight * _KEEP + 1.0
        share = 1.0 / self.weight
        self.tokens += (tokens - self.tokens) * share
        self.seconds += (seconds - self.seconds) * share
        self.tokens_squared += (tokens * tokens - self.tokens_squared) * share
        self.tokens_seconds += (tokens * seconds - self.tokens_seconds) * share

    @property
    def spread(self) -> float:
        return self.tokens_squared - self.tokens**2

    @property
    def shared_spread(self) -> float:
        return self.tokens_seconds - self.tokens * self.seconds


class StepTimes:
    """Seconds of one engine's steps as a line over their prompt tokens."""

    def __init__(self) -> None:
        self.per_token_s = _FIRST_GUESS_S
        self.base_s = 0.0
        self._means = _Means()
        self._last_s: float | None = None

    def note(
        self, now_s: float, num_prompt_tokens: int, *, goes_on: bool, longest_s: float = 0.0
    ) -> None:
        """A step has ended; unless it `goes_on` the engine has nothing more to do. `longest_s` is
        how long ago the requests came that got their first token.
        """
        if self._last_s is not None:
            self._learn(num_prompt_tokens, now_s - self._last_s)
        elif num_prompt_tokens and longest_s:  # the engine was idle when they came
            self._learn(num_prompt_tokens, longest_s)
            self.per_token_s = min(self.per_token_s, longest_s / num_prompt_tokens)
        self._last_s = now_s if goes_on else None
        if not goes_on:  # the next steps are those of few requests
            self._means = _Means()
            self.base_s = 0.0

    def _learn(self, tokens: float, seconds: float) -> None:
        means = self._means
        means.add(tokens, seconds)
        if means.spread > _ENOUGH_SPREAD:
            self.per_token_s = max(0.0, means.shared_spread / means.spread)
        self.base_s = max(0.0, means.seconds - self.per_token_s * means.tokens)


class _BusyTime:
    """Seconds in which any engine had work. Pauses tell nothing of how soon a place is free."""

    def __init__(self) -> None:
        self._at_work: set[int] = set()
        self._before_s = 0.0
        self._since_s: float | None = None  # when the first one began to work; None is a pause

    def note_step(self, engine: int, begun_s: float, now_s: float, *, goes_on: bool) -> None:
        """A step has ended; `begun_s` is when the engine began to work if it had nothing to do."""
        if self._since_s is None:
            self._since_s = begun_s
        if goes_on:
            self._at_work.add(engine)
        else:
            self._at_work.discard(engine)
        if not self._at_work:
            self._before_s, self._since_s = self.seconds(now_s), None

    def seconds(self, now_s: float) -> float:
        """All of them until now."""
        return self._before_s + (0.0 if self._since_s is None else now_s - self._since_s)


class FirstTokenForecast:
    """Of all engines of one server. `step_tokens` is the most that one step computes, and
    `joint_tokens` the most of several prompts together, however large one alone is; None: as many.
    """

    def __init__(self, step_tokens: int, joint_tokens: int | None = None) -> None:
        self._step_tokens = step_tokens
        self._joint_tokens = joint_tokens
        self._engines: dict[int, StepTimes] = {}
        self._busy = _BusyTime()
        # Seconds at work until requests ended, and how many had by then; never empty.
        self._ends: deque[tuple[float, int]] = deque([(0.0, 0)], maxlen=_ENDS)
        self._prompt_tokens = self._computed_tokens = self._num_prompts = 0.0

    def note_step(
        self, engine: int, scheduler: SchedulerStats, iteration: IterationStats, now_s: float
    ) -> None:
        """An engine has made a step."""
        steps = self._engines.setdefault(engine, StepTimes())
        # Of a step's tokens every one that was no prompt's has brought a token of an answer.
        latencies = iteration.first_token_latencies_s
        longest_s = max(latencies, default=0.0)
        goes_on = bool(scheduler.num_running_reqs or scheduler.num_waiting_reqs)
        self._busy.note_step(engine, now_s - longest_s, now_s, goes_on=goes_on)
        decoded = iteration.num_generation_tokens - len(latencies)
        steps.note(
            now_s,
            max(0, scheduler.num_scheduled_tokens - decoded),
            goes_on=goes_on,
            longest_s=longest_s,
        )
        if iteration.num_prompt_tokens:
            self._prompt_tokens = self._prompt_tokens * _KEEP + iteration.num_prompt_tokens
            computed = iteration.num_computed_prompt_tokens
            self._computed_tokens = self._computed_tokens * _KEEP + computed
            self._num_prompts = self._num_prompts * _KEEP + len(latencies)

    def note_ends(self, now_s: float, count: int) -> None:
        """So many requests have left their places."""
        if count:
            self._ends.append((self._busy.seconds(now_s), self._ends[-1][1] + count))

    def seconds(self, num_tokens: int) -> float:
        """Until the last of `num_tokens` waiting prompt tokens is computed, or found in the prefix
        cache as often as lately: in the step after the one that runs, which may just have begun.
        """
        steps = self._engines.values() or [StepTimes()]
        tokens = num_tokens / len(steps)
        if self._prompt_tokens:
            tokens *= self._computed_tokens / self._prompt_tokens
        num_steps = max(1, math.ceil(tokens / self._tokens_of_a_step()))
        return min(one.base_s * (num_steps + 1) + one.per_token_s * tokens for one in steps)

    def _tokens_of_a_step(self) -> float:
        """Where prompts like the last ones wait: as many of them as go into one step together."""
        if self._joint_tokens is None or not self._num_prompts:
            return self._step_tokens
        usual = max(1.0, self._computed_tokens / self._num_prompts)
        return min(max(usual, self._joint_tokens // usual * usual), self._step_tokens)

    def seconds_to_a_place(self, now_s: float, num_waiting: int) -> float:
        """Until `num_waiting` requests have ended. Where they end at random it takes longer in one
        case of a hundred. Infinite before two have.
        """
        begun_s, num_before = self._ends[0]
        num_ended = self._ends[-1][1] - num_before
        if num_ended < 2:
            return math.inf
        rate = num_ended / max(self._busy.seconds(now_s) - begun_s, 1e-9)
        return (num_waiting + 2 * math.sqrt(num_waiting) + 2) / rate
