"""Do the published packages fit a machine: Python, system, processor and C library.

The rule is the installers': a wheel fits when the machine accepts one of the tags in its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags, mac_platforms
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from app.doctor.facts import DoctorFacts, EnvironmentFacts, MachineFacts, Release
from app.doctor.report import Check, Result, command_line

VLLM_VERSION = "0.30.0"
REQUIRES_PYTHON = ">=3.10,<3.15"
_NO_WHEEL = "no prebuilt wheel"
_SOURCE_ONLY = f"{_NO_WHEEL}: only the source archive, a build from source"
ENGINE_DISTRIBUTIONS = (
    *("torch", "transformers", "tokenizers", "safetensors", "gguf", "huggingface-hub"),
    *("fastapi", "uvicorn", "pyzmq", "msgspec"),
)

_OLDEST_MANYLINUX_MINOR = 5
_SYSTEM_OF_TAG = (
    *(("manylinux", "linux"), ("musllinux", "linux"), ("linux", "linux")),
    *(("macosx", "macos"), ("win", "windows")),
)
_TORCH_PLATFORMS = (
    *("macosx_14_0_arm64", "manylinux_2_28_aarch64", "manylinux_2_28_x86_64", "win_amd64"),
)
_TORCH_PYTHONS = ("cp310", "cp311", "cp312", "cp313", "cp314")
_INSTALL_EXTRA = "pip install 'stoker[engine]'"
_NOTHING = EnvironmentFacts(executable="", prefix="", base_prefix="")


@dataclass(frozen=True, slots=True)
class WheelFit:
    """A wheel fits (OK), none was built for the machine (WARNING) or none can work (PROBLEM)."""

    result: Result
    text: str
    wants_python: bool = False  # another one would do


VLLM_RELEASE = Release(
    package="vllm",
    version=VLLM_VERSION,
    requires_python=REQUIRES_PYTHON,
    files=(
        "vllm-0.30.0-cp38-abi3-manylinux_2_28_aarch64.whl",
        "vllm-0.30.0-cp38-abi3-manylinux_2_28_x86_64.whl",
        "vllm-0.30.0.tar.gz",
    ),
)
TORCH_RELEASE = Release(
    package="torch",
    version="2.13.0",
    requires_python=">=3.10",
    files=tuple(
        f"torch-2.13.0-{python}-{abi}-{platform}.whl"
        for python, abi in [*((cp, cp) for cp in _TORCH_PYTHONS), ("cp314", "cp314t")]
        for platform in _TORCH_PLATFORMS
    ),
)


def checks(facts: DoctorFacts) -> Sequence[Check]:
    machine = facts.machine
    if machine is None:
        return [Check("vllm-wheel", "vLLM wheel", Result.SKIPPED, "the facts do not say")]
    return [
        check_python(machine),
        check_system(machine),
        check_release(facts.vllm_release or VLLM_RELEASE, machine),
        # Of another vLLM it is not known which torch it needs.
        *([] if facts.vllm_release else [check_release(TORCH_RELEASE, machine)]),
        check_engine_extra(facts.environment),
    ]


def check_python(machine: MachineFacts) -> Check:
    """The interpreter; Stoker and the vLLM that it knows support the same versions."""
    seen = f"{machine.implementation} {machine.python}"
    if machine.executable:
        seen += f" ({machine.executable})"
    if SpecifierSet(REQUIRES_PYTHON).contains(machine.python, prereleases=True):
        return Check("python", "Python", Result.OK, seen)
    return Check(
        "python",
        "Python",
        Result.PROBLEM,
        seen,
        f"Stoker and vLLM need Python {REQUIRES_PYTHON}",
        ("uv tool install --python 3.12 stoker",),
    )


def check_system(machine: MachineFacts) -> Check:
    """Operating system, processor and C library."""
    library = _dotted("glibc", machine.glibc) or _dotted("musl", machine.musl) or "no glibc"
    seen = f"{machine.system} {machine.release or ''}".strip() + f", {machine.arch}, {library}"
    if machine.musl is None:
        return Check("system", "System", Result.OK, seen)
    todo = "vLLM and torch publish nothing for musl (Alpine): use an image with glibc"
    return Check("system", "System", Result.WARNING, seen, todo, ("docker pull python:3.12-slim",))


def check_release(release: Release, machine: MachineFacts) -> Check:
    """One package's published files against the machine."""
    fit = release_fit(release, machine)
    title = f"{_shown_name(release.package)} {release.version} wheel"
    todo, commands = _repair(fit, release, machine)
    return Check(f"{release.package}-wheel", title, fit.result, fit.text, todo, commands)


def _repair(
    fit: WheelFit, release: Release, machine: MachineFacts
) -> tuple[str | None, tuple[str, ...]]:
    if fit.result is Result.OK:
        return None, ()
    if fit.wants_python:
        install = command_line("uv pip install {}", release.package)
        return "use a fitting Python", ("uv venv --python 3.12 vllm-env", install)
    if machine.system != "linux":
        todo = "use llama.cpp here, or a Linux machine with a GPU"
        return todo, _source_commands(release, machine)
    todo = "the image brings its own system; or use llama.cpp on this machine"
    return todo, (f"docker pull vllm/vllm-openai:v{VLLM_VERSION}",)


