"""--compilation-config: what of vLLM's JSON is taken, and what is refused."""

from __future__ import annotations

import pytest

from engine.compilation_config import merged_compilation
from engine.config import CompilationConfig
from engine.errors import ConfigError


def test_without_the_flag_all_stays() -> None:
    flags = CompilationConfig(optimization_level=1)
    assert merged_compilation(None, flags) is flags


def test_graphs_are_taken_from_json() -> None:
    text = (
        '{"cudagraph_mode": "piecewise", "cudagraph_capture_sizes": [4, 1], '
        '"max_cudagraph_capture_size": 4}'
    )
    assert merged_compilation(text, CompilationConfig(optimization_level=3)) == CompilationConfig(
        optimization_level=3,
        cudagraph_mode="PIECEWISE",
        cudagraph_capture_sizes=(4, 1),
        max_cudagraph_capture_size=4,
    )


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        ("{", {}, "is no JSON"),
        ("3", {}, "is no JSON object like .*use -O"),
        ('{"mode": 3}', {}, "'mode' is not known here; use cudagraph_mode, "),
        ('{"cudagraph_mode": "FULL"}', {}, "'FULL' is not one of NONE, PIECEWISE, FULL_DECODE"),
        ('{"cudagraph_mode": 2}', {}, "2 is not one of"),
        ('{"cudagraph_capture_sizes": []}', {}, r"\[\] is no list of whole numbers"),
        ('{"cudagraph_capture_sizes": [true]}', {}, r"\[True\] is no list"),
        ('{"cudagraph_capture_sizes": [0]}', {}, r"\[0\] is no list"),
        ('{"max_cudagraph_capture_size": 0}', {}, "a whole number, at least 1"),
        (
            '{"max_cudagraph_capture_size": 8}',
            {"max_cudagraph_capture_size": 8},
            "by --max-cudagraph-capture-size too; drop one",
        ),
        (
            '{"cudagraph_mode": "PIECEWISE"}',
            {"enforce_eager": True},
            "cudagraph_mode and --enforce-eager; drop one",
        ),
    ],
)
def test_what_cannot_be_followed_is_refused(
    text: str, flags: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"^--compilation-config.*{message}"):
        merged_compilation(text, CompilationConfig(**flags))  # type: ignore[arg-type]
