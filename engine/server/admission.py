"""Admission: how many requests may wait, and the answer to one too many.

Without a bound a server above its rate makes everybody wait longer and longer. With one it refuses
at once what it could not begin soon. Behaves as vLLM's --max-num-queued-reqs and
--max-num-queued-tokens, but answers 429, which says that it is the client's turn to wait;
--ttft-target-ms bounds the wait itself. What a refusal costs matters most when there are many of
them, so a request is refused by its head alone where it can be.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.errors import EngineAsleepError
from engine.frontend.async_llm import AsyncLLM
from engine.frontend.iteration_stats import IterationStats
from engine.messages import ASLEEP, SchedulerStats
from engine.server.errors import ApiError, error_response, to_api_error
from engine.server.first_token_forecast import FirstTokenForecast

_RETRY_AFTER_S = 1
_BYTES_OF_A_TOKEN = 4.0  # of a body, before any was seen
_MOST_BYTES_OF_A_TOKEN = 16.0  # what has more holds something else than text: images
_NEW_SHARE = 0.1  # that the newest body has in that number
_QUEUED_PATHS = frozenset(
    (
        *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"),
        *("/v1/embeddings", "/v1/score", "/v1/rerank", "/v2/rerank"),
    )
)


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Most requests and prompt tokens that may wait, and the longest expected time to the first
    token; None is no limit.

    `num_places` are the requests that all engines together run at once, `step_tokens` the most
    that a step of one computes, and `joint_tokens` the most of several prompts together.
    """

    max_reqs: int | None = None
    max_tokens: int | None = None
    num_places: int = 0
    ttft_target_s: float | None = None
    step_tokens: int = 1 << 30
    joint_tokens: int | None = None


class Seat:
    """The place of a request that was let in and has not reached the engine yet.

    One that is forgotten is free again. `num_tokens` is a guess until the prompt is tokenised.
    """

    __slots__ = ("__weakref__", "_seats", "num_bytes", "num_tokens")

    def __init__(self, seats: weakref.WeakSet[Seat], num_bytes: int, num_tokens: int) -> None:
        self._seats = seats
        self.num_bytes = num_bytes
        self.num_tokens = num_tokens
        seats.add(self)

    def leave(self) -> None:
        """The engine's own count has the request now, or it has been refused."""
        self._seats.discard(self)


