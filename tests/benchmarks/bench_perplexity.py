"""Prints perplexities in bf16, int8, int4: `python -m tests.benchmarks.bench_perplexity [TOKENS]`.

Teacher forcing on docstrings of the standard library (default 20,480 tokens in windows of 512):
each format's perplexity, how often its argmax is that of bf16, and on the first windows its logits
against those of the plain-torch twin, which rounds to the same integers in float32.
"""

from __future__ import annotations

import ast
import math
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from engine.kernels.kernel_set import KVCache, ModelStep
from engine.worker.uniproc_executor import UniProcExecutor
from engine.worker.worker import Worker
from tests.benchmarks.bench_model_step import batch_of
from tests.benchmarks.bench_quantization import FORMATS
from tests.default_model import default_model_folder
from tests.worker.driver import engine_config

WINDOW = 512
TWIN_WINDOWS = 4


def docstrings() -> Iterator[str]:
    """Of the standard library's modules, in the order of their names."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
        nodes = [node for node in ast.walk(tree) if isinstance(node, kinds)]
        yield from filter(None, map(ast.get_docstring, nodes))


def windows(num_tokens: int) -> list[list[int]]:
    """Token ids of the text, cut to pieces."""
    tokenizer = Tokenizer.from_file(str(default_model_folder() / "tokenizer.json"))
    ids: list[int] = []
    for text in docstrings():
        if len(ids) >= num_tokens:
            break
        ids += tokenizer.encode(text + "\n\n").ids
    return [ids[start : start + WINDOW] for start in range(0, num_tokens - WINDOW + 1, WINDOW)]


def load(quantization: str, dtype: str = "bfloat16", kernels: str = "native") -> ModelStep:
    """The default model."""
    config = engine_config(
        default_model_folder(), dtype=dtype, kernels=kernels, quantization=quantization
    )
    executor = UniProcExecutor(config)
    executor.load_model()
    worker = executor._worker
    assert isinstance(worker, Worker)
    return worker._model


def logits_of(model: ModelStep, cache: KVCache, window: list[int]) -> Tensor:
    """[tokens, vocabulary], as one prompt."""

    tokens, rows = np.array(window), np.arange(len(window))
    batch = replace(batch_of(1, len(window), 0), token_ids=tokens, logits_rows=rows)
    return model.forward(batch, cache)


def loss_of(logits: Tensor, window: list[int]) -> float:
    """Summed negative log likelihood of all tokens but the first."""
    return float(F.cross_entropy(logits[:-1], torch.tensor(window[1:]), reduction="sum"))


def compare_with_twin(name: str, model: ModelStep, cache: KVCache, text: list[list[int]]) -> str:
    """Relative error of the logits and equal argmaxes."""
    twin = load(name, "float32", "reference")
    twin_cache = twin.create_kv_cache(WINDOW // 16 + 2)
    difference = norm = equal = 0.0
    for window in text:
        ours, theirs = logits_of(model, cache, window), logits_of(twin, twin_cache, window)
        difference += float((ours - theirs).square().sum())
        norm += float(theirs.square().sum())
        equal += float((ours.argmax(-1) == theirs.argmax(-1)).sum())
    tokens = sum(map(len, text))
    return f"{math.sqrt(difference / norm):.4f} logit error, {equal / tokens:.4f} equal argmaxes"


def main() -> None:
    """One line per format."""
    num_tokens = int(sys.argv[1]) if len(sys.argv) > 1 else 20_480
    text = windows(num_tokens)
    predicted = sum(len(window) - 1 for window in text)
    print(f"{sum(map(len, text))} tokens in windows of {WINDOW}")
    plain_loss = 0.0
    plain_best: list[Tensor] = []
    for name in FORMATS:
        model = load(name)
        cache = model.create_kv_cache(WINDOW // 16 + 2)
        loss, equal = 0.0, 0
        for number, window in enumerate(text):
            logits = logits_of(model, cache, window)
            loss += loss_of(logits, window)
            best = logits.argmax(-1)
            if name == "none":
                plain_best.append(best)
            equal += int((best == plain_best[number]).sum())
        if name == "none":
            plain_loss = loss
        perplexity = math.exp(loss / predicted)
        share = 100 * (perplexity / math.exp(plain_loss / predicted) - 1)
        print(
            f"{name:5s} perplexity {perplexity:8.4f} ({share:+.2f}%), argmax as bf16 "
            f"{equal / sum(map(len, text)):.4f}; against float32 torch of the same format: "
            + compare_with_twin(name, model, cache, text[:TWIN_WINDOWS]),
            flush=True,
        )


if __name__ == "__main__":
    main()
