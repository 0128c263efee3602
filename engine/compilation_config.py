"""--compilation-config: the part of vLLM's JSON that says which CUDA graphs are recorded.

What it says about torch.compile is refused: steps here are not compiled by it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from engine.config import CompilationConfig
from engine.cuda_graph_sizes import CUDAGraphMode
from engine.errors import ConfigError
from engine.json_flags import json_object

_FLAG = "--compilation-config"
_EXAMPLE = '{"cudagraph_mode": "PIECEWISE"}; for the levels 0 to 3 use -O'
_MODES = [mode.value for mode in CUDAGraphMode if mode is not CUDAGraphMode.FULL]
_KNOWN = ("cudagraph_mode", "cudagraph_capture_sizes", "max_cudagraph_capture_size")


def merged_compilation(text: str | None, flags: CompilationConfig) -> CompilationConfig:
    """`flags` with what the JSON object `text` adds; ConfigError where both say the same thing."""
    if text is None:
        return flags
    asked = json_object(_FLAG, text, _EXAMPLE)
    for name in asked:
        if name not in _KNOWN:
            raise ConfigError(f"{_FLAG}: {name!r} is not known here; use {', '.join(_KNOWN)}.")
        if getattr(flags, name) is not None:
            option = name.replace("_", "-")
            raise ConfigError(f"{_FLAG}: {name} is given by --{option} too; drop one of them.")
    if "cudagraph_mode" in asked:
        if flags.enforce_eager and asked["cudagraph_mode"] != "NONE":
            raise ConfigError(f"{_FLAG}: cudagraph_mode and --enforce-eager; drop one of them.")
        asked["cudagraph_mode"] = _mode(asked["cudagraph_mode"])
    if "cudagraph_capture_sizes" in asked:
        asked["cudagraph_capture_sizes"] = _sizes(asked["cudagraph_capture_sizes"])
    largest = asked.get("max_cudagraph_capture_size", 1)
    if not _is_size(largest):
        raise ConfigError(f"{_FLAG}: max_cudagraph_capture_size is a whole number, at least 1.")
    return dataclasses.replace(flags, **asked)


def _mode(asked: Any) -> str:
    if not isinstance(asked, str) or asked.upper() not in _MODES:
        raise ConfigError(f"{_FLAG}: cudagraph_mode {asked!r} is not one of {', '.join(_MODES)}.")
    return asked.upper()


def _sizes(asked: Any) -> tuple[int, ...]:
    if not isinstance(asked, list) or not asked or not all(map(_is_size, asked)):
        raise ConfigError(
            f"{_FLAG}: cudagraph_capture_sizes {asked!r} is no list of whole numbers from 1 on."
        )
    return tuple(asked)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 1 << 62
