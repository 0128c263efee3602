"""Which platform vLLM would choose: forced CPU, then plugins, then exactly one built-in probe.

The rule works on facts; `this_platform` collects them without importing torch or vLLM.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from app.doctor.gpu import GpuReading
from app.doctor.report import Check, Result

UNSPECIFIED = "UnspecifiedPlatform"
PROBE_ORDER = ("tpu", "cuda", "rocm", "xpu", "cpu")
_PLUGIN_GROUP = "vllm.platform_plugins"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformFacts:
    """`found` are the built-in probes that succeeded, `plugins` the packages that register one."""

    found: frozenset[str]
    plugins: tuple[str, ...] = ()
    is_cpu_forced: bool = False  # VLLM_TARGET_DEVICE=cpu


def choose_platform(facts: PlatformFacts) -> str:
    """A platform's name, `plugin NAME`, UNSPECIFIED, or `error: ...` when there are several."""
    if facts.is_cpu_forced:
        return "CpuPlatform (VLLM_TARGET_DEVICE=cpu)"
    builtin = [name for name in PROBE_ORDER if name in facts.found]
    for kind, names in (("plugin ", facts.plugins), ("", tuple(builtin))):
        if len(names) > 1:
            return f"error: more than one platform plugin [{', '.join(names)}]"
        if names:
            return f"{kind}{names[0]}"
    return UNSPECIFIED


def this_platform(gpus: GpuReading) -> PlatformFacts:
    """Facts of this machine; without vLLM here, as its wheel on PyPI (a CUDA build) sees it."""
    version = installed_vllm() or ""
    is_cpu_build = "cpu" in version
    probes = {
        "tpu": importlib.util.find_spec("libtpu") is not None,
        "cuda": bool(gpus.gpus) and not is_cpu_build,
        "rocm": Path("/dev/kfd").exists() and importlib.util.find_spec("amdsmi") is not None,
        "xpu": "xpu" in version,
        "cpu": is_cpu_build or platform.system() == "Darwin",
    }
    return PlatformFacts(
        found=frozenset(name for name, is_found in probes.items() if is_found),
        plugins=tuple(entry.name for entry in importlib.metadata.entry_points(group=_PLUGIN_GROUP)),
        is_cpu_forced=os.environ.get("VLLM_TARGET_DEVICE") == "cpu",
    )


def installed_vllm() -> str | None:
    """Version of the vLLM in this environment, from its metadata."""
    try:
        return importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return None


def check_vllm_platform(gpus: GpuReading) -> Check:
    """What `vllm serve` would run on here."""
    chosen = choose_platform(this_platform(gpus))
    version = installed_vllm()
    of = f"vLLM {version}" if version else "the vLLM wheel of PyPI (not installed here)"
    seen = f"{of} would choose: {chosen}"
    title = "vLLM platform"
    if chosen == UNSPECIFIED:
        todo = "vllm serve would fail here; use stoker serve, or install vLLM's CPU build"
        return Check("vllm-platform", title, Result.WARNING, seen, todo)
    if chosen.startswith("error"):
        todo = "uninstall all but one of the platforms named"
        return Check("vllm-platform", title, Result.PROBLEM, seen, todo)
    return Check("vllm-platform", title, Result.OK, seen)
