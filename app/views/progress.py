"""Shows how a model is being made: a rich bar on a terminal, one line per step anywhere else."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from app.output import say, talk_console
from engine.machine.sizes import human_bytes

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from engine.model_store.progress import StoreProgress


class ModelProgress:
    """Context manager; call it with each StoreProgress. Nothing is drawn when nothing is made."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._step = ""
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> ModelProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, progress: StoreProgress) -> None:
        if progress.step != self._step:
            self._step = progress.step
            self._begin(progress)
        if self._progress is not None and self._task is not None:
            self._progress.update(
                self._task,
                completed=progress.done,
                total=progress.total or None,
                amount=_amount(progress),
            )

    def _begin(self, progress: StoreProgress) -> None:
        title = progress.title(self._name)
        if not sys.stderr.isatty():
            say(title + progress.size)
            return
        if self._progress is None:
            self._progress = _new_progress()
            self._progress.start()
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(title, total=progress.total or None, amount="")


def _new_progress() -> Progress:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[amount]}"),
        TimeElapsedColumn(),
        console=talk_console(),
        transient=True,
    )


def _amount(progress: StoreProgress) -> str:
    if not progress.total:
        return ""
    if progress.unit == "bytes":
        return f"{human_bytes(progress.done)} of {human_bytes(progress.total)}"
    return f"{progress.done}/{progress.total} {progress.unit}"
