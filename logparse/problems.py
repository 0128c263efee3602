"""What a known cause of failure is, and which lines are never a cause: wrappers and words of the
kernel.

The table of causes is in `problem_rules`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from logparse.clues import CluedPattern, clued

Values = dict[str, str]


@dataclass(frozen=True, slots=True)
class ProblemRule:
    """One cause. `titles` are tried in order until one can be filled in."""

    id: str
    patterns: tuple[CluedPattern, ...]
    titles: tuple[str, ...]
    why: str
    fixes: tuple[tuple[str, str | None], ...]  # (text, command or None)
    functions: frozenset[str] = frozenset()  # the traceback must pass one of these
    not_functions: frozenset[str] = frozenset()  # and none of these
    place: str = ""  # if a traceback is shown, it ends in a file of this path
    is_fatal: bool = False  # an ERROR line of this wording ends a start without any exception
    is_general: bool = False  # a more exact one of the same process wins, also if it comes later
    derive: Callable[[Values], Values] | None = None
    engine: str = ""  # whose words they are, when the log holds nothing else

    def match(self, text: str) -> Values | None:
        """The named groups of the first pattern found in `text`, or None."""
        for pattern in self.patterns:
            if found := pattern.search(text):
                values = {
                    key: value for key, value in found.groupdict().items() if value is not None
                }
                return {**values, **self.derive(values)} if self.derive else values
        return None

    def allows(self, functions: tuple[str, ...], place: str | None) -> bool:
        """Whether the traceback fits; without one, only rules that ask for no function do."""
        if place is not None and self.place not in place:
            return False
        if not self.functions.isdisjoint(functions) or not self.functions:
            return self.not_functions.isdisjoint(functions)
        return False


def patterns(*texts: str) -> tuple[CluedPattern, ...]:
    """For a ProblemRule."""
    return tuple(clued(text) for text in texts)


# Fixes that several causes share.
ASK_CLI = ("see the flags that this version knows", "{program} --help")
FREE_GPU = ("see what else holds the GPU and end it", "nvidia-smi")
SMALLER_MODEL = ("use a quantised checkpoint or a smaller model", None)
MORE_GPUS = ("spread the model over {more_gpus} GPUs", "{serve} --tensor-parallel-size {more_gpus}")
QUANTISE = ("quantise while loading", "{serve} --quantization fp8")
NEWER_PACKAGES = ("use a release that knows the model", "pip install -U vllm transformers")

# However torch words it, on whatever device.
OUT_OF_MEMORY = (
    r"(?:CUDA|HIP|XPU|NPU|HPU|MPS|MUSA) out of memory\. Tried to allocate "
    r"(?P<wanted>[\d.]{1,12} [KMG]i?B)"
    r"(?:[^\n]{0,120}? of which (?P<free>[\d.]{1,12} (?:[KMG]i?B|bytes)) is free)?",
    r"(?:CUDA|HIP|XPU|NPU|HPU|MPS|MUSA) out of memory|OutOfMemoryError|hipErrorOutOfMemory",
    r"(?:CUDA|HIP|NPU) error: out of memory|cudaErrorMemoryAllocation",
    r"OUT_OF_DEVICE_MEMORY|OUT_OF_HOST_MEMORY",
)

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
    "WorkerProc failed.",
    "failed to be inspected",
    "Error in inspecting model architecture",
    "Error raised in subprocess",
    "vllm.model_executor.models.registry",
    "Dumping input data for ",
    "Dumping scheduler ",
    "Initialization failed. Please see the error messages above",
    "Received sigquit from a child process",
    "scheduler is dead. Please check",
    "Exception in worker VllmWorkerProcess",
)
_WRAPPER_CLASSES = re.compile(
    r"(?:[\w.]{0,200}\.)?(?:ValidationError: \d+ validation errors? for|SystemExit\b|"
    r"KeyboardInterrupt\b|CancelledError\b|ChildFailedError\b|RuntimeError: cancelled$|"
    r"BrokenPipeError\b|ConnectionResetError\b|EOFError$|ContextTerminated\b|"
    r"RayTaskError\(|ProcessRaisedException\b)"
)


def is_wrapper(text: str) -> bool:
    """Whether the line points to a cause elsewhere instead of naming one."""
    head = text[:2000]
    return (
        any(known in head for known in _WRAPPER_TEXTS) or _WRAPPER_CLASSES.match(head) is not None
    )


# What a shell or the kernel prints when a process is gone without a word of its own.
_DEATH_LINES = re.compile(
    r"(?:Killed|Terminated|Aborted|Segmentation fault|Bus error|Illegal instruction)(?: \(core "
    r"dumped\))?\s{0,9}$"
    r"|\S{0,200}: line \d{1,9}:\s{1,9}\d{1,9} (?:Killed|Segmentation fault|Bus error|Aborted|"
    r"Illegal instruction)"
    r"|.{0,200}Out of memory: Killed process"
    r"|\S{1,200}: Main process exited, code=(?:killed|dumped), status=(?:4|6|7|9|11)/[A-Z]"
    r"|\S{1,200}: (?:Failed with result 'oom-kill'"
    r"|A process of this unit has been killed by the OOM)"
    r"|[\w.-]{1,100} exited with code (?:132|134|135|137|139)\b"
    r"|Fatal Python error: |terminate called after throwing an instance of |what\(\): "
    r"|(?:double free or corruption|free\(\): invalid|malloc\(\): |corrupted size vs)"
)
_DEATH_STARTS = ("Killed", "Terminated", "Aborted", "Segm", "Bus e", "Illegal", "Fatal", "what()",
                 "terminate", "double free", "free()", "malloc()", "corrupted size")  # fmt: skip
_DEATH_FIRSTS = frozenset(start[0] for start in _DEATH_STARTS)


def is_death(text: str) -> bool:
    """Whether a line without a level and indentation tells of the end of a process."""
    return (
        (text[:1] in _DEATH_FIRSTS and text.startswith(_DEATH_STARTS))
        or ": line " in text
        or "Killed" in text  # by the kernel
        or "kill" in text  # by its OOM killer
        or " exited" in text
    ) and _DEATH_LINES.match(text) is not None


# Lines without a level that end a start: llama-server's own, and those of compiled code.
_PLAIN_FAILURES = re.compile(
    r"(?:[\w.()]{1,80}:? {1,4}){0,3}"
    r"(?:error loading model\b|failed to load model\b|exiting due to model loading error"
    r"|failed to (?:open GGUF|allocate |initialize the context|create (?:llama_)?context|"
    r"download model)|couldn't bind HTTP server socket|invalid magic (?:characters|number)"
    r"|Device memory allocation of size \d{1,15} failed|vk::[\w:]{1,80}: Error"
    r"|allocating [\d.]{1,14} MiB on device \d{1,3}: cudaMalloc failed|no backends are loaded)"
    r"|error: (?:invalid|unknown) argument: |error while handling argument "
    r"|error: (?:--model is required|expected value for argument|the argument )"
    r"|(?:CUDA|ROCm|HIP|MUSA|SYCL|Vulkan) error: |(?:\S{1,300}:\d{1,6}: )?GGML_ASSERT\("
    r"|Failed: Cuda error |.{0,200}Watchdog caught collective operation timeout"
    r"|nvidia-container-cli: |ptxas fatal"
)


def is_plain_failure(text: str) -> bool:
    """Whether a line without a level ends a start."""
    # One of these words is in each such line; looking for them costs a tenth of the pattern.
    return (
        "rror" in text
        or "ailed" in text
        or "couldn't bind" in text
        or "magic" in text
        or "no backends" in text
        or "Watchdog" in text
        or "nvidia-c" in text
        or "ptxas" in text
        or "GGML_ASSERT(" in text
    ) and _PLAIN_FAILURES.match(text) is not None
