"""Fills a cause's templates with the log's own values: title, reasons, and commands that can be
typed.
"""

from __future__ import annotations

import re
import shlex

from logparse.problems.candidate import Cause
from logparse.problems.command_line import Flag, added_flags, given_flags, typed_command
from logparse.problems.fitting import tuned
from logparse.problems.flags import OWN_FLAGS, SGLANG_FLAGS, SGLANG_VALUES, TRANSLATIONS
from logparse.problems.problem import ProblemRule, Values
from logparse.problems.unknown import Kind, kind_of, path_in
from logparse.records import Facts, Fix, Problem
from logparse.redact import safe_text, shortened

_KEY_LINE = 400
_PROGRAMS = {
    "vllm": "vllm serve",
    "stoker": "stoker serve",
    "llama.cpp": "llama-server",
    "sglang": "python -m sglang.launch_server",
}
_MODEL_FLAGS = {"llama-server": "-m ", "python -m sglang.launch_server": "--model-path "}
_SUPERVISED = {
    "vllm": "stoker serve --engine vllm --restart on-failure",
    "llama.cpp": "stoker serve --engine llama.cpp --restart on-failure",
    "stoker": "stoker serve --restart on-failure",
}
# What people call it, and the package that pip knows.
_NAMES: dict[str, tuple[str, str | None]] = {
    "vllm": ("vLLM", "vllm"),
    "stoker": ("Stoker", None),
    "llama.cpp": ("llama.cpp", None),
    "sglang": ("SGLang", "sglang"),
}
# Values of vLLM's that our server does not take, and its short forms.
_NOT_OWN = ("--quantization fp8", "--attention-backend ", " -cc.")
_OTHER_ENGINE = re.compile(r"^stoker serve .* --engine [a-z.]+$")
_FLAG = re.compile(r"(?<![\w-])(--[a-z][a-z-]{1,60})")
_VLLM_WORD = re.compile(r"(?<![\w:'-])vllm(?![\w:])(?! serve\|)")
_GPU_COMMANDS = ("nvidia-smi", "CUDA_VISIBLE_DEVICES=", "docker run --gpus")
_NVIDIA_SMI = re.compile(r"nvidia-smi(?: -[\w-]{1,20})*")
_DEVICE_WORDS = {
    "rocm": ("rocm-smi", "HIP_VISIBLE_DEVICES"),
    "npu": ("npu-smi info", "ASCEND_RT_VISIBLE_DEVICES"),
    "hpu": ("hl-smi", "HABANA_VISIBLE_DEVICES"),
    "xpu": ("xpu-smi discovery", "ZE_AFFINITY_MASK"),
}
_DOCKER_DEVICES = {
    "rocm": "--device /dev/kfd --device /dev/dri",
    "npu": "--device /dev/davinci0 --device /dev/davinci_manager",
    "hpu": "--runtime habana",
    "xpu": "--device /dev/dri",
}
_REPO_ID = re.compile(r"[\w-][\w.-]{0,95}/[\w-][\w.-]{0,95}")
_BARE = re.compile(r"[\w.]{1,200}:?(?: '?[\w.-]{0,60}'?)?")
_PLACEHOLDER = re.compile(r"\{(\w{1,40})\}")
_UNKNOWN_WHY = "not known: no rule describes this failure. It is the first exception that names one"


def to_problem(cause: Cause, facts: Facts, engine: str | None) -> Problem:
    rule, shown = cause.rule, cause.key_line
    values = {key: safe_text(value, 500) for key, value in cause.values.items()}
    values = {**_context(facts, engine, values), **values}
    return Problem(
        id=rule.id if rule is not None else "unknown",
        title=_title(cause, values),
        why=(_fill(rule.why, values) or rule.why) if rule is not None else _unknown_why(cause),
        fixes=_fixes(rule, values, facts, engine)
        if rule is not None
        else _unknown_fixes(cause, values, facts, engine),
        key_line=safe_text(shown.text, _KEY_LINE),
        key_line_number=shown.line_number,
        process=safe_text(shown.process) if shown.process is not None else None,
        is_known=rule is not None,
        place=_place(cause),
    )


def _place(cause: Cause) -> str | None:
    return _shown_place(cause.candidate.place)


def _shown_place(place: str | None) -> str | None:
    return safe_text(place.replace('"', ""), 300) if place is not None else None


def _unknown_why(cause: Cause) -> str:
    """What the structure tells: where it was raised, on whose behalf, what it touched."""
    place, own = _place(cause), _shown_place(cause.candidate.own_place)
    raised = f"; raised in {place}" if place else ""
    if own and place and own != place:
        raised += f", called from {own}"
    kind = _kind(cause)
    touched = f". It has to do with {kind.name}" if kind is not None else ""
    return f"{_UNKNOWN_WHY}{raised}{touched}."


def _kind(cause: Cause) -> Kind | None:
    candidate = cause.candidate
    return kind_of(candidate.text, candidate.place, candidate.own_place)


def _unknown_fixes(
    cause: Cause, values: Values, facts: Facts, engine: str | None
) -> tuple[Fix, ...]:
    kind = _kind(cause)
    path = path_in(cause.candidate.text)
    if path is not None:
        values = {**values, "path": shlex.quote(safe_text(path, 300))}
    variable = {"vllm": "VLLM_LOGGING_LEVEL", "stoker": "STOKER_LOGGING_LEVEL"}.get(engine or "")
    debug = (("start again with every message shown", f"{variable}=DEBUG {{serve}}"),)
    templates = (*(kind.fixes if kind is not None else ()), *(debug if variable else ()))
    return _filled(templates, values, facts, engine, is_translated=True)


