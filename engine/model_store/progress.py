"""How far the making or fetching of a model is, for whoever shows it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from engine.machine.sizes import human_bytes

_TITLES = {
    "wait": "waiting: another stoker is making this model",
    "download": "downloading",
    "check": "checking sha256",
    "unpack": "unpacking",
    "convert": "converting to bf16",
}
_LINE_EVERY_S = 20.0  # a slow network: whoever waits for a start must see that it moves


@dataclass(frozen=True, slots=True)
class StoreProgress:
    """One step of making a model. `total` is 0 while unknown; the unit is bytes or tensors."""

    step: str  # wait, download, check, unpack or convert
    done: int = 0
    total: int = 0
    unit: str = "bytes"

    def title(self, name: str) -> str:
        """What happens to the model `name`."""
        return f"{name}: {_TITLES.get(self.step, self.step)}"

    @property
    def size(self) -> str:
        """How much there is to download, in words that follow the title."""
        is_sized = self.total > 0 and self.unit == "bytes"
        return f" ({human_bytes(self.total)})" if is_sized else ""


OnProgress = Callable[[StoreProgress], None]


def told_by_step(name: str, say: Callable[[str], None]) -> OnProgress:
    """For who draws no bar: one line as each step of making `name` begins."""
    last = [""]

    def on_progress(progress: StoreProgress) -> None:
        if progress.step != last[0]:
            last[0] = progress.step
            say(progress.title(name) + progress.size)

    return on_progress


def told_by_tenth(
    name: str, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
) -> OnProgress:
    """For who draws no bar: a line for each tenth of a download, and for 20 seconds of a slow one.

    A download that begins in its middle says so with its first line.
    """
    last: list[tuple[int, int, float]] = []

    def on_progress(progress: StoreProgress) -> None:
        tenth = 10 * progress.done // max(progress.total, 1)
        if last:
            said_tenth, said_done, said_at = last[-1]
            is_slow = clock() - said_at >= _LINE_EVERY_S and progress.done > said_done
            if tenth <= said_tenth and not is_slow:
                return
        last[:] = [(tenth, progress.done, clock())]
        percent = 100 * progress.done // max(progress.total, 1)
        done, total = human_bytes(progress.done), human_bytes(progress.total)
        say(f"Downloading {name}: {percent}% ({done} of {total})")

    return on_progress
