"""RequestDelta: what a request produced since its consumer last looked; the box it waits in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.frontend.logprobs import LogprobsList
from engine.messages import FinishReason


@dataclass(slots=True)
class RequestDelta:
    """New text and tokens of one request; `stop_reason` is the stop string or token that ended it.

    `text` may be empty: a character may be incomplete, or a stop string may have begun. `logprobs`
    runs parallel to `token_ids` (a stop token counts, though its text is not shown);
    `prompt_logprobs` comes with the first output. Both are None unless asked for. `pooling_output`,
    little-endian float32, is all that a pooling request gets. `reasoning` and the number of its
    tokens are told from the text by the API server, where a model thinks.
    """

    request_id: str
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    num_cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    logprobs: LogprobsList | None = None
    prompt_logprobs: LogprobsList | None = None
    pooling_output: bytes | None = None
    reasoning: str = ""
    num_reasoning_tokens: int = 0

    @property
    def is_finished(self) -> bool:
        """True on the last output of a request."""
        return self.finish_reason is not None

    def absorb(self, newer: RequestDelta) -> None:
        """Append a later output, so that a slow consumer gets both at once."""
        self.text += newer.text
        self.token_ids.extend(newer.token_ids)
        self.num_cached_tokens = newer.num_cached_tokens
        self.finish_reason = newer.finish_reason
        self.stop_reason = newer.stop_reason
        if self.logprobs is not None and newer.logprobs is not None:
            self.logprobs.extend(newer.logprobs)


@dataclass(frozen=True, slots=True)
class Outlet:
    """Where outputs go at once while their consumer waits for the next one, which then sleeps on.

    `can_take` says whether `take` may be called with an output; the last one of a request never
    goes this way. None of them may wait.

    `take_text` is the short way of an output that is more text, of so many tokens, and nothing
    else: it is False where it has not taken it. Outlets that look at more than that have none.
    """

    can_take: Callable[[RequestDelta], bool]
    take: Callable[[RequestDelta], None]
    take_text: Callable[[str, int], bool] | None = None

    def behind(self, change: Callable[[RequestDelta], RequestDelta]) -> Outlet:
        """The same for outputs that `change` makes others of."""
        return Outlet(self.can_take, lambda output: self.take(change(output)))


class OutputBox:
    """Holds at most one output; what arrives while it is full is merged into it.

    So a consumer that stops reading costs memory for its text only, and never blocks the others.
    """

    __slots__ = ("_error", "_filled", "_is_awaited", "_outlet", "_output")

    def __init__(self, outlet: Outlet | None = None) -> None:
        self._outlet = outlet
        self._is_awaited = False  # and has nothing yet
        self._output: RequestDelta | None = None
        self._error: Exception | None = None
        self._filled = asyncio.Event()

    def put_text(self, text: str, num_tokens: int) -> bool:
        """Send more text at once, if it can be, with no output made for it."""
        outlet = self._outlet
        if not self._is_awaited or outlet is None or outlet.take_text is None:
            return False
        try:
            return outlet.take_text(text, num_tokens)
        except Exception as error:  # of one request, not of all
            self.fail(error)
        return True

    def put(self, output: RequestDelta) -> None:
        """Add an output; never blocks."""
        if self._is_awaited and self._goes_out(output):
            return
        if self._output is None:
            self._output = output
        else:
            self._output.absorb(output)
        self._fill()

    def fail(self, error: Exception) -> None:
        """Make the next `get` raise, even if an output waits."""
        self._error = error
        self._fill()

    async def get(self) -> RequestDelta:
        """Wait for the next output; raises what `fail` was given."""
        if not self._filled.is_set():
            self._is_awaited = True
            try:
                await self._filled.wait()
            finally:
                self._is_awaited = False
        if self._error is not None:
            raise self._error
        output = self._output
        assert output is not None, "set only together with an output or an error"
        self._output = None
        self._filled.clear()
        return output

    def _goes_out(self, output: RequestDelta) -> bool:
        """Whether the outlet has dealt with it, if only by failing, which its consumer is told."""
        outlet = self._outlet
        if outlet is None or output.is_finished:
            return False
        try:
            if not outlet.can_take(output):
                return False
            outlet.take(output)
        except Exception as error:  # of one request, not of all
            self.fail(error)
        return True

    def _fill(self) -> None:
        self._is_awaited = False
        self._filled.set()
