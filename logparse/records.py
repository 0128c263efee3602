"""The values that leave logparse: events of a live log, and the report of a whole one.

Everything is frozen. What the log does not say is None, never 0; text in here is already masked
and free of control characters. A value that differs between ranks or devices is a tuple, in order
of appearance.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

_BLOCKS_OF_16 = frozenset(
    {"FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "Flash Attention", "XFormers"}
)
Measured = int | float | tuple[int | float, ...]
FactValue = str | int | float | bool | tuple[int | float, ...]


class Outcome(enum.Enum):
    """How the last start in the log ended."""

    READY = "ready"
    FAILED = "failed"
    RUNNING = "running"  # begins at the start, no error, not ready yet
    TRUNCATED = "truncated"  # the beginning is missing or parts were cut
    NOT_A_SERVER_LOG = "not-a-server-log"


@dataclass(frozen=True, slots=True)
class Fix:
    """One thing to do; `command` is what to type, None when it is not a command."""

    text: str
    command: str | None


@dataclass(frozen=True, slots=True)
class Problem:
    """A cause of failure, with the line of the log that shows it."""

    id: str
    title: str
    why: str
    fixes: tuple[Fix, ...]
    key_line: str
    key_line_number: int
    process: str | None
    is_known: bool
    place: str | None = None  # file, line and function that raised it


@dataclass(frozen=True, slots=True)
class Phase:
    """One of the five parts of a start; `seconds` is None if absent, unfinished or unstamped."""

    name: str
    seconds: float | None
    state: str  # done, running, failed, absent


@dataclass(frozen=True, slots=True)
class Process:
    """A process by the name in its prefix; lines of all its pids together."""

    name: str
    pids: tuple[int, ...]
    num_lines: int


@dataclass(frozen=True, slots=True)
class LineCounts:
    """Physical lines of the whole log; bars are among those without a level."""

    total: int = 0
    without_level: int = 0
    progress_bars: int = 0
    warnings: int = 0
    errors: int = 0


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start in a log that holds several."""

    first_line: int
    outcome: Outcome
    key_line: str | None
    key_line_number: int | None


@dataclass(frozen=True, slots=True)
class Facts:
    """What the log says about the server. The unit ends the name."""

    engine_version: str | None = None
    model: str | None = None
    non_default_args: str | None = None
    architecture: str | None = None
    dtype: str | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    attention_backend: str | None = None
    platform: str | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    data_parallel_size: int | None = None
    enforce_eager: bool | None = None
    max_model_len: int | None = None
    requested_max_model_len: int | None = None
    requested_port: int | None = None
    max_num_batched_tokens: int | None = None
    weights_gib: Measured | None = None
    load_weights_s: Measured | None = None
    model_load_s: Measured | None = None
    dynamo_s: Measured | None = None
    compile_s: Measured | None = None
    warmup_run_s: Measured | None = None
    kv_memory_gib: Measured | None = None
    kv_tokens: Measured | None = None
    kv_blocks: int | None = None
    num_slots: int | None = None  # llama-server's: requests that run at once
    slot_tokens: int | None = None  # the longest request in one of them
    max_concurrency: Measured | None = None
    graph_capture_s: Measured | None = None
    graph_gib: Measured | None = None
    engine_init_s: float | None = None
    block_size: int | None = None
    gpu_memory_utilization: float | None = None
    gpu_total_gib: float | None = None
    peak_activation_gib: float | None = None
    non_torch_gib: float | None = None
    checkpoint_gib: float | None = None
    download_s: float | None = None
    server_url: str | None = None
    supported_tasks: str | None = None
    waits_for_pid: int | None = None  # another start, which measures the same memory
    prompt_tokens_per_s: float | None = None
    generation_tokens_per_s: float | None = None
    num_running: int | None = None
    num_waiting: int | None = None
    kv_usage_percent: float | None = None


@dataclass(frozen=True, slots=True)
class WarningFound:
    """A warning that matters, once for all lines of it; a lower `rank` matters more."""

    id: str
    rank: int
    title: str
    why: str
    fixes: tuple[Fix, ...]
    line: str
    line_number: int  # of the first
    count: int