def release_fit(release: Release, machine: MachineFacts) -> WheelFit:
    """Whether one of the release's wheels can be installed on the machine."""
    short = ".".join(machine.python.split(".")[:2])
    if not SpecifierSet(release.requires_python).contains(machine.python, prereleases=True):
        text = f"no: Python {short} is outside {release.requires_python}"
        return WheelFit(Result.PROBLEM, text, wants_python=True)
    wheels = [(name, tags) for name in release.files if (tags := _wheel_tags(name))]
    of_system = [one for one in wheels if _systems(one[1]) & {machine.system, "any"}]
    if not of_system:
        missing = _SOURCE_ONLY if _has_source(release) else f"{_NO_WHEEL} for {machine.system}"
        return WheelFit(Result.WARNING, missing)
    of_arch = [one for one in of_system if _is_for_arch(one[1], machine.arch)]
    if not of_arch:
        return WheelFit(Result.WARNING, f"{_NO_WHEEL} for {machine.arch}")
    accepted = accepted_tags(machine)
    for name, tags in of_arch:
        if tags & accepted:
            return WheelFit(Result.OK, f"wheel {name}")
    return WheelFit(Result.PROBLEM, f"no: {_why_none_fits(of_arch, machine)}")


def accepted_tags(machine: MachineFacts) -> frozenset[Tag]:
    """The tags that pip would accept on the machine."""
    major, minor = (int(part) for part in machine.python.split(".")[:2])
    platforms = list(_platforms(machine))
    if machine.implementation != "CPython":
        return frozenset(compatible_tags((major, minor), platforms=platforms))
    abis = None if machine.has_gil else [f"cp{major}{minor}t"]
    native = cpython_tags((major, minor), abis=abis, platforms=platforms)
    tags = {*native, *compatible_tags((major, minor), f"cp{major}{minor}", platforms)}
    if not machine.has_gil:  # the free-threaded build has no stable ABI
        tags = {tag for tag in tags if tag.abi != "abi3"}
    return frozenset(tags)


def check_engine_extra(environment: EnvironmentFacts | None) -> Check:
    """`stoker serve` needs all of the extra, the other commands none of it."""
    title = "Engine extra"
    versions = {one.name: one.version for one in (environment or _NOTHING).distributions}
    if "stoker" not in versions:
        return Check("engine-extra", title, Result.SKIPPED, "Stoker is not installed there")
    missing = [name for name in ENGINE_DISTRIBUTIONS if name not in versions]
    present = ", ".join(f"{n} {versions[n]}" for n in ENGINE_DISTRIBUTIONS if n in versions)
    if not missing:
        return Check("engine-extra", title, Result.OK, present)
    if not present:
        seen = "not installed; stoker serve needs it, the other commands do not"
        return Check("engine-extra", title, Result.WARNING, seen, None, (_INSTALL_EXTRA,))
    seen = f"incomplete: {', '.join(missing)} missing (installed: {present})"
    return Check("engine-extra", title, Result.PROBLEM, seen, None, (_INSTALL_EXTRA,))


def _platforms(machine: MachineFacts) -> Iterator[str]:
    arch = machine.arch
    if machine.system == "macos":
        yield from mac_platforms(machine.macos or (11, 0), arch)
    elif machine.system == "windows":
        yield "win_amd64" if arch == "x86_64" else f"win_{arch}"
    elif machine.glibc is not None:
        major, minor = machine.glibc
        for older in range(minor, _OLDEST_MANYLINUX_MINOR - 1, -1):
            yield f"manylinux_{major}_{older}_{arch}"
            if (legacy := {5: "1", 12: "2010", 17: "2014"}.get(older)) and major == 2:
                yield f"manylinux{legacy}_{arch}"
        yield f"linux_{arch}"
    elif machine.musl is not None:
        major, minor = machine.musl
        yield from (f"musllinux_{major}_{older}_{arch}" for older in range(minor, -1, -1))


def _wheel_tags(name: str) -> frozenset[Tag]:
    if not name.endswith(".whl"):
        return frozenset()
    try:
        return parse_wheel_filename(name)[3]
    except InvalidWheelFilename:
        return frozenset()


def _systems(tags: frozenset[Tag]) -> set[str]:
    found = {"any" for tag in tags if tag.platform == "any"}
    for tag in tags:
        found |= {system for prefix, system in _SYSTEM_OF_TAG if tag.platform.startswith(prefix)}
    return found


def _is_for_arch(tags: frozenset[Tag], arch: str) -> bool:
    wanted = {"any", f"_{arch}", *(("_amd64",) if arch == "x86_64" else ())}
    wanted |= {"_universal2"} if arch in ("arm64", "x86_64") else set()
    return any(tag.platform.endswith(tuple(wanted)) for tag in tags)


def _why_none_fits(wheels: Sequence[tuple[str, frozenset[Tag]]], machine: MachineFacts) -> str:
    name, tags = wheels[0]
    abi = next(iter(tags)).abi
    if abi == "abi3" and (not machine.has_gil or machine.implementation != "CPython"):
        return "the wheel's cp38-abi3 tag needs CPython with the GIL"
    if machine.system == "linux" and (match := re.search(r"manylinux_(\d+)_(\d+)", name)):
        needed = (int(match[1]), int(match[2]))
        if machine.glibc is None or machine.glibc < needed:
            return f"{match[0]} needs glibc {match[1]}.{match[2]} or newer"
    if match := re.search(r"macosx_(\d+)_(\d+)", name):
        return f"the wheels need macOS {match[1]}.{match[2]} or newer, and a Python they list"
    return f"no wheel for {machine.implementation} {machine.python}"


def _has_source(release: Release) -> bool:
    return any(name.endswith((".tar.gz", ".zip")) for name in release.files)


def _source_commands(release: Release, machine: MachineFacts) -> tuple[str, ...]:
    if machine.system == "macos":
        return ("brew install llama.cpp",)
    return ("wsl --install",) if machine.system == "windows" else ()


def _shown_name(package: str) -> str:
    return "vLLM" if package == "vllm" else package


def _dotted(name: str, version: tuple[int, int] | None) -> str | None:
    return f"{name} {version[0]}.{version[1]}" if version else None
