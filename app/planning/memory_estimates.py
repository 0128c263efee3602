"""The parts of a device's memory that only a start measures: given by the user or estimated.

Each estimate says what it rests on and how far it can be wrong. Bytes unless the name says GiB.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.planning.model_shapes import ModelShape
from engine.cuda_graph_sizes import GraphPlan

_GIB = 1 << 30
_MIB = 1 << 20
_NON_TORCH = (0.15, 0.60, 1.00)  # GiB: low, likely, high
_NCCL = (0.10, 0.30, 0.80)
_GRAPH_BYTES = 5 * _MIB
_GRAPH_SPREAD = (0.3, 2.0)
_PEAK_SPREAD = (0.5, 3.0)
_LOGIT_BYTES = 10  # 16-bit logits, their float32 copy and the sampler's probabilities


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


def assumptions(
    given: GivenGib,
    shape: ModelShape,
    *,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    tensor_parallel_size: int,
    graphs: GraphPlan,
) -> tuple[Assumption, ...]:
    """Non-torch memory, transient peak, CUDA graphs, in the order in which they are spent."""
    return (
        _given("non-torch memory", given.non_torch) or _non_torch(tensor_parallel_size),
        _given("activation peak", given.peak)
        or _peak(shape, max_num_batched_tokens, max_num_seqs, tensor_parallel_size),
        _given("CUDA graphs", given.graphs) or _graphs(graphs),
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
    size = int(gib * _GIB)
    return Assumption(name, size, size, size, "given")


def _non_torch(tensor_parallel_size: int) -> Assumption:
    low, likely, high = _NON_TORCH
    basis = "CUDA context and allocator, as start logs report them"
    if tensor_parallel_size > 1:
        low, likely, high = (a + b for a, b in zip(_NON_TORCH, _NCCL, strict=True))
        basis += ", and NCCL buffers"
    return _estimate("non-torch memory", low * _GIB, likely * _GIB, high * _GIB, basis)


def _peak(shape: ModelShape, tokens: int, seqs: int, tensor_parallel_size: int) -> Assumption:
    experts = shape.experts
    inner = shape.intermediate_size if experts is None else experts.size * experts.per_token
    feed_forward = tokens * 3 * inner * 2 / tensor_parallel_size
    residual = tokens * shape.hidden_size * 2 * 4
    logits = seqs * shape.vocab_size * _LOGIT_BYTES
    likely = feed_forward + residual + logits
    low, high = (likely * spread for spread in _PEAK_SPREAD)
    basis = f"activations of {tokens:,} tokens and logits of {seqs:,} requests"
    return _estimate("activation peak", low, likely, high, basis)


def _graphs(graphs: GraphPlan) -> Assumption:
    number = len(graphs.captures)
    if number == 0:
        return Assumption("CUDA graphs", 0, 0, 0, "none are captured")
    likely = number * _GRAPH_BYTES
    low, high = (likely * spread for spread in _GRAPH_SPREAD)
    basis = f"{number} graphs at about 5 MiB, as start logs report them"
    return _estimate("CUDA graphs", low, likely, high, basis)


def _estimate(name: str, low: float, likely: float, high: float, basis: str) -> Assumption:
    return Assumption(name, int(likely), int(low), int(high), f"estimated: {basis}")
