"""Looks at the Python environment that runs this file; prints JSON when run by another Python.

The standard library alone, and nothing newer than Python 3.8: `stoker doctor --python PATH` runs it
in an interpreter of unknown age. The keys are the fields of `facts.EnvironmentFacts`.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Any

_RELEVANT = re.compile(
    r"vllm.*|torch|torchvision|torchaudio|torchcodec|triton|xformers|flash[-_.]attn|flashinfer.*"
    r"|nvidia[-_.]ml[-_.]py|pynvml|nvidia[-_.]nccl.*|amdsmi|libtpu|transformers|tokenizers"
    r"|safetensors|gguf|huggingface[-_.]hub|fastapi|uvicorn|pyzmq|msgspec|numpy|stoker",
    re.IGNORECASE,
)
_PACKAGES = ("vllm", "torch", "torchvision", "torchaudio", "torchcodec")
_SHADOWED = (
    *("vllm", "torch", "triton", "transformers", "numpy", "flashinfer", "logging", "tokenizers"),
    *("typing", "types", "json", "random", "queue", "platform"),
)
_PLUGIN_GROUP = "vllm.platform_plugins"


def describe(working_folder: str) -> dict[str, Any]:
    """The facts as a dictionary of JSON values."""
    folders = [entry for entry in sys.path if entry and os.path.isdir(entry)]
    distributions, plugins = _installed(folders)
    config = _venv_config()
    return {
        "executable": sys.executable,
        "prefix": sys.prefix,
        "base_prefix": sys.base_prefix,
        "distributions": distributions,
        "packages": _packages(folders),
        "platform_plugins": _allowed(plugins),
        "modules": [name for name in ("libtpu", "amdsmi") if _is_there(folders, name)],
        "shadows": _shadows(working_folder, folders),
        "python_path": [e for e in os.environ.get("PYTHONPATH", "").split(os.pathsep) if e],
        "user_site": _user_site(),
        "has_headers": _has_headers(),
        "uses_system_packages": config.get("include-system-site-packages") == "true",
        "is_venv": sys.prefix != sys.base_prefix,
        "is_conda": any(
            os.path.isdir(os.path.join(p, "conda-meta")) for p in (sys.prefix, sys.base_prefix)
        ),
        "made_by": "uv" if "uv" in config else None,
        "active_venv": os.environ.get("VIRTUAL_ENV") or None,
        "active_conda": os.environ.get("CONDA_PREFIX") or None,
    }


def machine() -> dict[str, Any]:
    """What decides about wheels: the fields of `facts.MachineFacts`."""
    import platform
    import sysconfig

    systems = {"Linux": "linux", "Darwin": "macos", "Windows": "windows"}
    glibc = _glibc()
    mac = [int(part) for part in platform.mac_ver()[0].split(".")[:2] if part]
    return {
        "system": systems.get(platform.system(), platform.system().lower()),
        "arch": platform.machine().lower().replace("amd64", "x86_64"),
        "python": platform.python_version(),
        "release": platform.release(),
        "glibc": glibc,
        "musl": None if glibc else _musl(),
        "macos": [*mac, 0][:2] if mac else None,
        "implementation": platform.python_implementation(),
        "has_gil": not sysconfig.get_config_var("Py_GIL_DISABLED"),
        "executable": sys.executable,
    }


def _glibc() -> list[int] | None:
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, OSError, ValueError):
        return None
    match = re.match(r"glibc (\d+)\.(\d+)", text)
    return [int(match.group(1)), int(match.group(2))] if match else None


def _musl() -> list[int] | None:
    """musl's loader names its version on stderr, as the wheel standard for it prescribes."""
    import glob
    import subprocess

    for loader in glob.glob("/lib/ld-musl-*.so.1"):
        done = subprocess.run([loader], env={}, stderr=subprocess.PIPE, check=False)
        match = re.search(rb"Version (\d+)\.(\d+)", done.stderr)
        if match:
            return [int(match.group(1)), int(match.group(2))]
    return None


