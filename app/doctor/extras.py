"""The [engine] extra: which of its packages are here, from their metadata alone."""

from __future__ import annotations

import importlib.metadata

from app.doctor.report import Check, Result

ENGINE_DISTRIBUTIONS = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "gguf",
    "huggingface-hub",
    "fastapi",
    "uvicorn",
    "pyzmq",
    "msgspec",
)
_INSTALL = "pip install 'stoker[engine]'"


def installed_versions(names: tuple[str, ...]) -> dict[str, str | None]:
    """Version of each distribution, None for those that are not installed."""
    versions: dict[str, str | None] = {}
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def check_engine_extra(names: tuple[str, ...] = ENGINE_DISTRIBUTIONS) -> Check:
    """`stoker serve` needs all of it, the other commands none."""
    versions = installed_versions(names)
    missing = [name for name, version in versions.items() if version is None]
    present = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    title = "Engine extra"
    if not missing:
        return Check("engine-extra", title, Result.OK, present)
    if not present:
        seen = "not installed; stoker serve needs it, the other commands do not"
        return Check("engine-extra", title, Result.WARNING, seen, _INSTALL)
    seen = f"incomplete: {', '.join(missing)} missing (installed: {present})"
    return Check("engine-extra", title, Result.PROBLEM, seen, _INSTALL)
