"""What executors of several ranks share: their error, steps under way, the tokens that ranks learn
which do not sample, and which rank limits the cache. No torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future

from engine.errors import EngineError
from engine.kv_sizing import KVCacheSpec
from engine.sched.scheduler_output import ModelRunnerOutput


class RankError(EngineError):
    """A rank has ended, stands still or failed; the engine cannot go on."""


class PendingStep(Future[ModelRunnerOutput]):
    """A step that is under way; who asks for the result does the waiting.

    `finish` returns once it has set the result, or raises why there is none.
    """

    def __init__(self, finish: Callable[[PendingStep], None]) -> None:
        super().__init__()
        self._finish = finish

    def result(self, timeout: float | None = None) -> ModelRunnerOutput:
        if not self.done():
            self._finish(self)
        return super().result(timeout)


class SampledTokens:
    """(request, token) of the steps whose results came since the ranks were last told."""

    def __init__(self) -> None:
        self._pairs: list[tuple[str, int]] = []

    def add(self, output: ModelRunnerOutput) -> None:
        for req_id, tokens in zip(output.req_ids, output.sampled_token_ids, strict=True):
            self._pairs += [(req_id, token) for token in tokens]

    def take(self) -> list[tuple[str, int]]:
        """All of them, for the next message."""
        taken, self._pairs = self._pairs, []
        return taken


def tightest_rank(available: Sequence[int], specs: Sequence[KVCacheSpec]) -> int:
    """The rank whose `available` bytes hold the fewest blocks; all have as many in the end."""
    blocks = [room // spec.bytes_per_block for room, spec in zip(available, specs, strict=True)]
    return blocks.index(min(blocks))
