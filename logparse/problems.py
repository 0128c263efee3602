"""What a known cause of failure is, and which lines are never a cause: wrappers and words of the
kernel.

The table of causes is in `problem_rules`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

Values = dict[str, str]


@dataclass(frozen=True, slots=True)
class ProblemRule:
    """One cause. `titles` are tried in order until one can be filled in."""

    id: str
    patterns: tuple[re.Pattern[str], ...]
    titles: tuple[str, ...]
    why: str
    fixes: tuple[tuple[str, str | None], ...]  # (text, command or None)
    functions: frozenset[str] = frozenset()  # the traceback must pass one of these
    is_fatal: bool = False  # an ERROR line of this wording ends a start without any exception
    derive: Callable[[Values], Values] | None = None

    def match(self, text: str) -> Values | None:
        """The named groups of the first pattern found in `text`, or None."""
        for pattern in self.patterns:
            if found := pattern.search(text):
                values = {
                    key: value for key, value in found.groupdict().items() if value is not None
                }
                return {**values, **self.derive(values)} if self.derive else values
        return None

    def allows(self, functions: tuple[str, ...]) -> bool:
        """Whether the traceback fits; without one, only rules that ask for none do."""
        return not self.functions or any(name in self.functions for name in functions)


def patterns(*texts: str) -> tuple[re.Pattern[str], ...]:
    """Compiled, for a ProblemRule."""
    return tuple(re.compile(text) for text in texts)


# Fixes that several causes share.
ASK_CLI = ("see the flags that this version knows", "{program} --help")
FREE_GPU = ("see what else holds the GPU and end it", "nvidia-smi")
SMALLER_MODEL = ("use a quantised checkpoint or a smaller model", None)
TWO_GPUS = ("spread the model over two GPUs", "{serve} --tensor-parallel-size 2")
QUANTISE = ("quantise while loading", "{serve} --quantization fp8")
NEWER_PACKAGES = ("use a release that knows the model", "pip install -U vllm transformers")

# Lines that only say that something else failed.
_WRAPPER_TEXTS = (
    "Engine core initialization failed. See root cause above",
    "Frontend process failed during engine core initialization",
    "WorkerProc initialization failed due to an exception",
    "please check the stack trace above for the root cause",
    "See stack trace (above) for the root cause",
    "Engine process failed to start. See stack trace",
    "EngineCore failed to start.",
    "WorkerProc failed to start.",
    "WorkerProc hit an exception.",
    "Engine core is dead",
    "ASGI 'lifespan'",
    "Application startup failed. Exiting.",
    "AsyncLLM output_handler failed.",
    "EngineDeadError",
    "EngineCore died: ",
    "EngineCore encountered a fatal error.",
)
_WRAPPER_CLASSES = re.compile(
    r"(?:[\w.]{0,200}\.)?(?:ValidationError: \d+ validation errors? for|SystemExit\b|"
    r"KeyboardInterrupt\b"
    r"|CancelledError\b|ChildFailedError\b)"
)


def is_wrapper(text: str) -> bool:
    """Whether the line points to a cause elsewhere instead of naming one."""
    head = text[:2000]
    return (
        any(known in head for known in _WRAPPER_TEXTS) or _WRAPPER_CLASSES.match(head) is not None
    )


# What a shell or the kernel prints when a process is gone without a word of its own.
DEATH_LINES = re.compile(
    r"(?:Killed|Terminated|Aborted|Segmentation fault|Bus error|Illegal instruction)(?: \(core "
    r"dumped\))?\s{0,9}$"
    r"|\S{0,200}: line \d{1,9}:\s{1,9}\d{1,9} (?:Killed|Segmentation fault|Bus error|Aborted|"
    r"Illegal instruction)"
    r"|.{0,200}Out of memory: Killed process"
)
