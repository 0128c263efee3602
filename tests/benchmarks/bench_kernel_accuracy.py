"""Prints how near the kernels come to float32, for each build that this CPU can run.

`python -m tests.benchmarks.bench_kernel_accuracy [NUM_TOKENS [FORMAT ...]]`: teacher forcing of the
default model on the texts in docs. The measure is the plain-torch set in float32, with its weights
and inputs rounded to the same integers where FORMAT (none, int8, int4; default all) asks for it.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from engine.kernels.kernel_set import ModelStep
from engine.kernels.native.instruction_sets import INSTRUCTION_SETS, VARIABLE
from engine.worker.uniproc_executor import UniProcExecutor
from engine.worker.worker import Worker
from tests.default_model import default_model_folder
from tests.kernels.paged_sequences import PagedSequences
from tests.places import ROOT
from tests.worker.driver import engine_config

_DOCS = ROOT / "docs"
_LENGTH = 500
_FORMATS = ("none", "int8", "int4")


@dataclass(frozen=True, slots=True)
class Agreement:
    """Logits of one set beside those of another, on the same text."""

    relative_error: float
    same_argmax: float  # share of the places
    perplexity: float
    wanted_perplexity: float

    def __str__(self) -> str:
        return (
            f"logit error {self.relative_error:.2%}, same argmax {self.same_argmax:.2%}, "
            f"perplexity {self.perplexity:.3f} (float32 {self.wanted_perplexity:.3f})"
        )


def text_tokens(tokenizer: Tokenizer, text: str, count: int, length: int) -> list[list[int]]:
    """Up to `count` pieces of `length` tokens."""
    ids: list[int] = tokenizer.encode(text).ids
    starts = range(0, min(len(ids) - length, count * length), length)
    return [ids[start : start + length] for start in starts]


def loaded_step(
    folder: Path, dtype: str, kernels: str, quantization: str = "none", cache_dtype: str = "auto"
) -> ModelStep:
    """The model on one kernel set."""
    config = engine_config(
        folder, dtype=dtype, kernels=kernels, quantization=quantization, cache_dtype=cache_dtype
    )
    executor = UniProcExecutor(config)
    executor.load_model()
    worker = executor._worker
    assert isinstance(worker, Worker)
    return worker._model


def forced_logits(
    model: ModelStep, prompts: list[list[int]], windows: Sequence[int | None] = (None,)
) -> list[Tensor]:
    """Every token of the texts is fed, whatever the model would have said.

    `windows` are those of the model's KV groups.
    """
    return [
        PagedSequences(model, [prompt], 16, windows=windows).run([[len(prompt)]])[0]
        for prompt in prompts
    ]


def compare(ours: list[Tensor], wanted: list[Tensor], prompts: list[list[int]]) -> Agreement:
    """Of the forced logits of two models."""
    difference = size = loss = wanted_loss = 0.0
    same = places = 0
    for mine, theirs, prompt in zip(ours, wanted, prompts, strict=True):
        difference += float((mine - theirs).square().sum())
        size += float(theirs.square().sum())
        same += int((mine.argmax(-1) == theirs.argmax(-1)).sum())
        places += len(prompt)
        loss += _loss(mine, prompt)
        wanted_loss += _loss(theirs, prompt)
    scored = places - len(prompts)
    return Agreement(
        math.sqrt(difference / size),
        same / places,
        math.exp(loss / scored),
        math.exp(wanted_loss / scored),
    )


def _loss(logits: Tensor, prompt: list[int]) -> float:
    targets = torch.tensor(prompt[1:])
    return float(torch.nn.functional.cross_entropy(logits[:-1], targets, reduction="sum"))


def _report(
    build: str, kernels: str, quantization: str, prompts: list[list[int]], exact: list[Tensor]
) -> None:
    step = loaded_step(default_model_folder(), "bfloat16", kernels, quantization)
    found = compare(forced_logits(step, prompts), exact, prompts)
    print(f"{quantization:4} {build:12} {found}", flush=True)


def main(num_tokens: str = "2000", *formats: str) -> None:
    """One line per format and build, and one for what `--kernels reference` gives."""
    os.environ["STOKER_PACKED_CACHE_GIB"] = "0"  # twelve models would drive out the user's
    folder = default_model_folder()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(_DOCS.glob("*.md")))
    prompts = text_tokens(tokenizer, text, int(num_tokens) // _LENGTH, _LENGTH)
    print(f"{len(prompts) * _LENGTH} tokens")
    for quantization in formats or _FORMATS:
        exact = forced_logits(loaded_step(folder, "float32", "reference", quantization), prompts)
        _report("reference", "reference", quantization, prompts, exact)
        for isa in INSTRUCTION_SETS:
            if missing := isa.missing():
                print(f"{quantization:4} {isa.name:12} this CPU has no {', '.join(missing)}")
                continue
            os.environ[VARIABLE] = isa.name
            _report(isa.name, "native", quantization, prompts, exact)


if __name__ == "__main__":
    main(*sys.argv[1:])
