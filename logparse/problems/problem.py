"""What a known cause of failure is, and which lines are never a cause: wrappers and words of the
kernel.

The table of causes is in `table.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from logparse.problems.clues import CluedAlternatives, CluedPattern, clued, compiled

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
    is_of_usage: bool = False  # only a refused command line is explained by it
    is_echo: bool = False  # it only says that what was told before it failed
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
    """Regular expressions with their clues, as a ProblemRule wants them."""
    return tuple(clued(text) for text in texts)


# Fixes that several causes share.
WHO_STOPS = (
    "A SIGTERM of whoever manages the server: a person, a scheduler, or in Kubernetes a startup or "
    "liveness probe that gave up (it waits failureThreshold times periodSeconds, 30 s unless set)."
)
MORE_TIME = (
    "in Kubernetes, let the startup probe wait longer than the start takes, and see what it said",
    "kubectl describe pod <pod>",
)
ASK_CLI = ("see the flags that this version knows", "{program} --help")
FREE_GPU = ("see what else holds the GPU and end it", "nvidia-smi")
SMALLER_MODEL = ("use a quantised checkpoint or a smaller model", None)
MORE_GPUS = ("spread the model over {more_gpus} GPUs", "{serve} --tensor-parallel-size {more_gpus}")
QUANTISE = ("quantise while loading", "{serve} --quantization fp8")
NEWER_PACKAGES = ("use a release that knows the model", "pip install -U {package} transformers")

# However torch words it, on whatever device.
OUT_OF_MEMORY = (
    r"(?:CUDA|HIP|XPU|NPU|HPU|MPS|MUSA) out of memory\. Tried to allocate "
    r"(?P<wanted>[\d.]{1,12} [KMG]i?B)"
    r"(?:[^\n]{0,120}? of which (?P<free>[\d.]{1,12} (?:[KMG]i?B|bytes)) is free)?",
    r"(?:CUDA|HIP|XPU|NPU|HPU|MPS|MUSA) out of memory|OutOfMemoryError|hipErrorOutOfMemory",
    r"(?:CUDA|HIP|NPU) error: out of memory|cudaErrorMemoryAllocation",
    r"Triton Error \[(?:CUDA|HIP)\]: out of memory",
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
    "returned non-zero exit status",
    "Ninja build failed",
    "Error building extension",
)
_MODULE = r"(?:[\w.]{0,200}\.)?"
_WRAPPER_CLASSES = CluedAlternatives(
    _MODULE + r"ValidationError: \d+ validation errors? for",
    _MODULE + r"SystemExit\b",
    _MODULE + r"KeyboardInterrupt\b",
    _MODULE + r"CancelledError\b",
    _MODULE + r"ChildFailedError\b",
    _MODULE + r"RuntimeError: [Cc]ancelled$",
    _MODULE + r"BrokenPipeError\b",
    _MODULE + r"ConnectionResetError\b",
    _MODULE + r"EOFError$",
    _MODULE + r"ContextTerminated\b",
    _MODULE + r"RayTaskError\(",
    _MODULE + r"ProcessRaisedException\b",
)


def is_wrapper(text: str) -> bool:
    """Whether the line points to a cause elsewhere instead of naming one."""
    head = text[:2000]
    return _holds_wrapper(head) or _WRAPPER_CLASSES.begin(head)


def _holds_wrapper(text: str) -> bool:
    for known in _WRAPPER_TEXTS:  # noqa: SIM110 - any() is slower, and many lines ask this
        if known in text:
            return True
    return False


# Wrappers that quote what they wrap.
_QUOTED = (
    r"Worker failed with error (?P<quote>['\"])(?P<quoted>.{3,2000})(?P=quote), please check"
    r"|Exception in worker \w{1,60} while processing method \w{1,60}: (?P<method>[^\n]{3,2000}?)"
    r"(?:, Traceback|$)"
    r"|(?:EngineCore died|Scheduler hit an exception|Engine core \w{1,20} failed): "
    r"(?!Traceback)(?P<said>[^\n]{3,2000})"
)


def quoted_cause(text: str) -> str | None:
    """The words of a cause inside of a wrapper's, None if it only points elsewhere."""
    match = compiled(_QUOTED).search(text)
    inner = match["quoted"] or match["method"] or match["said"] if match is not None else None
    return inner if inner is not None and not is_wrapper(inner) else None


