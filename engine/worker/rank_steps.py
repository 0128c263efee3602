"""What executors of several ranks share: their errors, steps under way, the tokens that ranks learn
which do not sample, and what their answers are compared for. No torch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future

from engine.errors import EngineError
from engine.kv_sizing import KVCacheSpec
from engine.sched.scheduler_output import ModelRunnerOutput
from engine.worker.rank_progress import StepNote
from engine.worker.worker_messages import StepAnswer

TIMED_STEPS = 50
"""Of a rank, for means."""


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


class ToldRank:
    """What a rank whose memory is not EngineCore's has told of its steps."""

    def __init__(self) -> None:
        self.notes: deque[StepNote] = deque(maxlen=TIMED_STEPS)
        self.pid = 0  # not known before its first step
        self.held_bytes: int | None = None

    def take(self, answer: StepAnswer) -> None:
        self.notes.append(answer.note)
        self.pid, self.held_bytes = answer.pid, answer.held_bytes

    @property
    def num_steps(self) -> int:
        return self.notes[-1].number if self.notes else 0

    def note(self, number: int) -> StepNote | None:
        """Of that step, None where it has not come or is long past."""
        return next((note for note in self.notes if note.number == number), None)


def disagrees_on_step(name: str, others: Sequence[str], number: int) -> str:
    """What to say of a rank that computed something else in that step, counted from the start."""
    return (
        f"Worker proc {name} disagrees with {', '.join(others)}: in step {number} it computed "
        "other tokens or used other blocks, shutting down executor."
    )


def disagrees_on_blocks(name: str, found: int, asked: int) -> str:
    """What to say of a rank whose KV cache has another number of blocks than all should have."""
    return (
        f"Worker proc {name} disagrees with the others: it has a KV cache of {found} blocks where "
        f"{asked} were asked for, shutting down executor."
    )


def rank_with_other_blocks(
    cache_bytes: Sequence[int], specs: Sequence[KVCacheSpec], num_blocks: int
) -> tuple[int, int] | None:
    """The first rank that does not have `num_blocks`, and how many it has."""
    for rank, (num_bytes, spec) in enumerate(zip(cache_bytes, specs, strict=True)):
        if num_bytes != num_blocks * spec.bytes_per_block:
            return rank, num_bytes // spec.bytes_per_block
    return None


def mean_times(notes: Collection[StepNote]) -> tuple[float | None, float | None]:
    """Seconds of a step and, of these, of waiting for other ranks; None without steps."""
    if not notes:
        return None, None
    return (
        sum(note.seconds for note in notes) / len(notes),
        sum(note.waited_s for note in notes) / len(notes),
    )


def tightest_rank(available: Sequence[int], specs: Sequence[KVCacheSpec]) -> int:
    """The rank whose `available` bytes hold the fewest blocks; all have as many in the end."""
    blocks = [room // spec.bytes_per_block for room, spec in zip(available, specs, strict=True)]
    return blocks.index(min(blocks))
