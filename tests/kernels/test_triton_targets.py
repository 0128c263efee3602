"""Every Triton kernel compiled for every target, without a GPU: what each binary takes."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from engine.errors import ConfigError
from engine.kernels.triton.runtime import INTERPRET
from engine.kernels.triton.targets import (
    TARGETS,
    Target,
    programs_per_processor,
    target_named,
    target_of_capability,
)
from tests.kernels.resource_table import Resources, table
from tests.places import ROOT

KERNELS = {
    "activate_and_mul",
    "add_rms_norm",
    "argmax",
    "decode_attention",
    "embed",
    "fp8_product",
    "int8_product",
    "prefill_attention",
    "quantize_rows",
    "rotate_and_store",
    "sample",
}

_PATIENT = pytest.mark.timeout(1200)  # compilers wait for each other on a busy machine


@pytest.fixture(scope="module")
def compiled() -> list[dict[str, Any]]:
    """By a process of its own: in this one kernels are interpreted."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.ahead_of_time"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != INTERPRET},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@_PATIENT
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_kernels_compile_fit_and_spill_nothing(
    target: Target, compiled: list[dict[str, Any]]
) -> None:
    entries = [entry for entry in compiled if entry["target"] == target.name]
    assert {entry["kernel"] for entry in entries} == KERNELS
    for entry in entries:
        assert entry["spilled_registers"] == entry["spilled_bytes"] == 0, entry
        assert entry["shared_bytes"] <= target.shared_bytes, entry
        assert entry["programs"] >= 1, entry


@_PATIENT
def test_the_table_of_the_documentation_is_that_of_this_compiler(
    compiled: list[dict[str, Any]],
) -> None:
    page = (ROOT / "docs/gpu.md").read_text()
    version = importlib.metadata.version("triton")
    if f"Triton {version} " not in page:
        pytest.skip(f"the table was made by another version than {version}")
    made = table([Resources(**entry) for entry in compiled])
    assert made in page, "type: .venv/bin/python -m tests.kernels.ahead_of_time --table"


def test_every_kernel_of_the_package_is_compiled() -> None:
    folder = ROOT / "engine/kernels/triton"
    sources = "".join(path.read_text() for path in folder.glob("*.py"))
    assert {
        line.removeprefix("def ").partition("_kernel(")[0]
        for line in sources.splitlines()
        if line.startswith("def ") and "_kernel(" in line
    } == KERNELS


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        ((7, 5), "sm_75"),
        ((8, 0), "sm_80"),
        ((8, 6), "sm_80"),
        ((9, 0), "sm_90"),
        ((10, 3), "sm_100"),
        ((12, 0), "sm_100"),
    ],
)
def test_a_device_gets_the_newest_tiles_it_can_run(capability: tuple[int, int], name: str) -> None:
    assert target_of_capability(*capability).name == name


def test_a_device_that_is_too_old_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"7\.5 or later, and this one has 7\.0"):
        target_of_capability(7, 0)


def test_the_scarcest_resource_bounds_the_programs() -> None:
    h100 = target_named("sm_90")
    assert programs_per_processor(h100, 32, 0, 4) == 16  # threads
    assert programs_per_processor(h100, 128, 0, 4) == 4  # registers
    assert programs_per_processor(h100, 129, 0, 4) == 3  # which come eight at a time
    assert programs_per_processor(h100, 32, 100 * 1024, 4) == 2  # shared memory
    assert programs_per_processor(h100, 32, 0, 1) == 32  # programs
