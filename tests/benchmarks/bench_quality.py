"""Prints what int8 and int4 cost beside bf16, in quality:
`python -m tests.benchmarks.bench_quality [MODEL] [--shuffled] [--tokens N]`.

MODEL is smollm2 (the default), gemma3 or a folder; `--shuffled` exchanges its channels, see
shuffled_model.py. On N tokens (default 20,480: half the documents in docs/, half docstrings of
the standard library) in windows of 512: perplexity, the divergence of the distributions of the next
token from those of bf16, and how often both hold the same token for the most likely. Then 64 greedy
tokens after each of 100 prompts, and the tasks of small_tasks.py. Brackets are 95 % intervals.
"""

from __future__ import annotations

import argparse
import ast
import math
import os
import statistics
import sysconfig
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from app.bench.statistics import mean_estimate
from engine.core.engine_core import EngineCore
from tests.benchmarks.bench_kernel_accuracy import forced_logits, loaded_step
from tests.benchmarks.bench_quantization import FORMATS
from tests.benchmarks.shuffled_model import write_shuffled
from tests.benchmarks.small_tasks import MAX_ANSWER_TOKENS, is_right, tasks
from tests.default_model import default_model_folder
from tests.gemma_model import gemma_folder
from tests.kernels.native_models import group_windows
from tests.places import ROOT
from tests.worker.greedy import Tokens, engine_tokens, num_equal, real_prompts, start_engine

_MODELS = {"smollm2": default_model_folder, "gemma3": gemma_folder}
_WINDOW = 512
_ROWS = 64  # of a window that are compared at a time: a vocabulary may have 262,144 entries
_NUM_PROMPTS = 100
_PROMPT_TOKENS = 64
_GREEDY_TOKENS = 64


@dataclass
class Forced:
    """What one format says of every next token of the text, beside what bf16 says.

    `losses` has a window's mean negative log likelihood per token, `divergences` its mean
    Kullback-Leibler divergence from bf16, in nats.
    """

    losses: list[float] = field(default_factory=list)
    divergences: list[float] = field(default_factory=list)
    same_best: list[float] = field(default_factory=list)

    def add(self, logits: Tensor, plain: Tensor, window: list[int]) -> None:
        """`logits` and `plain` are [tokens, vocabulary], of this format and of bf16."""
        targets = torch.tensor(window[1:])
        loss = divergence = same = 0.0
        for start in range(0, len(targets), _ROWS):
            rows = slice(start, min(start + _ROWS, len(targets)))
            found, wanted = logits[rows].log_softmax(-1), plain[rows].log_softmax(-1)
            loss -= float(found.gather(1, targets[rows, None]).sum())
            divergence += float((wanted.exp() * (wanted - found)).sum())
            same += float((found.argmax(-1) == wanted.argmax(-1)).sum())
        self.losses.append(loss / len(targets))
        self.divergences.append(divergence / len(targets))
        self.same_best.append(same / len(targets))

    def row(self, plain: Forced) -> str:
        """The columns of the table that come from the text."""
        perplexity = math.exp(statistics.fmean(self.losses))
        pairs = zip(self.losses, plain.losses, strict=True)
        change = mean_estimate([ours - theirs for ours, theirs in pairs])
        low, high = (change.low or 0.0), (change.high or 0.0)
        shown = f"{_percent(change.value)} ({_percent(low)} to {_percent(high)})"
        return (
            f"{perplexity:.3f} | {shown} | {statistics.fmean(self.divergences):.4f} | "
            f"{statistics.fmean(self.same_best):.2%}"
        )