def _installed(folders: list[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Distributions that matter here, and the names of vLLM's platform plugins."""
    found: list[dict[str, Any] | None] = []
    plugins: list[str] = []
    for folder in dict.fromkeys(os.path.realpath(entry) for entry in folders):
        for entry in sorted(os.listdir(folder)):
            if not entry.endswith(".dist-info"):
                continue
            info = os.path.join(folder, entry)
            plugins += _plugins(os.path.join(info, "entry_points.txt"))
            name = entry[: -len(".dist-info")].rpartition("-")[0]
            if _RELEVANT.fullmatch(name):
                found.append(_distribution(folder, info))
    return [one for one in found if one is not None], plugins


def _distribution(folder: str, info: str) -> dict[str, Any] | None:
    head = _read(os.path.join(info, "METADATA")).split("\n\n", 1)[0]
    name = re.search(r"^Name: *(.+)$", head, re.MULTILINE)
    version = re.search(r"^Version: *(.+)$", head, re.MULTILINE)
    if not name or not version:
        return None
    return {
        "name": re.sub(r"[-_.]+", "-", name.group(1).strip()).lower(),
        "version": version.group(1).strip(),
        "location": folder,
        "installer": _read(os.path.join(info, "INSTALLER")).strip() or None,
        "requires_torch": _requirement(head, "torch"),
        "requires_flashinfer": _requirement(head, "flashinfer[-_]python"),
    }


def _requirement(head: str, name: str) -> str | None:
    """The condition on `name` without a marker, or with one for an ordinary Linux machine."""
    pattern = rf"^Requires-Dist: *{name} *([^;\n]*)(?:;(.*))?$"
    for match in re.finditer(pattern, head, re.MULTILINE):
        marker = match.group(2) or ""
        if "extra" not in marker and (not marker or "x86_64" in marker or "Linux" in marker):
            return match.group(1).strip(" ()") or None
    return None


def _plugins(path: str) -> list[str]:
    text = _read(path)
    if _PLUGIN_GROUP not in text:
        return []
    section = text.split(f"[{_PLUGIN_GROUP}]", 1)[-1].split("\n[", 1)[0]
    return [line.split("=")[0].strip() for line in section.splitlines() if "=" in line]


def _allowed(plugins: list[str]) -> list[str]:
    """VLLM_PLUGINS, when it is set, names those that are loaded."""
    wanted = os.environ.get("VLLM_PLUGINS")
    names = None if wanted is None else [name.strip() for name in wanted.split(",")]
    return [name for name in dict.fromkeys(plugins) if names is None or name in names]


def _packages(folders: list[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name in _PACKAGES:
        for entry in folders:
            folder = os.path.join(entry, name)
            if not os.path.isfile(os.path.join(folder, "__init__.py")):
                continue
            text = _read(os.path.join(folder, "version.py")) + "\n"
            text += _read(os.path.join(folder, "_version.py"))
            package = {
                "name": name,
                "folder": os.path.realpath(folder),
                "version": _literal(text, "__version__"),
                "cuda": _literal(text, "cuda") if name == "torch" else None,
                "hip": _literal(text, "hip") if name == "torch" else None,
            }
            if package not in found:
                found.append(package)
    return found


def _literal(text: str, name: str) -> str | None:
    pattern = rf"^{name}\b[^\n]*?=\s*(?:version\s*=\s*)?['\"]([^'\"]+)['\"]"
    match = re.search(pattern, text, re.MULTILINE)
    return match.group(1) if match else None


def _is_there(folders: list[str], name: str) -> bool:
    return any(os.path.isfile(os.path.join(entry, name, "__init__.py")) for entry in folders)


def _shadows(working_folder: str, folders: list[str]) -> list[str]:
    """Entries of the working folder that `python -m` would import instead of the real ones."""
    here = os.path.realpath(working_folder)
    if here in (os.path.realpath(entry) for entry in folders):
        return []
    names = [n for n in _SHADOWED if os.path.isdir(os.path.join(here, n))]
    # Without an __init__.py a folder gives way to an installed package, but hides a missing one.
    found = [
        os.path.join(here, name)
        for name in names
        if os.path.isfile(os.path.join(here, name, "__init__.py"))
        or (name == "vllm" and not _is_there(folders, name))
    ]
    files = (os.path.join(here, name + ".py") for name in _SHADOWED)
    return found + [path for path in files if os.path.isfile(path)]


def _user_site() -> str | None:
    """The user's own site folder, while it is on the path and holds packages that matter."""
    import site

    if not site.ENABLE_USER_SITE:
        return None
    folder = site.getusersitepackages()
    if folder not in sys.path or not os.path.isdir(folder):
        return None
    names = (
        e[: -len(".dist-info")].rpartition("-")[0]
        for e in os.listdir(folder)
        if e.endswith(".dist-info")
    )
    return folder if any(_RELEVANT.fullmatch(name) for name in names) else None


def _has_headers() -> bool:
    import sysconfig

    folder = sysconfig.get_path("include") or ""
    return os.path.isfile(os.path.join(folder, "Python.h"))


def _venv_config() -> dict[str, str]:
    lines = _read(os.path.join(sys.prefix, "pyvenv.cfg")).splitlines()
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


if __name__ == "__main__":
    import json

    print(json.dumps({"environment": describe(os.getcwd()), "machine": machine()}))
