"""The parts of a device's memory that only a start measures: given by the user or estimated.

Each estimate follows what vLLM allocates, says what it rests on and how far it can be wrong: the
profile run's forward pass and its sampling, what CUDA and NCCL take outside of torch, CUDA graphs.
Bytes unless the name says GiB.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.planning.gpu_catalogue import PlannedGpu
from app.planning.model_shapes import ModelShape
from app.planning.vllm_versions import VersionRules
from engine.cuda_graph_sizes import GraphPlan
from engine.machine.sizes import GIB, MIB

Spread = tuple[float, float, float]  # low, likely, high

# GiB that the forward pass leaves outside of torch, the CUDA context itself not counted.
_CONTEXT: Spread = (0.0, 0.12, 0.45)
_CONTEXT_OF_LARGE_CHIPS: Spread = (0.02, 0.25, 0.60)  # their kernel libraries are larger
_CONTEXT_BEFORE: Spread = (0.0, 0.07, 0.40)
_SHARED_WITH_SYSTEM: Spread = (0.0, 1.5, 4.0)  # where the system's own memory moves meanwhile
_ROCM: Spread = (0.0, 0.6, 2.0)
_NCCL: Spread = (0.0, 0.03, 0.30)
_NCCL_OVER_NVLINK: Spread = (0.30, 1.70, 2.30)  # with buffers for all-reduce that ranks share
_LLAMA_CPP_CONTEXT: Spread = (0.2, 0.45, 0.8)  # here the context counts, since the card is shared

_GRAPH: Spread = (1 * MIB, 8 * MIB, 22 * MIB)
_FIXED_PEAK = 35 * MIB
_FORWARD_SPREAD = (0.7, 1.4)
_WORKSPACE_SPREAD = (0.0, 1.3)
_VALUE = 2  # bytes of an activation
# vLLM's fused experts write their products into two buffers; those for MXFP4 need none of them.
_WITHOUT_WORKSPACE = frozenset({"mxfp4"})


@dataclass(frozen=True, slots=True)
class Assumption:
    """One part that is not known before a start."""

    name: str
    num_bytes: int
    low: int
    high: int
    basis: str


@dataclass(frozen=True, slots=True)
class GivenGib:
    """What the user says of them, in GiB; None is estimated."""

    non_torch: float | None = None
    peak: float | None = None
    graphs: float | None = None


@dataclass(frozen=True, slots=True)
class Calibration:
    """The median of `num_starts`, and the least and most of them.

    On a GPU the ratio of the measured to the estimated memory beside weights and KV cache, on a CPU
    the bytes that the processes take themselves.
    """

    num_starts: int
    likely: float
    low: float
    high: float

    @property
    def basis(self) -> str:
        """Where the number comes from."""
        starts = "1 earlier start" if self.num_starts == 1 else f"{self.num_starts} earlier starts"
        return f"calibrated by {starts} of this model on this device"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledStart:
    """The start whose memory is estimated: a step of `tokens` for `seqs` requests on one rank."""

    shape: ModelShape
    gpu: PlannedGpu
    tokens: int
    seqs: int
    tensor_parallel_size: int
    graphs: GraphPlan
    rules: VersionRules
    is_llama_cpp: bool = False


def assumptions(given: GivenGib, start: ProfiledStart) -> tuple[Assumption, ...]:
    """Non-torch memory, transient peak, CUDA graphs, in the order in which they are spent."""
    return (
        _given("non-torch memory", given.non_torch) or _non_torch(start),
        _given("activation peak", given.peak) or _peak(start),
        _given("CUDA graphs", given.graphs) or _graphs(start),
    )


def calibrated(
    guesses: tuple[Assumption, ...], calibration: Calibration | None
) -> tuple[Assumption, ...]:
    """The estimates times what earlier starts measured of them."""
    if calibration is None:
        return guesses
    return tuple(_scaled(guess, calibration) if guess.num_bytes else guess for guess in guesses)


def _scaled(guess: Assumption, calibration: Calibration) -> Assumption:
    return Assumption(
        guess.name,
        num_bytes=int(guess.num_bytes * calibration.likely),
        low=int(guess.num_bytes * calibration.low),
        high=int(guess.num_bytes * calibration.high),
        basis=calibration.basis,
    )


def _given(name: str, gib: float | None) -> Assumption | None:
    if gib is None:
        return None
    size = int(gib * GIB)
    return Assumption(name, size, size, size, "given")


def _non_torch(start: ProfiledStart) -> Assumption:
    spread, basis = _context(start)
    if start.tensor_parallel_size > 1:
        linked = start.gpu.is_data_centre_chip
        more = _NCCL_OVER_NVLINK if linked else _NCCL
        spread = (spread[0] + more[0], spread[1] + more[1], spread[2] + more[2])
        basis += ", and buffers of NCCL" + (" and all-reduce over NVLink" if linked else "")
    low, likely, high = (gib * GIB for gib in spread)
    return _estimate("non-torch memory", low, likely, high, basis)


def _context(start: ProfiledStart) -> tuple[Spread, str]:
    gpu = start.gpu
    if start.is_llama_cpp:
        return _LLAMA_CPP_CONTEXT, "CUDA context and library work space"
    if gpu.is_unified:
        return _SHARED_WITH_SYSTEM, "memory shared with the system, which moves meanwhile"
    if gpu.is_rocm:
        return _ROCM, "HIP libraries and allocator"
    basis = "CUDA libraries and allocator, as start logs report them"
    if not start.rules.has_large_context:
        return _CONTEXT_BEFORE, basis
    is_large = gpu.is_data_centre_chip and (gpu.compute_capability or (0, 0)) >= (9, 0)
    return (_CONTEXT_OF_LARGE_CHIPS if is_large else _CONTEXT), basis


def _peak(start: ProfiledStart) -> Assumption:
    """The higher of the forward pass and of sampling, whose logits no rank shares."""
    forward = _forward_bytes(start)
    values = min(start.seqs, start.tokens) * start.shape.vocab_size
    residual = start.tokens * start.shape.hidden_size * _VALUE
    workspace = _workspace_bytes(start)
    kept = workspace if start.rules.keeps_expert_workspace else 0.0
    edges: list[float] = []
    for logit, spread, share in zip(
        start.rules.logit_bytes,
        (_FORWARD_SPREAD[0], 1.0, _FORWARD_SPREAD[1]),
        (_WORKSPACE_SPREAD[0], 1.0, _WORKSPACE_SPREAD[1]),
        strict=True,
    ):
        sampling = logit * values + residual + kept * share
        edges.append(max((forward + workspace) * spread, sampling) + _FIXED_PEAK * spread)
    basis = f"forward pass of {start.tokens:,} tokens, sampling for {start.seqs:,} requests"
    if kept:
        basis += ", work space of the experts"
    low, likely, high = edges
    return _estimate("activation peak", low, likely, high, basis)


def _forward_bytes(start: ProfiledStart) -> float:
    """Of one layer: the feed-forward part or attention, and the residual stream beside it."""
    shape, ranks = start.shape, start.tensor_parallel_size
    experts = shape.experts
    inner = shape.intermediate_size if experts is None else experts.shared_size
    if experts is not None and experts.first_dense_layers:
        inner = max(inner, shape.intermediate_size)
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    attention = 2 * queries + 2 * keys
    if (latent := shape.latent) is not None:
        head = 2 * (latent.nope_dim + latent.rope_dim) + 2 * latent.value_dim
        attention = shape.num_heads * head
    wide = max(3 * inner, attention) / ranks
    return start.tokens * (wide + 4 * shape.hidden_size) * _VALUE


def _workspace_bytes(start: ProfiledStart) -> float:
    """The two buffers that vLLM's fused experts work in (modular kernels of fused_moe)."""
    shape, experts = start.shape, start.shape.experts
    if experts is None or start.is_llama_cpp or shape.quantization in _WITHOUT_WORKSPACE:
        return 0.0
    inner = experts.size / start.tensor_parallel_size
    widths = max(2 * inner, shape.hidden_size) + max(inner, shape.hidden_size)
    return start.tokens * experts.per_token * widths * _VALUE


def _graphs(start: ProfiledStart) -> Assumption:
    number = len(start.graphs.captures)
    takes_share = start.rules.takes_graphs_from_share
    if number == 0:
        return Assumption("CUDA graphs", 0, 0, 0, "none are captured")
    if takes_share is False:
        return Assumption("CUDA graphs", 0, 0, 0, "this version takes them beside its share")
    low, likely, high = (number * size for size in _GRAPH)
    basis = f"{number} graphs at about 8 MiB, as start logs report them"
    if takes_share is None:  # a version before 0.21 would not count them
        low = 0.0
    return _estimate("CUDA graphs", low, likely, high, basis)


def graphs_beside_share(graphs: GraphPlan, rules: VersionRules) -> int:
    """Bytes that the graphs of a release take beside its share; 0 where they lie in it."""
    if rules.takes_graphs_from_share is not False:
        return 0
    return int(len(graphs.captures) * _GRAPH[1])


def _estimate(name: str, low: float, likely: float, high: float, basis: str) -> Assumption:
    return Assumption(name, int(likely), int(low), int(high), f"estimated: {basis}")
