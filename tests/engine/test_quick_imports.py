"""What the engine process leaves out of torch, and that it is there for whoever needs it."""

from __future__ import annotations

import subprocess
import sys

from tests.places import ROOT

_PROGRAM = """
import sys
from engine.core.executor import preload_executor
from engine.quick_imports import complete_torch

preload_executor("uni")
import torch

assert "torch._meta_registrations" not in sys.modules
assert not hasattr(torch, "_meta_registrations")
assert torch.ones(3).softmax(0).sum().item() == 1
complete_torch()
product = torch.empty(2, 3, device="meta").double().cumsum(1) @ torch.empty(
    3, 4, device="meta", dtype=torch.float64
)
assert product.shape == (2, 4)
from torch._subclasses.fake_tensor import FakeTensorMode

with FakeTensorMode():
    assert torch.nn.Linear(3, 5)(torch.ones(2, 3)).shape == (2, 5)
"""


def test_torch_is_whole_once_it_is_completed() -> None:
    subprocess.run([sys.executable, "-c", _PROGRAM], check=True, cwd=ROOT)
