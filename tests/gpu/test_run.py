"""The script for a GPU, dry: every part of it runs on a CPU, so that it cannot rot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.places import ROOT


def test_the_script_for_a_gpu_runs_dry(tmp_path: Path) -> None:
    done = subprocess.run(
        [ROOT / "tests/gpu/run.sh", "--dry", tmp_path],
        env={**os.environ, "PYTHON": sys.executable, "GPU_TIMEOUT_S": "280"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["device"] == "CPU, dry"
    assert set(figures["parity"]) == {
        "LlamaForCausalLM",
        "Qwen3ForCausalLM",
        "Gemma3ForCausalLM",
    }
    assert max(figures["parity"].values()) < 1e-3
    assert figures["sampling"]["same"] > 0.9
    assert figures["greedy_match"]["same"] == 1
    assert [rate["streams"] for rate in figures["decode_rates"]] == [1, 2]
    assert all(rate["share_of_copy"] > 0 for rate in figures["decode_rates"])
    assert all(rate["tokens_per_s_ahead"] > 0 for rate in figures["decode_rates"])
    products = figures["weight_products"]
    assert set(products) == {"none", "int8", "fp8", "fp8_per_block"}
    assert max(entry["error"] for entry in products.values()) < 1e-3  # in float32
    assert figures["prefill_rate"]["tflop_per_s"] > 0
