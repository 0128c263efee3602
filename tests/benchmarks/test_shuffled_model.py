"""A shuffled model computes what the model computes, from other groups of weights."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.benchmarks.bench_kernel_accuracy import forced_logits, loaded_step
from tests.benchmarks.shuffled_model import write_shuffled
from tests.tiny_model import write_tiny_llama

PROMPT = [[72, 101, 108, 108, 111, 44, 32, 119, 111, 114, 108, 100]]


def test_the_function_stays_and_the_groups_change(tmp_path: Path) -> None:
    plain = write_tiny_llama(tmp_path / "plain")
    shuffled = write_shuffled(plain, tmp_path / "shuffled")
    logits = [
        forced_logits(loaded_step(folder, "float32", "reference"), PROMPT)[0]
        for folder in (plain, shuffled)
    ]
    torch.testing.assert_close(logits[0], logits[1])
    before, after = (load_file(f / "model.safetensors") for f in (plain, shuffled))
    for name, weight in before.items():
        if name.endswith("_proj.weight"):
            assert not torch.equal(weight, after[name]), name
            assert torch.equal(weight.flatten().sort()[0], after[name].flatten().sort()[0]), name
