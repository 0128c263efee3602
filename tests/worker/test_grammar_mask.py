"""The bitmask of structured output on a step's logits, with every other setting beside it."""

from __future__ import annotations

import numpy as np
import torch

from engine.sampling_params import SamplingParams
from engine.sched.scheduler_output import GrammarBitmask, NewRequestData
from engine.worker.input_batch import InputBatch
from engine.worker.sampler import SamplingBatch, sample

VOCAB, EOS = 70, 69


def bitmask(allowed: dict[str, list[int]]) -> GrammarBitmask:
    bits = np.zeros((len(allowed), 96), dtype=np.uint8)
    for row, tokens in enumerate(allowed.values()):
        bits[row, tokens] = 1
    return GrammarBitmask(
        list(allowed), np.packbits(bits, axis=1, bitorder="little").view(np.int32)
    )


def new_batch(params: dict[str, SamplingParams]) -> InputBatch:
    batch = InputBatch(8, 64, 16, seed=0)
    for name, settings in params.items():
        batch.add(NewRequestData(name, [1, 2, 3], 2, [[1]], 0, settings, (EOS,)))
    return batch


def test_rows_get_their_own_mask_in_whatever_order_they_come() -> None:
    greedy = SamplingParams(temperature=0.0)
    batch = new_batch(dict.fromkeys("abcd", greedy))
    batch.remove(["a"])
    batch.add(NewRequestData("e", [1, 2, 3], 2, [[1]], 0, greedy, (EOS,)))  # takes a's row
    logits = torch.arange(VOCAB, dtype=torch.float32).repeat(4, 1)
    rows = batch.rows(["c", "b", "e", "d"])
    mask = bitmask({"e": [5, 33], "c": [0], "d": [64, 65, 90]})
    tokens = sample(logits, SamplingBatch.of(batch, rows, mask))
    assert tokens.tolist() == [0, 69, 33, 65]


def test_random_rows_give_allowed_tokens_only_under_any_filter() -> None:
    names = [f"r{number}" for number in range(6)]
    params = [
        SamplingParams(seed=1),
        SamplingParams(top_k=3, seed=2),
        SamplingParams(top_p=0.3, seed=3),
        SamplingParams(min_p=0.2, seed=4),
        SamplingParams(repetition_penalty=1.5, frequency_penalty=1, seed=5),
        SamplingParams(logit_bias=((4, 100.0),), bad_words_token_ids=((9,),), seed=6),
    ]
    batch = new_batch(dict(zip(names, params, strict=True)))
    rows = batch.rows(names)
    mask = bitmask({name: [9, 40, 68] for name in names})
    torch.manual_seed(0)
    seen = set()
    for _ in range(40):
        logits = torch.randn(6, VOCAB) * 5
        tokens = sample(logits, SamplingBatch.of(batch, rows, mask)).tolist()
        assert set(tokens) <= {9, 40, 68}
        assert tokens[5] != 9
        batch.append_tokens(rows, np.array(tokens))
        seen |= set(tokens)
    assert seen == {9, 40, 68}


def test_the_grammar_has_the_last_word() -> None:
    """Settings that forbid all that the grammar allows give one of its tokens, not nonsense."""
    params = {
        "early": SamplingParams(min_tokens=9, seed=1),  # EOS is forbidden below min_tokens
        "word": SamplingParams(bad_words_token_ids=((7,),), seed=2),
        "list": SamplingParams(allowed_token_ids=(1, 2), temperature=0.0),
    }
    batch = new_batch(params)
    mask = bitmask({"early": [EOS], "word": [7], "list": [50]})
    logits = torch.zeros(3, VOCAB)
    tokens = sample(logits, SamplingBatch.of(batch, batch.rows(list(params)), mask))
    assert tokens.tolist() == [EOS, 7, 50]
