"""The import contracts of pyproject.toml, as data."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from tests.places import ROOT

PACKAGES = ("app", "engine", "tui", "logparse")


def contracts() -> list[dict[str, Any]]:
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    settings = toml.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert tuple(settings["root_packages"]) == PACKAGES
    found: list[dict[str, Any]] = settings["contracts"]
    return found
