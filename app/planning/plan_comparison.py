"""Reads a log and a model for `stoker plan --from-log`, and compares them in one go."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from app.errors import UsageError
from app.planning.log_comparison import (
    ComparedValue,
    compare_capacity,
    compare_memory,
    request_of_log,
)
from app.planning.plan import make_plan
from app.planning.plan_models import PlannedModel, shape_by_model_name
from app.planning.plan_request import PlanRequest
from app.planning.weight_counts import count_weights
from logparse import LogReport, parse_lines
from logparse.reading.log_parts import open_log
from logparse.reading.source import SourceError, decoded_lines


def compare_log(
    path: str, model: PlannedModel | None, request: PlanRequest
) -> tuple[ComparedValue, ...]:
    """Capacity first, then what a start alone can measure. Without `model`, the log names it."""
    report = _read(path)
    shape = model.shape if model else shape_by_model_name(report.facts.model or "")
    if shape is None:
        raise UsageError(
            f"the model of the log ({report.facts.model or 'not named'}) is no built-in shape",
            hint=f"give it: stoker plan MODEL --from-log {path}",
        )
    capacity = compare_capacity(shape, report, request)
    weights = model.weights if model else count_weights(shape)
    as_logged = request_of_log(report, request)
    if as_logged.max_model_len and as_logged.max_model_len > shape.max_model_len:
        shape = dataclasses.replace(shape, max_model_len=as_logged.max_model_len)
    if report.facts.quantization is not None and shape.quantization is None:
        return capacity  # the log's checkpoint is another one than the shape's
    plan = make_plan(shape, weights, as_logged)
    return (*capacity, *compare_memory(plan, report))


def _read(path: str) -> LogReport:
    """The log in a file, packed or not; `-` is standard input."""
    try:
        if path == "-":
            return parse_lines(decoded_lines(sys.stdin.buffer))
        with open_log(Path(path)) as stream:
            return parse_lines(decoded_lines(stream))
    except (OSError, SourceError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot read {path}: {reason}") from error
