"""What earlier starts of a model on a device teach a plan: by how much its estimates were wrong."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from app.planning.memory_estimates import Calibration, GivenGib
from app.planning.memory_ledger import LedgerEntry
from app.planning.model_shapes import ModelShape
from app.planning.plan_request import PlanRequest

_STARTS_USED = 20  # the newest; older ones are of older drivers and engines
CPU = "cpu"


def shape_key(shape: ModelShape) -> str:
    """The same for a folder, a hub id and a built-in shape of one model."""
    size = f"{shape.num_layers}x{shape.hidden_size}x{shape.intermediate_size}"
    heads = f"{shape.num_heads}/{shape.num_kv_heads}x{shape.head_dim}"
    return f"{shape.architecture} {size} {heads} {shape.vocab_size} {shape.quantization or '-'}"


def device_key(request: PlanRequest) -> str:
    """The name of the GPU as the driver says it, or `cpu`."""
    return CPU if request.gpu is None else request.gpu.name


def calibrate(
    entries: Iterable[LedgerEntry], shape: ModelShape, request: PlanRequest
) -> Calibration | None:
    """From starts of the same model, device, engine and number of ranks; None without any.

    What the user says of the memory needs no calibration.
    """
    if request.given != GivenGib() or request.kv_memory_bytes is not None:
        return None
    wanted = (shape_key(shape), device_key(request), request.engine, request.tensor_parallel_size)
    values = [
        value
        for entry in entries
        if (entry.shape, entry.device, entry.engine, entry.tensor_parallel_size) == wanted
        and (value := _error(entry)) is not None
    ][-_STARTS_USED:]
    if not values:
        return None
    return Calibration(len(values), statistics.median(values), min(values), max(values))


def _error(entry: LedgerEntry) -> float | None:
    if entry.device == CPU:
        return entry.process_bytes
    estimated, actual = entry.estimated_other_bytes, entry.actual.other_bytes
    if not estimated or actual is None or actual <= 0:
        return None
    return actual / estimated