# Lines that tell that a start has ended, whether or not the reason stands in the log. An ERROR line
# may say it anywhere in its first words; a line without a level only in words of its own.
_PART = (
    r"\b(?:[Ee]ngine\w*|[Ww]orker\w*|[Ss]cheduler\w*|[Ss]erver|\w*[Pp]roc(?:ess)?|[Dd]etokenizer\w*"
    r"|\w*[Mm]odel[Ww]orker\w*|\w*[Mm]anager\w*|\w*[Cc]ontroller)\b"
)
_END = (
    r"(?:failed (?:to start|to initialize|during (?:start|init)\w*)|initialization failed"
    r"|hit an exception|encountered a fatal error|failed\.?$"
    r"|(?:has |was )?(?:died\b|crashed\b|killed\b)"
    r"|is dead\b|(?:exited|terminated|died) unexpectedly)"
)
_ANNOUNCED = (  # compiled when it is needed, as those below
    rf"[^\n]{{0,120}}?{_PART}[^\n.:]{{0,80}}?{_END}|[^\n]{{0,120}}?\w failed to start\b"
    r"|Exception in worker \w{1,40} while|[Ii]nitialization failed"
    r"|Received sigquit from a child|Application startup failed\. Exiting"
    r"|[^\n]{0,120}?Engine process failed to start"
)
_NOT_ZERO = r"(?:code|status)[ =:]{1,3}[1-9]\d{0,9}\b"
_LAUNCHERS = CluedAlternatives(
    r"[\w.-]{1,100} (?:\S{1,60} )?exited with " + _NOT_ZERO,
    r"(?:##\[error\])?(?:Error: )?[Pp]rocess (?:completed|exited|failed|terminated) with (?:exit )?"
    + _NOT_ZERO,
    r"ERROR: Job failed: exit " + _NOT_ZERO,
    r"make(?:\[\d{1,3}\])?: \*\*\* .{1,200} Error [1-9]",
    r"srun: error: .{1,200}: (?:Exited with exit " + _NOT_ZERO + r"|Out Of Memory|Killed|Aborted"
    r"|Segmentation fault)",
    r"slurmstepd: error: .{0,200}(?:CANCELLED|oom[-_]kill)",
    r"mpi(?:run|exec)\S{0,40} noticed that process",
    r"mpi(?:run|exec)\S{0,40} detected that one or more processes exited",
    r"\S{1,200}: Main process exited, code=exited, status=[1-9]",
    r"\S{1,200}: Failed with result '(?:exit-code|signal|core-dump)'",
    r"(?:\S{1,40} )?exited: \S{1,100} \((?:exit status [1-9]\d{0,4}; not expected|terminated by )",
    r"Back-off restarting failed container",
    r".{0,100}\bCrashLoopBackOff\b",
)


def announces_end(text: str, level: str | None) -> bool:
    """Whether an ERROR line, or one without a level, tells that a start or a part of it ended."""
    head = text[:600]
    if level is None and _LAUNCHERS.begin(head):
        return True
    if level is None and not _is_said_by_engine(head):
        return False
    return compiled(_ANNOUNCED).match(head) is not None


# What programs say that start a server for somebody else.
_NAMED_SERVER = (
    r"(?:.{0,80} )?(?:vllm|vLLM|sglang|SGLang|llama)[\w-]{0,20}(?: (?:server|process|backend))?"
    r" failed to start\b"
)


def _is_said_by_engine(text: str) -> bool:
    return (
        " hit an exception" in text
        or _holds_wrapper(text)
        or (" failed to start" in text and compiled(_NAMED_SERVER).match(text) is not None)
    )


# What a compiler, a linker or a build prints when it fails: alone no failure of a start, but the
# reason when a start fails with it.
_TOOLS = (
    *("ld", "lld", "gold", "mold", "collect2", "as", "cc", "gcc", "g++", "c++", "cc1plus", "clang"),
    *("clang++", "nvcc", "cicc", "hipcc", "ptxas", "fatbinary", "icpx", "cl", "link", "ninja"),
    *("cmake", "CMake", "make"),
)
_TOOL_FAILS = (
    rf"(?:\S{{0,200}}[/\\])?(?:{'|'.join(map(re.escape, _TOOLS))})(?:[.-][\w.]{{1,20}})?"
    r"\s{0,4}:?\s{0,4}(?:fatal|error|Error|cannot find|build stopped|\*\*\*)\b"
    r"|(?:\S{0,200}[/\\])?(?:ld|lld)(?:\.\w{1,10})?: \S{0,200}"
    r"(?:cannot find|undefined reference|unable to find library)"
)
_LONGEST_PROGRAM = 300  # characters
_BUILD_FAILURES = CluedAlternatives(
    r"\S{1,300}\(?:?\d{1,7}(?::\d{1,5})?\)?: (?:fatal )?error(?: \S{1,12})?: ",
    r"(?:\[\w{1,20}\] ?){0,3}\[FATAL\b[^\]\n]{0,20}\]",
    r"\S{1,200}: Check failed: ",
    r"Check failed: ",
    r"FAILED: (?:\[code=\d{1,5}\] )?\S",
)


