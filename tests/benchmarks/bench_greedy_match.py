"""Prints how many greedy bf16 texts equal those of transformers in float32.

`python -m tests.benchmarks.bench_greedy_match [MODEL [NUM_TOKENS]]`, MODEL smollm2 or gemma3. No
bf16 run can follow float32 for ever: transformers' own bf16 stands beside ours for comparison.
"""

from __future__ import annotations

import sys

import torch

from engine.errors import ConfigError
from tests.default_model import default_model_folder
from tests.gemma_model import gemma_folder
from tests.worker.greedy import (
    Tokens,
    engine_tokens,
    load_oracle,
    num_equal,
    oracle_tokens,
    real_prompts,
    start_engine,
)

_MODELS = {"smollm2": default_model_folder, "gemma3": gemma_folder}


def report(what: str, tokens: Tokens, expected: Tokens) -> None:
    """Shares of whole texts, of first tokens, and of tokens before the first difference."""
    pairs = list(zip(tokens, expected, strict=True))
    equal = [num_equal(ours, theirs) for ours, theirs in pairs]
    whole = sum(count == len(theirs) for count, (_, theirs) in zip(equal, pairs, strict=True))
    first = sum(count > 0 for count in equal)
    share = sum(equal) / sum(len(theirs) for theirs in expected)
    print(f"{what:28} texts {whole}/{len(equal)}  first tokens {first}  tokens {share:.1%}")


def main(model: str = "smollm2", num_tokens: str = "64") -> None:
    """One line per kernel set, and one for transformers in bfloat16."""
    folder = _MODELS[model]()
    prompts, count = real_prompts(folder), int(num_tokens)
    expected = oracle_tokens(load_oracle(folder), prompts, count)
    for kernels in ("native", "reference"):
        try:
            core = start_engine(folder, "bfloat16", kernels)
        except ConfigError as error:
            print(f"{kernels}: {error}")
            continue
        report(f"{model} bf16 {kernels}", engine_tokens(core, prompts, count), expected)
        del core
    theirs = oracle_tokens(load_oracle(folder, torch.bfloat16), prompts, count)
    report(f"{model} bf16 transformers", theirs, expected)


if __name__ == "__main__":
    main(*sys.argv[1:])
