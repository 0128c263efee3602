"""Fills a cause's templates with the log's own values: title, reasons, and commands that can be
typed.
"""

from __future__ import annotations

import re
import shlex

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
_UNKNOWN_WHY = (
    "Not a known failure. This is the first exception that is not a wrapper; the traceback above "
    "it in the "
    "log shows where it was raised."
)


def to_problem(cause: Cause, facts: Facts, engine: str | None) -> Problem:
    """The cause in words."""
    rule, shown = cause.rule, cause.key_line
    values = {key: safe_text(value, 500) for key, value in cause.values.items()}
    values = {**_context(facts, engine, values), **values}
    return Problem(
        id=rule.id if rule is not None else "unknown",
        title=_title(cause, values),
        why=rule.why if rule is not None else _UNKNOWN_WHY,
        fixes=_fixes(rule, values, facts, engine)
        if rule is not None
        else _debug_fix(engine, values),
        key_line=safe_text(shown.text, _KEY_LINE),
        key_line_number=shown.line_number,
        process=safe_text(shown.process) if shown.process is not None else None,
        is_known=rule is not None,
    )


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
    if facts.model and _REPO_ID.fullmatch(facts.model):
        context["repo_id"] = facts.model
    return context


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
    fixes = []
    for text, command in rule.fixes:
        filled_text = _fill(text, values)
        filled_command = _fill(command, values) if command is not None else None
        if filled_text is None or (command is not None and not filled_command):
            continue
        if filled_command is None or _can_be_typed(filled_command, facts, engine):
            fixes.append(Fix(filled_text, filled_command))
    return tuple(fixes)


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
