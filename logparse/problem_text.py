"""Fills a cause's templates with the log's own values: title, reasons, and commands that can be
typed.
"""

from __future__ import annotations

import re
import shlex

from logparse.arguments import differing_arguments
from logparse.failures import Cause
from logparse.problems import ProblemRule, Values
from logparse.records import Facts, Fix, Problem
from logparse.redact import safe_text

_KEY_LINE = 400
_PROGRAMS = {
    "vllm": "vllm serve",
    "stoker": "stoker serve",
    "llama.cpp": "llama-server",
    "sglang": "sglang serve",
}
# The engine flags that our own server takes; fixes that need others are left out for it.
_OWN_FLAG_TEXT = """
--served-model-name --host --port --dtype --device --num-threads --seed --max-model-len
--max-num-batched-tokens --max-num-seqs --enable-chunked-prefill
--no-enable-chunked-prefill --long-prefill-token-threshold --scheduling-policy
--block-size --gpu-memory-utilization --kv-cache-memory-bytes --num-gpu-blocks-override
--enable-prefix-caching --no-enable-prefix-caching --chat-template --enable-log-requests
--disable-log-stats --disable-uvicorn-access-log --shutdown-timeout
"""
OWN_FLAGS = frozenset(_OWN_FLAG_TEXT.split())
_FLAG = re.compile(r" (--[a-z][a-z-]{1,60})")
_GPU_COMMANDS = ("nvidia-smi", "CUDA_VISIBLE_DEVICES=", "docker run --gpus")
_REPO_ID = re.compile(r"[\w-][\w.-]{0,95}/[\w-][\w.-]{0,95}")
_PLACEHOLDER = re.compile(r"\{(\w{1,40})\}")
_UNKNOWN_WHY = "not known: no rule describes this failure. It is the first exception that names one"
# What other engines call vLLM's flags. A fix with a flag that has no name there is left out.
_SGLANG_FLAGS = {
    "--max-model-len": "--context-length",
    "--gpu-memory-utilization": "--mem-fraction-static",
    "--tensor-parallel-size": "--tp-size",
    "--pipeline-parallel-size": "--pp-size",
    "--max-num-seqs": "--max-running-requests",
    "--max-num-batched-tokens": "--chunked-prefill-size",
    "--enforce-eager": "--disable-cuda-graph",
    "--disable-custom-all-reduce": "--disable-custom-all-reduce",
    "--trust-remote-code": "--trust-remote-code",
    "--quantization": "--quantization",
    "--dtype": "--dtype",
    "--port": "--port",
    "--host": "--host",
}
_LLAMACPP_FLAGS = {"--max-model-len": "--ctx-size", "--port": "--port", "--host": "--host"}
_TRANSLATIONS = {"sglang": _SGLANG_FLAGS, "llama.cpp": _LLAMACPP_FLAGS}


def to_problem(cause: Cause, facts: Facts, engine: str | None) -> Problem:
    """The cause in words."""
    rule, shown = cause.rule, cause.key_line
    values = {key: safe_text(value, 500) for key, value in cause.values.items()}
    values = {**_context(facts, engine, values), **values}
    return Problem(
        id=rule.id if rule is not None else "unknown",
        title=_title(cause, values),
        why=rule.why if rule is not None else _unknown_why(cause),
        fixes=_fixes(rule, values, facts, engine)
        if rule is not None
        else _debug_fix(engine, values),
        key_line=safe_text(shown.text, _KEY_LINE),
        key_line_number=shown.line_number,
        process=safe_text(shown.process) if shown.process is not None else None,
        is_known=rule is not None,
        place=_place(cause),
    )


def _place(cause: Cause) -> str | None:
    place = cause.candidate.place
    return safe_text(place.replace('"', ""), 300) if place is not None else None


def _unknown_why(cause: Cause) -> str:
    place = _place(cause)
    return f"{_UNKNOWN_WHY}{f'; raised in {place}' if place else ''}."


def _context(facts: Facts, engine: str | None, values: Values) -> Values:
    program = _PROGRAMS.get(engine or "", "vllm serve")
    model = shlex.quote(facts.model) if facts.model else "MODEL"
    context = {
        "program": program,
        "model": model,
        "serve": f"{program} {'-m ' if engine == 'llama.cpp' else ''}{model}",
    }
    port = values.get("port") or _port(facts)
    context["next_port"] = str(int(port) + 1) if port and port.isdigit() else "8001"
    if port is not None:
        context["port"] = port
    context |= _tuned(facts, engine)
    if facts.model and _REPO_ID.fullmatch(facts.model):
        context["repo_id"] = facts.model
    return context


