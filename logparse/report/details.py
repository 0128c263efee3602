"""The parts of an explanation beyond capacity, phases and cause: what was set up, where time went,
which levers are left, which warnings matter, how serving went.

Owns wording; what it words is in the report.
"""

from __future__ import annotations

import re

from logparse.records import Facts, LogReport, Measured, Process, Sample, Serving, WarningFound
from logparse.redact import shortened
from logparse.rules.arguments import as_flag, differing_arguments

_SHOWN_WARNINGS = 5
_CHART_WIDTH = 48
_BARS = "▁▂▃▄▅▆▇█"
_LONGEST_ARGUMENT = 200
_HALF_PRECISION = (None, "auto", "bfloat16", "float16")
_NEARLY_FULL = 95.0
_LEVEL = (
    (re.compile(r"APIServer|ApiServer|APIServer_\d{1,4}"), 0),
    (re.compile(r"DPCoordinator"), 1),
    (re.compile(r"EngineCore|DPEngineCoreActor"), 1),
    (re.compile(r"Worker|VllmWorker|RayWorker|TP\d|CPUWorker"), 2),
)


def setup_lines(report: LogReport) -> tuple[str, ...]:
    """Architecture, formats and layout; arguments that differ from the defaults; processes."""
    lines = []
    if layout := _layout(report.facts):
        lines.append(f"set up     {layout}")
    if report.facts.non_default_args is not None:
        given = differing_arguments(report.facts.non_default_args)
        words = (
            shortened(as_flag(name, value), _LONGEST_ARGUMENT) for name, value in given.items()
        )
        flags = " ".join(words)
        lines.append(f"arguments  {flags or 'none that differ from the defaults'}")
    if report.processes:
        lines += ["processes", *_tree(report.processes)]
    return tuple(lines)


def _layout(facts: Facts) -> str:
    parts = [facts.architecture, facts.dtype, facts.quantization]
    if facts.attention_backend is not None:
        parts.append(f"attention {facts.attention_backend}")
    if facts.kv_cache_dtype not in _HALF_PRECISION:
        parts.append(f"KV cache {facts.kv_cache_dtype}")
    for name, size in (
        ("tensor", facts.tensor_parallel_size),
        ("pipeline", facts.pipeline_parallel_size),
        ("data", facts.data_parallel_size),
    ):
        if size is not None and size > 1:
            parts.append(f"{name} parallel {size}")
    return ", ".join(part for part in parts if part)


def _tree(processes: tuple[Process, ...]) -> list[str]:
    """Front end, engines, workers: each kind below the one that starts it, if that is there."""
    levels = sorted({_level(process.name) for process in processes})
    lines = []
    for process in sorted(processes, key=lambda p: _level(p.name)):
        pids = f" (pid {', '.join(map(str, process.pids[:8]))})" if process.pids else ""
        lines.append(f"{'  ' * (1 + levels.index(_level(process.name)))}{process.name}{pids}")
    return lines


def _level(name: str) -> int:
    return next((level for pattern, level in _LEVEL if pattern.match(name)), 0)


def time_lines(report: LogReport) -> tuple[str, ...]:
    """Stretches of more than 5 s by name, and what a second start would save."""
    insight = report.insight
    lines = [f"  {_seconds(part.seconds):>7} {part.name}" for part in insight.parts]
    saved = insight.compiled_s
    if saved is not None and saved >= 1 and not insight.used_compile_cache:
        lines.append(
            f"  a second start saves about {saved:.0f} s: the compiled graphs are in the cache "
            "(keep ~/.cache/vllm, also of a container)"
        )
    elif insight.used_compile_cache:
        lines.append("  compiled graphs came from the cache of an earlier start")
    if report.facts.download_s is not None and report.facts.download_s >= 1:
        lines.append(f"  and {report.facts.download_s:.0f} s, since the weights are here now")
    return ("where the time went", *lines) if lines else ()


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 100 else f"{value:.0f} s"


def lever_lines(report: LogReport) -> tuple[str, ...]:
    """What a shorter maximum length and an 8-bit KV cache would give, from the log's figures."""
    facts, tokens = report.facts, report.kv_tokens_total
    length, concurrency = facts.max_model_len, least(facts.max_concurrency)
    if report.engine != "vllm" or tokens is None or length is None or concurrency is None:
        return ()
    lines = []
    shorter = length // 4
    if shorter >= 256 and concurrency < 64:
        times = _times(tokens, concurrency, length, shorter)
        lines.append(
            f"  --max-model-len {shorter:<7} {times:.2f}x at that length instead of "
            f"{concurrency:.2f}x, the same {tokens} tokens"
        )
    if facts.kv_cache_dtype in _HALF_PRECISION:
        doubled = _times(2 * tokens, 2 * concurrency, length, length)
        lines.append(
            f"  --kv-cache-dtype fp8    about {2 * tokens} tokens, {doubled:.2f}x at max length "
            f"{length}"
        )
    return ("levers", *lines) if lines else ()


