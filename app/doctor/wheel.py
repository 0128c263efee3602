"""Does the published vLLM wheel fit a machine: Python, system, processor and C library.

The rule works on facts, so any machine can be asked about; `this_host` collects the facts here.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import sysconfig
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.tags import Tag, cpython_tags
from packaging.utils import parse_wheel_filename

from app.doctor.report import Check, Result

VLLM_VERSION = "0.30.0"
REQUIRES_PYTHON = ">=3.10,<3.15"
WHEELS = (
    "vllm-0.30.0-cp38-abi3-manylinux_2_28_aarch64.whl",
    "vllm-0.30.0-cp38-abi3-manylinux_2_28_x86_64.whl",
)
SOURCE_ONLY = "no prebuilt wheel: only the source archive, a build from source"

_SYSTEMS = {"Linux": "linux", "Darwin": "macos", "Windows": "windows"}
_OLDEST_MANYLINUX_MINOR = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What decides about a wheel. `glibc` is None where the C library is another one."""

    system: str  # linux, macos or windows
    arch: str
    python: tuple[int, int]
    glibc: tuple[int, int] | None
    has_stable_abi: bool = True  # CPython with the GIL: abi3 wheels load


def wheel_verdict(host: HostFacts) -> str:
    """`wheel FILE`, `no: ...` (this can never work) or `no prebuilt wheel...` (a build might)."""
    version = f"{host.python[0]}.{host.python[1]}"
    if not SpecifierSet(REQUIRES_PYTHON).contains(version):
        return f"no: Python {version} is outside {REQUIRES_PYTHON}"
    if host.system != "linux":
        return SOURCE_ONLY
    of_arch = [name for name in WHEELS if name.endswith(f"_{host.arch}.whl")]
    if not of_arch:
        return f"no prebuilt wheel for {host.arch}"
    if not host.has_stable_abi:
        return "no: the wheel's cp38-abi3 tag needs CPython with the GIL"
    tags = _accepted_tags(host)
    for name in of_arch:
        if tags & parse_wheel_filename(name)[3]:
            return f"wheel {name}"
    return f"no: {_needed_glibc(of_arch[0])}"


def this_host() -> HostFacts:
    """The facts of the machine and the interpreter that run this."""
    return HostFacts(
        system=_SYSTEMS.get(platform.system(), platform.system().lower()),
        arch=platform.machine().lower().replace("amd64", "x86_64"),
        python=sys.version_info[:2],
        glibc=glibc_version(),
        has_stable_abi=sys.implementation.name == "cpython"
        and not sysconfig.get_config_var("Py_GIL_DISABLED"),
    )


def glibc_version() -> tuple[int, int] | None:
    """Version of glibc, None for musl and other systems."""
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, OSError, ValueError):
        return None
    match = re.fullmatch(r"glibc (\d+)\.(\d+).*", text)
    return (int(match[1]), int(match[2])) if match else None


def check_vllm_wheel() -> Check:
    """The wheel of the newest vLLM that Stoker knows, against this interpreter."""
    verdict = wheel_verdict(this_host())
    title = f"vLLM {VLLM_VERSION} wheel"
    if verdict.startswith("wheel "):
        return Check("vllm-wheel", title, Result.OK, verdict)
    todo = "Stoker's own engine does not need it: stoker serve"
    if "Python" in verdict:
        todo = "make an environment with a fitting Python: uv venv --python 3.12"
    result = Result.PROBLEM if verdict.startswith("no:") else Result.WARNING
    return Check("vllm-wheel", title, result, verdict, todo)


def _accepted_tags(host: HostFacts) -> frozenset[Tag]:
    if host.glibc is None:
        return frozenset()
    major, minor = host.glibc
    platforms = [
        f"manylinux_{major}_{older}_{host.arch}"
        for older in range(minor, _OLDEST_MANYLINUX_MINOR - 1, -1)
    ]
    return frozenset(cpython_tags(host.python, platforms=platforms))


def _needed_glibc(wheel: str) -> str:
    match = re.search(r"manylinux_(\d+)_(\d+)", wheel)
    assert match is not None, wheel
    return f"{match[0]} needs glibc {match[1]}.{match[2]} or newer"
