"""A report as the JSON document of `stoker logs --json`. Adding keys is compatible, renaming is
not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from logparse.records import Fix, LogReport, Measured, Outcome, Problem, Serving, WarningFound

SCHEMA = "stoker.logs"
SCHEMA_VERSION = 1


def to_document(report: LogReport) -> dict[str, Any]:
    """Plain values only, without the schema's name. What the log does not say is null."""
    problem = report.problem if report.outcome is Outcome.FAILED else None
    return {
        "outcome": report.outcome.value,
        "engine": report.engine,
        "engine_version": report.facts.engine_version,
        "model": report.facts.model,
        **_capacity(report),
        "ready_url": report.ready_url,
        "first_to_ready_s": report.first_to_ready_s,
        "processes": [process.name for process in report.processes],
        **_failure(problem),
        **_after_ready(report),
        "phases": [{"name": p.name, "seconds": p.seconds, "state": p.state} for p in report.phases],
        "attempts": [
            {
                "first_line": a.first_line,
                "outcome": a.outcome.value,
                "key": a.key_line,
                "key_line_no": a.key_line_number,
            }
            for a in report.attempts
        ],
        **_lines(report),
        "arguments": report.facts.non_default_args,
        "warnings": [_warning(found) for found in report.insight.warnings],
        "slow_parts": [dataclasses.asdict(part) for part in report.insight.parts],
        "serving": _serving(report.insight.serving),
    }


def _warning(found: WarningFound) -> dict[str, Any]:
    return {
        "id": found.id,
        "title": found.title,
        "why": found.why,
        "fixes": _fixes(found.fixes),
        "line": found.line,
        "line_number": found.line_number,
        "count": found.count,
    }


def _serving(serving: Serving | None) -> dict[str, Any] | None:
    if serving is None:
        return None
    return {
        "throughput_lines": serving.num_lines,
        "peak_kv_percent": serving.peak_kv_percent,
        "peak_kv_line_number": serving.peak_line_number,
        "most_waiting": serving.most_waiting,
        "preemptions": serving.num_preemptions,
    }


def _fixes(fixes: Sequence[Fix]) -> list[dict[str, Any]]:
    return [{"text": fix.text, "command": fix.command} for fix in fixes]


def _lines(report: LogReport) -> dict[str, Any]:
    return {
        "lines": report.lines.total,
        "lines_without_level": report.lines.without_level,
        "progress_bars": report.lines.progress_bars,
        "warning_lines": report.lines.warnings,
        "errors": report.lines.errors,
        "lines_by_process": {p.name: p.num_lines for p in report.processes},
    }


def _capacity(report: LogReport) -> dict[str, Any]:
    facts = report.facts
    return {
        "architecture": facts.architecture,
        "dtype": facts.dtype,
        "quantization": facts.quantization,
        "kv_cache_dtype": facts.kv_cache_dtype,
        "attention_backend": facts.attention_backend,
        "platform": facts.platform,
        "tensor_parallel_size": facts.tensor_parallel_size,
        "pipeline_parallel_size": facts.pipeline_parallel_size,
        "data_parallel_size": facts.data_parallel_size,
        "max_model_len": facts.max_model_len,
        "requested_max_model_len": facts.requested_max_model_len,
        "max_num_batched_tokens": facts.max_num_batched_tokens,
        "weights_gib": _plain(facts.weights_gib),
        "load_weights_s": _plain(facts.load_weights_s),
        "model_load_s": _plain(facts.model_load_s),
        "kv_memory_gib": _plain(facts.kv_memory_gib),
        "kv_tokens": _plain(facts.kv_tokens),
        "kv_blocks": facts.kv_blocks,
        "kv_tokens_derived": None if facts.kv_blocks is None else report.kv_tokens_total,
        "max_concurrency": _plain(facts.max_concurrency),
        "slots": facts.num_slots,
        "slot_tokens": facts.slot_tokens,
        "compile_s": _plain(facts.compile_s),
        "graph_gib": _plain(facts.graph_gib),
        "engine_init_s": facts.engine_init_s,
    }


def _plain(value: Measured | None) -> int | float | list[int | float] | None:
    return list(value) if isinstance(value, tuple) else value


def _failure(problem: Problem | None) -> dict[str, Any]:
    fixes = _fixes(problem.fixes) if problem else []
    return {
        "root_cause": problem.title if problem else None,
        "cause_id": problem.id if problem else None,
        "why": problem.why if problem else None,
        "key_line": problem.key_line if problem else None,
        "key_line_number": problem.key_line_number if problem else None,
        "key_line_no": problem.key_line_number if problem else None,
        "fix": (fixes[0]["command"] or fixes[0]["text"]) if fixes else None,
        "fixes": fixes,
    }


def _after_ready(report: LogReport) -> dict[str, Any]:
    problem = report.problem if report.died_after_ready else None
    state = None
    if report.outcome is Outcome.READY:
        state = (
            "crashed while serving" if problem else "stopped" if report.was_stopped else "serving"
        )
    return {
        "post_ready": state,
        "root_cause_after_ready": problem.title if problem else None,
        "key_line_after_ready": problem.key_line if problem else None,
    }
