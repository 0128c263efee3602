"""Admission: how many requests may wait, and the answer to one too many.

Without a bound a server above its rate makes everybody wait longer and longer. With one it refuses
at once what it could not begin soon. Behaves as vLLM's --max-num-queued-reqs and
--max-num-queued-tokens, but answers 429, which says that it is the client's turn to wait.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

from engine.frontend.async_llm import AsyncLLM
from engine.frontend.iteration_stats import IterationStats
from engine.messages import SchedulerStats
from engine.server.errors import ApiError

_RETRY_AFTER_S = 1


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Most requests and prompt tokens that may wait; None is no limit.

    `num_places` are the requests that all engines together run at once.
    """

    max_reqs: int | None = None
    max_tokens: int | None = None
    num_places: int = 0


class Seat:
    """The place of a request that was let in and has not reached the engine yet.

    One that is forgotten is free again.
    """

    __slots__ = ("__weakref__", "_seats")

    def __init__(self, seats: weakref.WeakSet[Seat]) -> None:
        self._seats = seats
        seats.add(self)

    def leave(self) -> None:
        """The engine's own count has the request now, or it has been refused."""
        self._seats.discard(self)


class Admission:
    """Lets requests in; hears of every step what the schedulers hold (a StatSink).

    Lets everything in until it has limits.
    """

    def __init__(self) -> None:
        self._limits = QueueLimits()
        self._llm: AsyncLLM | None = None
        self._schedulers: dict[int, SchedulerStats] = {}
        self._seats: weakref.WeakSet[Seat] = weakref.WeakSet()
        self._elsewhere = (0, 0)

    def open(self, limits: QueueLimits, llm: AsyncLLM) -> None:
        """Let no more in from now on than `limits` allow beside the requests of `llm`."""
        self._limits = limits
        self._llm = llm

    def record(
        self, scheduler: SchedulerStats | None, _iteration: IterationStats, engine: int = 0
    ) -> None:
        if scheduler is not None:
            self._schedulers[engine] = scheduler

    def note_elsewhere(self, num_requests: int, num_queued_tokens: int) -> None:
        """What other API servers of the same engines have let in, as they last said."""
        self._elsewhere = num_requests, num_queued_tokens

    def enter(self) -> Seat:
        """A seat for a request that is about to be prepared; ApiError (429) if too many wait."""
        limits = self._limits
        if limits.max_reqs is not None and self._num_queued(1) > limits.max_reqs:
            raise _refusal(
                f"{self.num_queued} requests are waiting, and --max-num-queued-reqs allows "
                f"{limits.max_reqs}"
            )
        if limits.max_tokens is not None and self.num_queued_tokens >= limits.max_tokens:
            raise _refusal(
                f"{self.num_queued_tokens} prompt tokens are waiting, and "
                f"--max-num-queued-tokens allows {limits.max_tokens}"
            )
        return Seat(self._seats)

    @property
    def num_queued(self) -> int:
        """Requests that do not run, as of the last step."""
        return self._num_queued(0)

    def _num_queued(self, newcomers: int) -> int:
        """As long as nobody waits in a scheduler, it will take whatever it has places for."""
        inside = len(self._seats) + (self._llm.num_unfinished if self._llm else 0) + newcomers
        inside += self._elsewhere[0]
        schedulers = self._schedulers.values()
        if any(stats.num_waiting_reqs for stats in schedulers):
            return max(0, inside - sum(stats.num_running_reqs for stats in schedulers))
        return max(0, inside - self._limits.num_places)

    @property
    def num_queued_tokens(self) -> int:
        """Prompt tokens of the requests that have no answer yet."""
        return (self._llm.num_queued_tokens if self._llm else 0) + self._elsewhere[1]


def _refusal(why: str) -> ApiError:
    return ApiError(
        429,
        f"{why}; try again in {_RETRY_AFTER_S} s.",
        code="queue_full",
        headers={"Retry-After": str(_RETRY_AFTER_S)},
    )