def docstrings() -> Iterator[str]:
    """Of the standard library's modules, in the order of their names."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
        nodes = [node for node in ast.walk(tree) if isinstance(node, kinds)]
        yield from filter(None, map(ast.get_docstring, nodes))


def text_windows(tokenizer: Tokenizer, num_tokens: int) -> Tokens:
    """Pieces of the documents, then as many of the docstrings; each begins as a prompt would."""
    documents = (path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
    first = tokenizer.encode("").ids  # what a model wants before every text
    length = _WINDOW - len(first)
    windows: Tokens = []
    for texts in (documents, docstrings()):
        ids: list[int] = []
        for text in texts:
            ids += tokenizer.encode(text + "\n\n", add_special_tokens=False).ids
            if len(ids) >= num_tokens // 2:
                break
        starts = range(0, num_tokens // 2 - length + 1, length)
        windows += [first + ids[start : start + length] for start in starts]
    return windows


def greedy_prompts(folder: Path, windows: Tokens) -> Tokens:
    """Questions and beginnings of texts in several languages, then pieces of the text."""
    prompts = real_prompts(folder)
    lengths = (_PROMPT_TOKENS, 2 * _PROMPT_TOKENS)
    pieces = [window[:length] for length in lengths for window in windows]
    return (prompts + pieces)[:_NUM_PROMPTS]


def force(folder: Path, windows: Tokens) -> dict[str, Forced]:
    """Every format over the text, window by window."""
    steps = {name: loaded_step(folder, "bfloat16", "native", name) for name in FORMATS}
    found = {name: Forced() for name in FORMATS}
    spans = group_windows(folder)
    for window in windows:
        plain = forced_logits(steps["none"], [window], spans)[0]
        for name, step in steps.items():
            logits = plain if name == "none" else forced_logits(step, [window], spans)[0]
            found[name].add(logits, plain, window)
    return found


def agreement(tokens: Tokens, plain: Tokens) -> str:
    """How many answers are those of bf16, and after how many tokens the others leave them."""
    equal = [num_equal(ours, theirs) for ours, theirs in zip(tokens, plain, strict=True)]
    shorter = [count for count in equal if count < _GREEDY_TOKENS]
    mean = f"{statistics.fmean(shorter):.1f}" if shorter else "-"
    return f"{len(equal) - len(shorter)} of {len(equal)} | {mean}"


def marks(core: EngineCore, tokenizer: Tokenizer) -> list[bool]:
    """Which of the tasks an engine solves."""
    asked = tasks()
    prompts = [tokenizer.encode(task.prompt).ids for task in asked]
    answers = engine_tokens(core, prompts, MAX_ANSWER_TOKENS)
    return [is_right(t, tokenizer.decode(ids)) for t, ids in zip(asked, answers, strict=True)]


def score(found: list[bool], plain: list[bool]) -> str:
    """Share of right answers with Wilson's interval, and how many turned wrong or right."""
    count, right, z = len(found), sum(found), 1.96
    share = right / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    half /= 1 + z * z / count
    lost = sum(theirs and not ours for ours, theirs in zip(found, plain, strict=True))
    won = sum(ours and not theirs for ours, theirs in zip(found, plain, strict=True))
    return f"{share:.1%} ({middle - half:.1%} to {middle + half:.1%}) | {lost} / {won}"


def report(folder: Path, num_tokens: int) -> None:
    """The table, a row per format."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    windows = text_windows(tokenizer, num_tokens)
    print(f"{sum(map(len, windows))} tokens in {len(windows)} windows", flush=True)
    forced = force(folder, windows)
    prompts = greedy_prompts(folder, windows)
    plain_tokens: Tokens = []
    plain_marks: list[bool] = []
    print(
        "| format | perplexity | change | divergence | same best token | same greedy answers | "
        "tokens until the others differ | tasks | lost / won |\n" + "|---" * 9 + "|"
    )
    for name in FORMATS:
        core = start_engine(folder, "bfloat16", "native", name)
        tokens = engine_tokens(core, prompts, _GREEDY_TOKENS)
        found = marks(core, tokenizer)
        if name == "none":
            plain_tokens, plain_marks = tokens, found
        shown = "bf16" if name == "none" else name
        print(
            f"| {shown} | {forced[name].row(forced['none'])} | {agreement(tokens, plain_tokens)} | "
            f"{score(found, plain_marks)} |",
            flush=True,
        )


def _percent(log_ratio: float) -> str:
    return f"{100 * math.expm1(log_ratio):+.2f}%"


def main() -> None:
    """One table for one model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--shuffled", action="store_true")
    parser.add_argument("--tokens", type=int, default=20_480)
    options = parser.parse_args()
    os.environ["STOKER_PACKED_CACHE_GIB"] = "0"  # models of a trial would drive out the user's
    make = _MODELS.get(options.model)
    folder = make() if make else Path(options.model)
    with tempfile.TemporaryDirectory() as scratch:
        if options.shuffled:
            folder = write_shuffled(folder, Path(scratch) / folder.name)
        report(folder, options.tokens)


if __name__ == "__main__":
    main()
