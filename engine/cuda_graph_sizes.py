"""CUDA graphs without CUDA: which batch sizes are captured and which graph a batch would replay.

vLLM 0.30's rules (`_set_cudagraph_sizes` and the dispatcher), for planning and for flag checks.
Sizes are tokens of one step. Captures nothing itself; no torch.
"""

from __future__ import annotations

import bisect
import enum
from dataclasses import dataclass

from engine.errors import ConfigError

_LARGEST = 512
_LARGEST_ON_BLACKWELL = 1024  # data-centre Blackwell is compute capability 10.x
_INTERACTIVE_SIZES = range(1, 33)


class CUDAGraphMode(enum.Enum):
    """What is captured, spelled as vLLM spells it.

    FULL is a single batch's mode, never the whole setting.
    """

    NONE = "NONE"
    PIECEWISE = "PIECEWISE"
    FULL = "FULL"
    FULL_DECODE_ONLY = "FULL_DECODE_ONLY"
    FULL_AND_PIECEWISE = "FULL_AND_PIECEWISE"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureRules:
    """Everything that decides the list of sizes; None where the user asked for nothing."""

    max_num_seqs: int
    max_num_batched_tokens: int
    num_speculative_tokens: int = 0
    compute_capability: tuple[int, int] | None = None
    capture_sizes: tuple[int, ...] | None = None  # --cudagraph-capture-sizes
    max_capture_size: int | None = None  # --max-cudagraph-capture-size
    sequence_parallel_size: int = 1  # the tensor-parallel size where sequences are split, else 1
    performance_mode: str = "balanced"  # balanced, interactivity or throughput

    @property
    def query_len(self) -> int:
        """Tokens of one request in a pure decode step."""
        return 1 + self.num_speculative_tokens


@dataclass(frozen=True, slots=True)
class GraphChoice:
    """How one batch runs; `size` is None without a graph."""

    mode: CUDAGraphMode
    size: int | None


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """The graphs of one server, sizes ascending."""

    piecewise_sizes: tuple[int, ...]
    full_sizes: tuple[int, ...]

    @property
    def captures(self) -> tuple[tuple[CUDAGraphMode, int], ...]:
        """Every graph in the order of capture: piecewise before full, large before small."""
        return (
            *((CUDAGraphMode.PIECEWISE, size) for size in reversed(self.piecewise_sizes)),
            *((CUDAGraphMode.FULL, size) for size in reversed(self.full_sizes)),
        )

    def dispatch(self, num_tokens: int, *, is_uniform_decode: bool) -> GraphChoice:
        """A full graph for a pure decode batch where one is large enough, else a piecewise one."""
        if is_uniform_decode:
            size = smallest_fitting(self.full_sizes, num_tokens)
            if size is not None:
                return GraphChoice(CUDAGraphMode.FULL, size)
        size = smallest_fitting(self.piecewise_sizes, num_tokens)
        return GraphChoice(
            CUDAGraphMode.NONE if size is None else CUDAGraphMode.PIECEWISE,
            size,
        )


def graph_mode(
    optimization_level: int,
    *,
    enforce_eager: bool = False,
    is_pooling: bool = False,
    is_encoder_decoder: bool = False,
) -> CUDAGraphMode:
    """The mode that -O0 to -O3 stand for, as far as the kind of model allows it."""
    if enforce_eager or optimization_level == 0:
        return CUDAGraphMode.NONE
    if is_encoder_decoder:
        return CUDAGraphMode.FULL_DECODE_ONLY
    if is_pooling or optimization_level == 1:
        return CUDAGraphMode.PIECEWISE
    return CUDAGraphMode.FULL_AND_PIECEWISE


def capture_sizes(rules: CaptureRules) -> tuple[int, ...]:
    """The sizes to capture, ascending; ConfigError when the user's two flags disagree."""
    asked = rules.capture_sizes
    candidates = _default_sizes(rules) if asked is None else _user_sizes(asked, rules)
    parts = rules.sequence_parallel_size  # each rank takes an equal part of a step's tokens
    sizes = tuple(sorted(size for size in candidates if size % parts == 0))
    largest, limit = (sizes[-1] if sizes else 0), rules.max_capture_size
    if asked is not None and limit is not None and limit != largest:
        raise ConfigError(
            f"--max-cudagraph-capture-size {limit} is not the largest usable size of "
            f"--cudagraph-capture-sizes, {largest}; drop one of the two flags."
        )
    return sizes


def graph_plan(rules: CaptureRules, mode: CUDAGraphMode) -> GraphPlan:
    """The graphs that `mode` needs. Full ones stop at what `max_num_seqs` requests can decode."""
    assert mode is not CUDAGraphMode.FULL, "a batch's mode, not a setting"
    if mode is CUDAGraphMode.NONE:
        return GraphPlan((), ())
    sizes = capture_sizes(rules)
    most = rules.max_num_seqs * rules.query_len
    return GraphPlan(
        piecewise_sizes=() if mode is CUDAGraphMode.FULL_DECODE_ONLY else sizes,
        full_sizes=(
            () if mode is CUDAGraphMode.PIECEWISE else tuple(size for size in sizes if size <= most)
        ),
    )


def smallest_fitting(sizes: tuple[int, ...], num_tokens: int) -> int | None:
    """The smallest of the ascending `sizes` that holds `num_tokens`; None above the largest."""
    place = bisect.bisect_left(sizes, num_tokens)
    return sizes[place] if place < len(sizes) else None


def describe_dispatch(sizes: tuple[int, ...], num_tokens: int) -> str:
    """`graph 40 (+3 padding)`, or that there is none."""
    size = smallest_fitting(sizes, num_tokens)
    if size is None:
        return "no CUDA graph (eager/compiled)"
    return f"graph {size} (+{size - num_tokens} padding)"


def _largest_size(rules: CaptureRules) -> int:
    largest = rules.max_capture_size
    if largest is None:
        blackwell = rules.compute_capability is not None and rules.compute_capability[0] == 10
        cap = _LARGEST_ON_BLACKWELL if blackwell else _LARGEST
        largest = min(rules.max_num_seqs * rules.query_len * 2, cap)
    return min(largest, rules.max_num_batched_tokens)


def _default_sizes(rules: CaptureRules) -> set[int]:
    largest, query_len = _largest_size(rules), rules.query_len
    sizes = set(_ladder(largest))
    if rules.performance_mode == "interactivity":
        sizes.update(_INTERACTIVE_SIZES)
    if query_len > 1:
        # Pure decode batches come in multiples of query_len; exact sizes spare them the padding.
        requests = {*_ladder(largest // query_len), rules.max_num_seqs}
        sizes.update(count * query_len for count in requests)
    sizes.add(rules.max_num_batched_tokens)
    return {size for size in sizes if size <= largest}


def _ladder(largest: int) -> list[int]:
    """1, 2, 4, then every 8th below 256, then every 16th."""
    steps = (1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16))
    return [step for step in steps if step <= largest]


def _user_sizes(asked: tuple[int, ...], rules: CaptureRules) -> set[int]:
    if not asked or min(asked) < 1:
        raise ConfigError(
            f"--cudagraph-capture-sizes {' '.join(map(str, asked))}: sizes are tokens, at least 1; "
            "--enforce-eager turns CUDA graphs off."
        )
    return {size for size in asked if size <= rules.max_num_batched_tokens}
