"""Which kernels a test of the engine runs with, and how alike its results are in any arrangement.

An arrangement is alone or in a batch, in chunks or whole, undisturbed, preempted or from cached
prefixes. Conftests of folders import the fixture `choice`, so a test that names it runs with all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import pytest
import torch

from engine.messages import TokenLogprobs
from tests.kernels.native_models import native_library

Probe = Callable[[list[int]], TokenLogprobs]
"""What may follow these tokens: log probabilities of many, on the kernels under test."""


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """A kernel set and its numbers.

    With a `tie` of 0 sums run in one order: every arrangement gives the same tokens. Others round
    differently in each, so tokens whose logits are nearer than `tie` may swap.
    """

    kernels: str
    dtype: str
    quantization: str = "none"
    tie: float = 0.0

    def __str__(self) -> str:
        return f"{self.kernels}-{self.dtype if self.quantization == 'none' else self.quantization}"

    @property
    def flags(self) -> dict[str, Any]:
        """Torch gets one thread: tiny tensors are not worth more."""
        return {
            "kernels": self.kernels,
            "dtype": self.dtype,
            "quantization": self.quantization,
            "num_threads": 2 if self.kernels == "native" else 1,
        }

    @property
    def block_sizes(self) -> tuple[int, int, int]:
        """The usual one first."""
        return (16, 32, 48) if self.kernels == "native" else (16, 4, 3)

    def assert_same(
        self, found: list[int], wanted: list[int], prompt: list[int], probe: Probe
    ) -> None:
        """Continuations of `prompt` in two arrangements; after a tie nothing can be compared."""
        if found == wanted or not self.tie:
            assert found == wanted
            return
        pairs = list(zip(found, wanted, strict=True))
        count = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        entry = probe([*prompt, *wanted[:count]])
        logprobs = dict(zip(entry.token_ids[1:], entry.logprobs[1:], strict=True))
        gap = max(logprobs.values()) - min(logprobs.get(token, -99.0) for token in pairs[count])
        assert gap < self.tie, f"token {count}: {pairs[count]} are {gap} apart"


FLOAT32 = KernelChoice("reference", "float32")
NATIVE = KernelChoice("native", "bfloat16")
NATIVE_INT8 = KernelChoice("native", "bfloat16", "int8")
CHOICES = (
    FLOAT32,
    KernelChoice("reference", "bfloat16", tie=0.1),
    KernelChoice("reference", "bfloat16", "int8", tie=0.6),
    NATIVE,
    NATIVE_INT8,
    KernelChoice("native", "bfloat16", "int4"),
)
EXACT = [choice for choice in CHOICES if not choice.tie]

exact_only = pytest.mark.parametrize("choice", EXACT, indirect=True, ids=str)


@pytest.fixture(params=CHOICES, ids=str)
def choice(request: pytest.FixtureRequest) -> Iterator[KernelChoice]:
    chosen: KernelChoice = request.param
    if chosen.kernels == "native":
        native_library()
    before = torch.get_num_threads()
    yield chosen
    torch.set_num_threads(before)