@dataclass(frozen=True, slots=True)
class TimePart:
    """A stretch of the start that took long, by what was being done."""

    name: str
    seconds: float
    line_number: int  # of the line that ended it


@dataclass(frozen=True, slots=True)
class Sample:
    """One throughput line; `at` is the log's clock in seconds, if lines are stamped."""

    at: float | None
    prompt_tokens_per_s: float
    generation_tokens_per_s: float
    num_running: int
    num_waiting: int
    kv_usage_percent: float


@dataclass(frozen=True, slots=True)
class Serving:
    """What the throughput and preemption lines say. Many samples are thinned out, evenly."""

    samples: tuple[Sample, ...]
    num_lines: int
    peak_kv_percent: float
    peak_line_number: int
    most_waiting: int
    num_preemptions: int
    bursts: tuple[tuple[int, int], ...]  # preemptions close together: (first line, how many)


@dataclass(frozen=True, slots=True)
class Insight:
    """What a log tells beside facts and phases."""

    warnings: tuple[WarningFound, ...] = ()  # the one that matters most first
    num_other_warnings: int = 0
    parts: tuple[TimePart, ...] = ()
    compiled_s: float | None = None  # graphs compiled anew and kept for the next start
    used_compile_cache: bool = False
    serving: Serving | None = None


@dataclass(frozen=True, slots=True)
class LogReport:
    """All that was read so far. Of several starts in one log, the last one counts."""

    outcome: Outcome
    engine: str | None
    facts: Facts
    phases: tuple[Phase, ...]
    problem: Problem | None  # why the start failed, or why a ready server died
    died_after_ready: bool
    was_stopped: bool
    is_offline: bool  # an engine inside a script, without a server
    ready_url: str | None
    first_to_ready_s: float | None
    processes: tuple[Process, ...]
    lines: LineCounts
    last_message: str | None = None
    attempts: tuple[Attempt, ...] = field(default=())
    insight: Insight = Insight()

    @property
    def block_size(self) -> int | None:
        """Tokens in a KV block, if the log tells: stated, or the default of a known backend."""
        facts = self.facts
        if facts.block_size is not None:
            return facts.block_size
        # The printed arguments hold each flag that is not at its default.
        is_default = facts.non_default_args is not None
        return 16 if is_default and facts.attention_backend in _BLOCKS_OF_16 else None

    @property
    def kv_tokens_total(self) -> int | None:
        """Token slots of the KV cache, from tokens or blocks; the least of several ranks."""
        tokens, blocks = self.facts.kv_tokens, self.facts.kv_blocks
        if tokens is not None:
            return int(min(tokens) if isinstance(tokens, tuple) else tokens)
        return blocks * (self.facts.block_size or 16) if blocks is not None else None


@dataclass(frozen=True, slots=True)
class Event:
    """Something a fed line told."""

    line_number: int


@dataclass(frozen=True, slots=True)
class PhaseStarted(Event):
    """The start entered this phase; `at` is the log's clock in seconds, if lines are stamped."""

    name: str
    at: float | None


@dataclass(frozen=True, slots=True)
class PhaseFinished(Event):
    """The phase is over; `seconds` by the log's clock, None without stamps."""

    name: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class FactFound(Event):
    """A field of Facts has a new value."""

    key: str
    value: FactValue


@dataclass(frozen=True, slots=True)
class ProgressMade(Event):
    """A progress bar moved; `text` is its description."""

    text: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class ProblemFound(Event):
    """A line that may be the cause of a failure; `explain` decides at the end."""

    problem: Problem


@dataclass(frozen=True, slots=True)
class ServerReady(Event):
    """Start-up is complete; `url` is None where the log names no address."""

    url: str | None


@dataclass(frozen=True, slots=True)
class ServerStopped(Event):
    """The server said that its shutdown is complete."""


@dataclass(frozen=True, slots=True)
class StartRepeated(Event):
    """Another start begins in the same log; what was known belongs to the one before."""