def _times(tokens: int, concurrency: float, length: int, wanted: int) -> float:
    """By tokens, unless layers with a window make a long request cheaper than its length."""
    by_tokens = tokens / wanted
    is_plain = abs(tokens / length - concurrency) <= 0.02 * concurrency
    return by_tokens if is_plain else concurrency * length / wanted


def least(value: Measured | None) -> float | int | None:
    """The rank with the least decides what fits."""
    return min(value) if isinstance(value, tuple) else value


def warning_lines(report: LogReport) -> tuple[str, ...]:
    """Those that matter, the most important first; the rest counted."""
    found = report.insight.warnings
    lines: list[str] = []
    for warning in found[:_SHOWN_WARNINGS]:
        lines += _warning(warning)
    rest = report.insight.num_other_warnings + len(found[_SHOWN_WARNINGS:])
    if rest:
        more = "more " if found else ""
        kind = "warning that matters" if rest == 1 else "warnings that matter"
        lines.append(f"  {rest} {more}{kind} less")
    return ("warnings", *lines) if lines else ()


def _warning(warning: WarningFound) -> list[str]:
    times = f", {warning.count} times" if warning.count > 1 else ""
    lines = [f"  {warning.title} (line {warning.line_number}{times}): {warning.why}"]
    if warning.fixes:
        fix = warning.fixes[0]
        lines.append(f"    {fix.text}" + (f":  {fix.command}" if fix.command else ""))
    return lines


def serving_lines(report: LogReport) -> tuple[str, ...]:
    """Throughput as a small chart, KV usage at its peak, preemptions, how it ended."""
    serving = report.insight.serving
    lines = _serving(serving) if serving is not None else []
    if (end := _ending(report)) is not None:
        lines.append(f"  end         {end}")
    return ("serving", *lines) if lines else ()


def _serving(serving: Serving) -> list[str]:
    lines = []
    if serving.samples:
        generation = [sample.generation_tokens_per_s for sample in serving.samples]
        prompt = [sample.prompt_tokens_per_s for sample in serving.samples]
        span = _span(serving.samples)
        lines += [
            f"  generation  {chart(generation)}  up to {max(generation):.0f} tokens/s{span}",
            f"  prompts     {chart(prompt)}  up to {max(prompt):.0f} tokens/s",
            f"  KV usage    {chart([s.kv_usage_percent for s in serving.samples])}  peak "
            f"{serving.peak_kv_percent:.1f}% (line {serving.peak_line_number})",
        ]
    if serving.most_waiting and serving.peak_kv_percent >= _NEARLY_FULL:
        lines.append(f"  full        the KV cache was full while up to {serving.most_waiting} "
                     "requests waited")  # fmt: skip
    if serving.num_preemptions:
        first, count = max(serving.bursts, key=lambda burst: burst[1])
        lines.append(f"  preempted   {serving.num_preemptions} in {len(serving.bursts)} bursts, "
                     f"the largest {count} from line {first}")  # fmt: skip
    return lines


def _span(samples: tuple[Sample, ...]) -> str:
    first, last = samples[0].at, samples[-1].at
    if first is None or last is None or last <= first:
        return ""
    return f", over {(last - first) / 60:.0f} min" if last - first >= 60 else ""


def chart(values: list[float]) -> str:
    """One character per stretch of time, as high as its mean."""
    per_column = max(1, -(-len(values) // _CHART_WIDTH))
    columns = [values[i : i + per_column] for i in range(0, len(values), per_column)]
    means = [sum(column) / len(column) for column in columns]
    top = max(means) if means and max(means) > 0 else 1.0
    return "".join(_BARS[min(7, max(0, round(mean / top * 7)))] for mean in means)


def _ending(report: LogReport) -> str | None:
    """How a server that was ready ended, None while it serves."""
    problem = report.problem if report.died_after_ready else None
    if problem is None:
        return "stopped in order" if report.was_stopped and report.ready_url is not None else None
    if problem.id == "A12":
        by_kernel = "out of memory" in problem.key_line.lower()
        return "killed by the kernel: main memory ran out" if by_kernel else "killed from outside"
    return f"crashed: {problem.title}"