class Admission:
    """Lets requests in; hears of every step what the schedulers hold (a StatSink).

    Lets everything in until it has limits.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._limits = QueueLimits()
        self._llm: AsyncLLM | None = None
        self._schedulers: dict[int, SchedulerStats] = {}
        self._seats: weakref.WeakSet[Seat] = weakref.WeakSet()
        self._elsewhere = (0, 0)
        self._forecast = FirstTokenForecast(self._limits.step_tokens)
        self._bytes_of_a_token = _BYTES_OF_A_TOKEN

    def open(self, limits: QueueLimits, llm: AsyncLLM) -> None:
        """Let no more in from now on than `limits` allow beside the requests of `llm`."""
        self._limits = limits
        self._llm = llm
        self._forecast = FirstTokenForecast(limits.step_tokens, limits.joint_tokens)

    def record(
        self, scheduler: SchedulerStats | None, iteration: IterationStats, engine: int = 0
    ) -> None:
        if scheduler is not None:
            self._schedulers[engine] = scheduler
        if self._limits.ttft_target_s is None:
            return
        now_s = self._clock()
        if scheduler is not None:
            self._forecast.note_step(engine, scheduler, iteration, now_s)
        self._forecast.note_ends(now_s, len(iteration.finished) + iteration.num_aborted)

    def note_elsewhere(self, num_requests: int, num_queued_tokens: int) -> None:
        """What other API servers of the same engines have let in, as they last said."""
        self._elsewhere = num_requests, num_queued_tokens

    def require_awake(self) -> None:
        """ApiError (503) while an engine sleeps."""
        if self._is_asleep:
            raise to_api_error(EngineAsleepError(ASLEEP))

    @property
    def _is_asleep(self) -> bool:
        return any(stats.sleep_level for stats in self._schedulers.values())

    def enter(self, num_bytes: int) -> Seat:
        """A seat for a request with so large a body, which is about to be prepared; ApiError (429)
        if too many wait, or (503) while an engine sleeps.
        """
        refusal = self.refusal(num_bytes)
        if refusal is not None:
            raise refusal
        return Seat(self._seats, num_bytes, self._guessed_tokens(num_bytes))

    def note_prompt(self, seat: Seat, num_tokens: int) -> None:
        """The prompts of a request that has a seat are tokenised."""
        seat.num_tokens = num_tokens
        new = min(seat.num_bytes / max(1, num_tokens), _MOST_BYTES_OF_A_TOKEN)
        self._bytes_of_a_token += (new - self._bytes_of_a_token) * _NEW_SHARE

    def refusal(self, num_bytes: int) -> ApiError | None:
        """What a request with a body of so many bytes is answered if it cannot be let in now."""
        if self._is_asleep:
            return to_api_error(EngineAsleepError(ASLEEP))
        limits = self._limits
        if limits.max_reqs is not None and self._num_queued(1) > limits.max_reqs:
            return try_later(
                f"{self.num_queued} requests are waiting, and --max-num-queued-reqs allows "
                f"{limits.max_reqs}"
            )
        if limits.max_tokens is not None and self.num_queued_tokens >= limits.max_tokens:
            return try_later(
                f"{self.num_queued_tokens} prompt tokens are waiting, and "
                f"--max-num-queued-tokens allows {limits.max_tokens}"
            )
        if limits.ttft_target_s is not None and self._num_inside:
            expected_s = self._expected_ttft_s(num_bytes)
            if expected_s > limits.ttft_target_s:
                when = f"the first token would come in about {expected_s * 1e3:.0f} ms"
                if math.isinf(expected_s):
                    when = "no place is free, and how soon one will be is not known yet"
                return try_later(f"{when}; --ttft-target-ms allows {limits.ttft_target_s * 1e3:g}")
        return None

    @property
    def num_queued(self) -> int:
        """Requests that do not run, as of the last step."""
        return self._num_queued(0)

    @property
    def num_queued_tokens(self) -> int:
        """Prompt tokens of the requests that have no answer yet."""
        preparing = sum(seat.num_tokens for seat in self._seats)
        return preparing + (self._llm.num_queued_tokens if self._llm else 0) + self._elsewhere[1]

    @property
    def _num_inside(self) -> int:
        known = self._llm.num_unfinished if self._llm else 0
        return len(self._seats) + known + self._elsewhere[0]

    def _num_queued(self, newcomers: int) -> int:
        """As long as nobody waits for room in a scheduler, it will take whatever it has places for.
        Whose turn has not come, but whose place is there, is not queued.
        """
        inside = self._num_inside + newcomers
        schedulers = self._schedulers.values()
        if any(stats.num_waiting_for_room for stats in schedulers):
            placed = sum(stats.num_running_reqs + stats.num_taking_turns for stats in schedulers)
            return max(0, inside - placed)
        return max(0, inside - self._limits.num_places)

    def _expected_ttft_s(self, num_bytes: int) -> float:
        """Of a newcomer: the wait for a place, if none is free, and for the prompts before it."""
        tokens = self.num_queued_tokens + self._guessed_tokens(num_bytes)
        expected_s = self._forecast.seconds(tokens)
        if num_waiting := self._num_queued(1):
            expected_s += self._forecast.seconds_to_a_place(self._clock(), num_waiting)
        return expected_s

    def _guessed_tokens(self, num_bytes: int) -> int:
        """Prompt tokens of a body, as many for a byte as in the last ones."""
        guess = int(num_bytes / self._bytes_of_a_token)
        return min(guess, self._llm.input_processor.max_model_len) if self._llm else guess


class AdmissionGate:
    """ASGI middleware: refuses by a request's head, so that a refusal costs neither routing nor
    reading. What it lets through may still be refused when the body is there.
    """

    def __init__(self, app: ASGIApp, admission: Callable[[], Admission | None]) -> None:
        self._app = app
        self._admission = admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through, or answer 429 or 503."""
        refusal = None
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in _QUEUED_PATHS:
            admission = self._admission()
            if admission is not None:
                refusal = admission.refusal(_content_length(scope))
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await error_response(refusal)(scope, receive, send)


def _content_length(scope: Scope) -> int:
    text = Headers(scope=scope).get("content-length", "")
    return int(text) if text.isdecimal() else 0


def try_later(why: str) -> ApiError:
    """The answer (429) to a request that might be taken a little later."""
    return ApiError(
        429,
        f"{why}; try again in {_RETRY_AFTER_S} s.",
        code="queue_full",
        headers={"Retry-After": str(_RETRY_AFTER_S)},
    )
