"""Which platform vLLM would choose: forced CPU, then plugins, then exactly one built-in probe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.doctor.facts import DoctorFacts, PlatformFacts
from app.doctor.report import Check, Result, command_line

PROBE_ORDER = ("tpu", "cuda", "rocm", "xpu", "cpu")
_ID, _TITLE = "vllm-platform", "vLLM platform"


@dataclass(frozen=True, slots=True)
class ChosenPlatform:
    """What vLLM's search ends with: one platform (OK), none (WARNING) or several (PROBLEM)."""

    result: Result
    text: str


def checks(facts: DoctorFacts) -> Sequence[Check]:
    if facts.platform is None:
        return [Check(_ID, _TITLE, Result.SKIPPED, "the facts do not say")]
    return [check_platform(facts.platform)]


def choose_platform(facts: PlatformFacts) -> ChosenPlatform:
    """The platform that vLLM would run on."""
    if (facts.target_device or "").lower() == "cpu":
        return ChosenPlatform(Result.OK, "CpuPlatform (VLLM_TARGET_DEVICE=cpu)")
    builtin = [name for name in PROBE_ORDER if name in facts.found]
    for kind, names in (("plugin ", facts.plugins), ("", tuple(builtin))):
        if len(names) > 1:
            several = f"error: more than one platform plugin [{', '.join(names)}]"
            return ChosenPlatform(Result.PROBLEM, several)
        if names:
            return ChosenPlatform(Result.OK, f"{kind}{names[0]}")
    return ChosenPlatform(Result.WARNING, "UnspecifiedPlatform")


def check_platform(facts: PlatformFacts) -> Check:
    """What `vllm serve` would run on."""
    chosen = choose_platform(facts)
    todo, commands = _repair(chosen.result, facts)
    details = (_examined(facts), _probes(facts))
    return Check(_ID, _TITLE, chosen.result, chosen.text, todo, commands, details)


def _repair(result: Result, facts: PlatformFacts) -> tuple[str | None, tuple[str, ...]]:
    if result is Result.PROBLEM:
        return _one_of_several(facts)
    if result is Result.WARNING:
        todo = (
            "no probe found its hardware, so vllm serve fails here: "
            "use stoker serve, give the container its GPU, or install vLLM's CPU build"
        )
        return todo, ("stoker doctor --only gpu",)
    return None, ()


def _one_of_several(facts: PlatformFacts) -> tuple[str, tuple[str, ...]]:
    if len(facts.plugins) > 1:
        todo = "keep one: name it in VLLM_PLUGINS, or uninstall the packages of the others"
        return todo, (command_line("export VLLM_PLUGINS={}", facts.plugins[0]),)
    todo = "two builds are mixed: make a new environment with the one that is meant"
    return todo, ("uv venv --python 3.12 vllm-env", "uv pip install vllm --torch-backend=auto")


def _examined(facts: PlatformFacts) -> str:
    if facts.vllm:
        return f"vLLM {facts.vllm}, a {'CPU' if 'cpu' in facts.vllm else 'GPU'} build"
    return "vLLM is not installed here: as its wheel on PyPI, a CUDA build, would see it"


def _probes(facts: PlatformFacts) -> str:
    answers = (f"{name} {'yes' if name in facts.found else 'no'}" for name in PROBE_ORDER)
    plugins = f"plugins: {', '.join(facts.plugins) or 'none'}"
    return f"{plugins}; probes: {', '.join(answers)}"