def is_tool_failure(text: str) -> bool:
    """Whether a line without a level is a compiler's, a linker's or a build's complaint."""
    first = text[:_LONGEST_PROGRAM].partition(" ")[0].replace("\\", "/")
    is_tool = first.startswith(_TOOLS) or ("/" in first and _names_tool(first))
    return (is_tool and compiled(_TOOL_FAILS).match(text) is not None) or _BUILD_FAILURES.begin(
        text
    )


def _names_tool(path: str) -> bool:
    return any(part.startswith(_TOOLS) for part in path.split("/"))


# Who refuses a command line and is a server; others do so beside one.
_USAGE = r"(?P<program>(?:[A-Za-z]:)?[\w./\\-][\w./\\ -]{0,120}?): error: (?=\S)"
_SERVER_PROGRAM = (
    r"(?:\S{0,200}[/\\])?(?:vllm(?: serve)?|api_server\.py|sglang(?: serve)?|launch_server\.py"
    r"|llama-server(?:\.exe)?|stoker(?: \w{1,20})?|engine(?: serve)?)"
    r"|(?:\S{0,200}[/\\])?python[\d.]{0,5}(?:\.exe)? -m (?:vllm|sglang|engine)\b.{0,80}"
)


def usage_program(text: str) -> str | None:
    """The program that refuses its arguments in this line, None if none does."""
    match = compiled(_USAGE).match(text) if ": error: " in text[:160] else None
    return match["program"] if match is not None else None


def is_server_program(program: str) -> bool:
    """Whether it starts a server."""
    return compiled(_SERVER_PROGRAM).fullmatch(program) is not None


# What a shell or the kernel prints when a process is gone without a word of its own.
_DEATH_LINES = (
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
    ) and compiled(_DEATH_LINES).match(text) is not None


# Lines without a level that end a start: llama-server's own, and those of compiled code.
_NAMED = r"(?:[\w.()]{1,80}:? {1,4}){0,3}"  # by llama-server's functions
_PLAIN_FAILURES = CluedAlternatives(
    _NAMED + r"error loading model\b",
    _NAMED + r"failed to load model\b",
    _NAMED + r"exiting due to model loading error",
    _NAMED + r"failed to (?:open GGUF|allocate |initialize (?:the context|router models)"
    r"|create (?:llama_)?context|download model)",
    _NAMED + r"couldn't bind HTTP server socket",
    _NAMED + r"invalid magic (?:characters|number)",
    _NAMED + r"Device memory allocation of size \d{1,15} failed",
    _NAMED + r"vk::[\w:]{1,80}: Error",
    _NAMED + r"allocating [\d.]{1,14} MiB on device \d{1,3}: cudaMalloc failed",
    _NAMED + r"no backends are loaded",
    r"error: (?:invalid|unknown) argument: ",
    r"error while handling argument ",
    r"error: (?:--model is required|expected value for argument|the argument )",
    r"(?:CUDA|ROCm|HIP|MUSA|SYCL|Vulkan) error: ",
    r"(?:\S{1,300}:\d{1,6}: )?GGML_ASSERT\(",
    r"error: Insufficient Memory \(",
    r"Failed: Cuda error ",
    r".{0,200}Watchdog caught collective operation timeout",
    r"nvidia-container-cli: ",
    r"(?:\S{1,200}: )?error while loading shared libraries: ",
    r"(?:error: )?built without (?:CURL|SSL)",
    r"(?:error: )?error from HF API",
    r"(?:error: )?HTTPS is not supported",
    r"(?:error: )?[^\n]{0,60}chat template is not supported",
    r".{0,300}failed (?:startup|liveness) probe, will be restarted",
)


def is_plain_failure(text: str) -> bool:
    """Whether a line without a level ends a start."""
    return _PLAIN_FAILURES.begin(text)


_LOUD_STARTS = ("nvidia-container-cli", "FAILED: ", "mpi", "Back-off", "built without")


def is_loud(text: str) -> bool:
    """A cheap test of a line without a level: False if no sort of failure can be in it."""
    # One of these is in each line that ends a start, or tells why, or it begins with one of the
    # others. To look for them costs a tenth of the patterns, and written out like this a third of a
    # loop.
    return (
        "rror" in text
        or "ail" in text
        or "xit" in text
        or "died" in text
        or "dead" in text
        or "fatal" in text
        or "cannot find" in text
        or "bind" in text
        or "magic" in text
        or "no backends" in text
        or "Watchdog" in text
        or "ASSERT(" in text
        or "build stopped" in text
        or "undefined ref" in text
        or "hit an exc" in text
        or "BackOff" in text
        or "sigquit" in text
        or "not supported" in text
        or text.startswith(_LOUD_STARTS)
        or (text[:1] == "[" and "NOT connected" in text)
    )