def _tuned(facts: Facts, engine: str | None) -> Values:
    """Values for the usual levers, one step from what this start used; absent at their end."""
    given = differing_arguments(facts.non_default_args or "")
    share = _number(given.get("gpu_memory_utilization"), 0.9)
    budget = facts.max_num_batched_tokens or int(_number(given.get("max_num_batched_tokens"), 8192))
    seqs = int(_number(given.get("max_num_seqs"), 256))
    tuned = {
        "share_down": f"{max(share - 0.05, 0.05):.2f}",
        "budget_half": str(max(256, min(budget // 2, 2048))),
        "seqs_half": str(max(1, min(seqs // 2, 128))),
        "more_gpus": str(max(2, 2 * (facts.tensor_parallel_size or 1))),
        "pp": str(facts.pipeline_parallel_size or 2),
    }
    if share < 0.95:
        tuned["share_up"] = "0.95"
    elif share < 0.98:
        tuned["share_up"] = "0.98"
    return tuned


def _number(text: str | None, default: float) -> float:
    try:
        value = float(text) if text is not None else default
    except ValueError:
        return default
    return value if 0 < value < 1e9 else default


def _port(facts: Facts) -> str | None:
    """The port asked for; 8000 when the arguments were printed and none is among them."""
    if facts.requested_port is not None:
        return str(facts.requested_port)
    return "8000" if facts.non_default_args is not None else None


def _fill(template: str, values: Values) -> str | None:
    """The template with its values, or None when one is missing. {{ and }} stand for braces."""
    plain = template.replace("{{", "\0").replace("}}", "\1")
    if any(name not in values for name in _PLACEHOLDER.findall(plain)):
        return None
    filled = _PLACEHOLDER.sub(lambda match: values[match[1]], plain)
    return filled.replace("\0", "{").replace("\1", "}")


def _title(cause: Cause, values: Values) -> str:
    for template in cause.rule.titles if cause.rule is not None else ():
        if filled := _fill(template, values):
            return filled
    return safe_text(cause.candidate.text, 200)


def _fixes(rule: ProblemRule, values: Values, facts: Facts, engine: str | None) -> tuple[Fix, ...]:
    flags = None if rule.engine else _TRANSLATIONS.get(engine or "")
    found = [_fix(text, command, values, flags) for text, command in rule.fixes]
    return tuple(fix for fix in found if fix is not None and _is_useful(fix, facts, engine))


def filled_fixes(
    templates: tuple[tuple[str, str | None], ...], facts: Facts, engine: str | None
) -> tuple[Fix, ...]:
    """Fixes that need nothing but the facts of the log."""
    flags, values = _TRANSLATIONS.get(engine or ""), _context(facts, engine, {})
    found = [_fix(text, command, values, flags) for text, command in templates]
    return tuple(fix for fix in found if fix is not None and _is_useful(fix, facts, engine))


def _is_useful(fix: Fix, facts: Facts, engine: str | None) -> bool:
    return fix.command is None or _can_be_typed(fix.command, facts, engine)


def _fix(
    text: str, command: str | None, values: Values, flags: dict[str, str] | None
) -> Fix | None:
    """None when a value is missing, or another engine (`flags`) has no such flag."""
    filled = _fill(text, values)
    if filled is None or command is None:
        return Fix(filled, None) if filled is not None else None
    typed = _fill(command, values)
    if typed and flags is not None and values["program"] in typed:
        typed = _translated(typed, flags)
    return Fix(filled, typed) if typed else None


def _translated(command: str, flags: dict[str, str]) -> str | None:
    """The command in the flags of another engine, None when it has none for it."""
    if "VLLM_" in command:
        return None
    for flag in _FLAG.findall(command):
        if flag not in flags and flag != "--help":
            return None
        command = command.replace(f" {flag}", f" {flags.get(flag, flag)}", 1)
    return command


def _can_be_typed(command: str, facts: Facts, engine: str | None) -> bool:
    """Whether the command makes sense for this engine and device."""
    if facts.platform == "cpu" and command.startswith(_GPU_COMMANDS):
        return False
    if engine != "stoker":
        return True
    if "VLLM_" in command or "vllm" in command.split() or "torchinductor" in command.lower():
        return False
    flags = _FLAG.findall(command) if "stoker serve" in command else []
    return all(flag in OWN_FLAGS or flag == "--help" for flag in flags)


def _debug_fix(engine: str | None, values: Values) -> tuple[Fix, ...]:
    variables = {"vllm": "VLLM_LOGGING_LEVEL=DEBUG ", "stoker": "STOKER_LOGGING_LEVEL=DEBUG "}
    if engine not in variables:
        return ()
    return (Fix("start again with every message shown", f"{variables[engine]}{values['serve']}"),)