def _context(facts: Facts, engine: str | None, values: Values) -> Values:
    program = _PROGRAMS.get(engine or "", _PROGRAMS["vllm"])
    model = shlex.quote(facts.model) if facts.model else "MODEL"
    server, package = _NAMES.get(engine or "", _NAMES["vllm"])
    is_ours = engine == "stoker"
    context = {
        "program": program,
        "model": model,
        "server": server,
        "hub_login": "stoker models login" if is_ours else "hf auth login",
        "hub_download": "stoker models pull" if is_ours else "hf download",
    }
    if package is not None:
        context["package"] = package
    if engine in _SUPERVISED:
        context["supervised"] = _SUPERVISED[engine]
    port = values.get("port") or _port(facts)
    context["next_port"] = str(int(port) + 1) if port and port.isdigit() else "8001"
    if port is not None:
        context["port"] = port
    context |= tuned(facts, values)
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
    text, source = cause.candidate.text, cause.candidate.source
    if source and _BARE.fullmatch(text.strip()):
        text = f"{text.strip().rstrip(':')} at `{source}`"  # it says nothing, the code does
    return shortened(safe_text(text), 200)


def _fixes(rule: ProblemRule, values: Values, facts: Facts, engine: str | None) -> tuple[Fix, ...]:
    return _filled(rule.fixes, values, facts, engine, is_translated=not rule.engine)


def filled_fixes(
    templates: tuple[tuple[str, str | None], ...],
    facts: Facts,
    engine: str | None,
    *,
    is_own: bool = False,
) -> tuple[Fix, ...]:
    """Fixes that need nothing but the facts of the log; `is_own` if they name the engine's own
    flags.
    """
    values = _context(facts, engine, {})
    return _filled(templates, values, facts, engine, is_translated=not is_own)


def _filled(
    templates: tuple[tuple[str, str | None], ...],
    values: Values,
    facts: Facts,
    engine: str | None,
    *,
    is_translated: bool,
) -> tuple[Fix, ...]:
    """Each that can be filled in and typed for this engine, with the user's own flags."""
    flags = TRANSLATIONS.get(engine or "") if is_translated else None
    given = given_flags(facts.non_default_args)
    found: dict[str, Fix] = {}
    for text, command in templates:
        filled = _fill(text, values)
        if filled is None:
            continue
        if command is None:
            found.setdefault(filled, Fix(filled, None))
            continue
        typed = _command(_for_device(command, facts.platform), values, flags, given)
        if typed is not None and _can_be_typed(typed, facts, engine):
            found.setdefault(typed, Fix(filled, typed))
    return tuple(found.values())


def _for_device(command: str, platform: str | None) -> str:
    """What asks or names NVIDIA's devices, in the words of the maker of those that are here."""
    tool, variable = _DEVICE_WORDS.get(platform or "", (None, None))
    if tool is None or variable is None:
        return command
    command = _NVIDIA_SMI.sub(tool, command).replace("CUDA_VISIBLE_DEVICES", variable)
    return command.replace("--gpus all", _DOCKER_DEVICES[platform or ""])


def _command(
    template: str, values: Values, flags: dict[str, str] | None, given: tuple[Flag, ...]
) -> str | None:
    """None when a value is missing, or another engine (`flags`) has no such flag."""
    is_start = "{serve}" in template
    before, _, after = template.partition("{serve}")
    filled = [_fill(part, values) for part in ((before, after) if is_start else (before,))]
    if None in filled:
        return None
    if not is_start:
        return filled[0]
    text = "{serve}".join(part for part in filled if part is not None)
    if flags is not None:
        translated = _translated(text, flags)
        if translated is None:
            return None
        text = translated
    start = f"{values['program']} {_MODEL_FLAGS.get(values['program'], '')}{values['model']}"
    return typed_command(text, start, given)


def _translated(template: str, flags: dict[str, str]) -> str | None:
    """The advice in the flags of another engine, None when it has none for it."""
    if "VLLM_" in template:
        return None
    names = {flag.name for flag in added_flags(template)} | set(_FLAG.findall(template))
    for flag in sorted(names):
        if flag not in flags and flag != "--help":
            return None
        template = template.replace(flag, flags.get(flag, flag), 1)
    for theirs, ours in SGLANG_VALUES.items() if flags is SGLANG_FLAGS else ():
        template = template.replace(theirs, ours)
    return template


def _can_be_typed(command: str, facts: Facts, engine: str | None) -> bool:
    """Whether the command makes sense for this engine and device."""
    if facts.platform == "cpu" and command.startswith(_GPU_COMMANDS):
        return False
    if "HSA_OVERRIDE_GFX" in command and facts.platform != "rocm":
        return False
    if engine != "sglang" and "SGLANG_" in command:
        return False
    if engine in TRANSLATIONS and ("VLLM_" in command or _VLLM_WORD.search(command)):
        return False
    if engine != "stoker" or _OTHER_ENGINE.search(command):
        return True
    if "VLLM_" in command or _VLLM_WORD.search(command) or "torchinductor" in command.lower():
        return False
    if any(words in command for words in _NOT_OWN):
        return False
    flags = _FLAG.findall(command) if "stoker serve" in command else []
    return all(flag in OWN_FLAGS or flag == "--help" for flag in flags)
