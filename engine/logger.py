"""Log lines in vLLM 0.30's shape: `(EngineCore pid=7) INFO 10-03 12:00:00 [core.py:123] message`.

Lines go to stdout, one process prefix per physical line. Nothing that looks like a token, and no
API key of the configuration, reaches a log.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TextIO

from engine.machine.secrets import masked


class _PrefixFormatter(logging.Formatter):
    """Repeats the whole header on every physical line of a record, tracebacks included."""

    def __init__(self, process_name: str, secrets: tuple[str, ...]) -> None:
        super().__init__(datefmt="%m-%d %H:%M:%S")
        self._prefix = f"({process_name} pid={os.getpid()})"
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        header = (
            f"{self._prefix} {record.levelname} {self.formatTime(record, self.datefmt)} "
            f"[{record.filename}:{record.lineno}] "
        )
        return "\n".join(header + line for line in masked(text, self._secrets).split("\n"))


def setup_logging(
    process_name: str, *, secrets: tuple[str, ...] = (), stream: TextIO | None = None
) -> None:
    """Install the format for this process. `process_name` is `APIServer` or `EngineCore`."""
    handler = logging.StreamHandler(stream or sys.stdout)
    handler.setFormatter(_PrefixFormatter(process_name, tuple(s for s in secrets if s)))
    root = logging.getLogger("engine")
    root.handlers[:] = [handler]
    root.setLevel(os.environ.get("STOKER_LOGGING_LEVEL", "INFO").upper())
    root.propagate = False


def get_logger(name: str) -> logging.Logger:
    """A logger below `engine`, so that one handler serves all modules."""
    return logging.getLogger(name if name.startswith("engine") else f"engine.{name}")


class ProgressBar:
    """vLLM's shard bar on stdout: `(EngineCore pid=7) desc:  25% Completed | 1/4 [00:04<00:12,
    4.10s/it]`.

    Every refresh ends with a newline, as vLLM's own weight bar does.
    """

    def __init__(self, process_name: str, description: str, total: int) -> None:
        import time

        self._head = f"({process_name} pid={os.getpid()}) {description}"
        self._total = max(total, 1)
        self._clock = time.monotonic
        self._start = self._clock()
        self.update(0)

    def update(self, done: int) -> None:
        """Print the state after `done` of `total` steps."""
        elapsed = self._clock() - self._start
        left = elapsed / done * (self._total - done) if done else None
        print(
            f"{self._head}: {self._share(done)} {done}/{self._total} "
            f"[{_clock(elapsed)}<{_clock(left)}, {_rate(done, elapsed)}]\n",
            end="",  # in one piece: other processes write there too
            flush=True,
        )

    def _share(self, done: int) -> str:
        return f"{100 * done // self._total:3d}% Completed |"


class CaptureBar(ProgressBar):
    """The bar of CUDA graphs, drawn as tqdm does in plain text: `desc:  40%|####      | 2/5`."""

    def _share(self, done: int) -> str:
        tenths = 10 * done // self._total
        return f"{100 * done // self._total:3d}%|{'#' * tenths}{' ' * (10 - tenths)}|"


def _clock(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"


def _rate(done: int, elapsed: float) -> str:
    if not done or elapsed <= 0:
        return "?it/s"
    rate = done / elapsed
    return f"{rate:5.2f}it/s" if rate >= 1 else f"{1 / rate:5.2f}s/it"
