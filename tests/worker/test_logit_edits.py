"""Edits of logits against a naive twin, token by token, and against transformers' processors."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sampling_params import SamplingParams
from engine.sched.scheduler_output import NewRequestData
from engine.worker.input_batch import InputBatch
from engine.worker.logit_edits import FORBIDDEN, LogitEdits
from engine.worker.sampler import SamplingBatch, sample

VOCAB = 12
EOS = 11
TOKEN = st.integers(0, VOCAB - 1)


def new_batch() -> InputBatch:
    return InputBatch(8, 64, 16, seed=0)


def add(
    batch: InputBatch, name: str, prompt: list[int], output: list[int], params: SamplingParams
) -> None:
    tokens = prompt + output
    batch.add(NewRequestData(name, tokens, len(prompt), [[1, 2, 3, 4]], 0, params, (EOS,)))


def edited(batch: InputBatch, names: list[str], logits: torch.Tensor) -> torch.Tensor:
    result = logits.clone()
    edits = LogitEdits.of(batch, batch.rows(names))
    if edits is not None:
        edits.apply(result)
    return result


def naive(
    row: list[float], prompt: list[int], output: list[int], params: SamplingParams
) -> list[float]:
    """One row, one token at a time, in vLLM's order."""
    row = list(row)
    for token, bias in params.logit_bias:
        row[token] += bias
    counts = Counter(output)
    for token in range(VOCAB):
        if token in prompt or token in counts:
            factor = params.repetition_penalty
            row[token] = row[token] / factor if row[token] > 0 else row[token] * factor
        row[token] -= params.frequency_penalty * counts[token]
        row[token] -= params.presence_penalty * (counts[token] > 0)
    for token in range(VOCAB):
        if params.allowed_token_ids and token not in params.allowed_token_ids:
            row[token] = FORBIDDEN
        if len(output) < params.min_tokens and token in (EOS, *params.stop_token_ids):
            row[token] = FORBIDDEN
    for word in params.bad_words_token_ids:
        if len(word) == 1 or tuple(output[-(len(word) - 1) :]) == word[:-1]:
            row[word[-1]] = FORBIDDEN
    return row


PARAMS = st.builds(
    SamplingParams,
    temperature=st.just(0.0),
    repetition_penalty=st.sampled_from([1.0, 0.5, 1.3, 2.0]),
    presence_penalty=st.sampled_from([0.0, 0.0, -1.5, 2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.7, -0.3]),
    logit_bias=st.dictionaries(TOKEN, st.floats(-100, 100, width=32), max_size=4).map(
        lambda bias: tuple(bias.items())
    ),
    allowed_token_ids=st.sets(TOKEN, max_size=5).map(tuple),
    bad_words_token_ids=st.lists(
        st.lists(TOKEN, min_size=1, max_size=3).map(tuple), max_size=4
    ).map(tuple),
    min_tokens=st.integers(0, 5),
    stop_token_ids=st.sets(TOKEN, max_size=2).map(tuple),
)
REQUESTS = st.lists(
    st.tuples(
        PARAMS | st.just(SamplingParams(temperature=0.0)),
        st.lists(TOKEN, min_size=1, max_size=8),
        st.lists(TOKEN, max_size=4),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=150, deadline=None)
@given(REQUESTS, st.integers(0, 2**32 - 1))
def test_a_running_batch_equals_the_naive_twin(requests: list[Any], seed: int) -> None:
    """Some steps with tokens appended one by one, so that the counts are the incremental ones."""
    rng = np.random.default_rng(seed)
    batch = new_batch()
    names = [str(number) for number in range(len(requests))]
    outputs = []
    for name, (params, prompt, output) in zip(names, requests, strict=True):
        add(batch, name, prompt, output, params)
        outputs.append(list(output))
    for _ in range(4):
        logits = torch.from_numpy(rng.normal(0, 3, (len(names), VOCAB)).astype(np.float32))
        result = edited(batch, names, logits)
        expected = [
            naive(row, prompt, output, params)
            for row, output, (params, prompt, _) in zip(
                logits.tolist(), outputs, requests, strict=True
            )
        ]
        torch.testing.assert_close(result, torch.tensor(expected), rtol=1e-5, atol=1e-4)
        tokens = rng.integers(0, VOCAB, len(names))
        batch.append_tokens(batch.rows(names), tokens)
        for output, token in zip(outputs, tokens.tolist(), strict=True):
            output.append(token)


def test_rows_without_edits_need_none() -> None:
    batch = new_batch()
    add(batch, "a", [1, 2], [3], SamplingParams(temperature=0.7, top_p=0.9, seed=1))
    assert LogitEdits.of(batch, batch.rows(["a"])) is None


def test_a_row_that_is_used_again_has_nothing_of_its_last_request() -> None:
    batch = new_batch()
    everything = SamplingParams(
        repetition_penalty=2.0, logit_bias=((1, 5.0),), allowed_token_ids=(3,), min_tokens=9
    )
    for number in range(20):
        add(batch, str(number), [1, 2], [3], everything)
        batch.remove([str(number)])
    add(batch, "plain", [1], [], SamplingParams())
    assert LogitEdits.of(batch, batch.rows(["plain"])) is None
    add(batch, "light", [1], [], SamplingParams(presence_penalty=1.0))
    logits = torch.ones(1, VOCAB)
    assert torch.equal(edited(batch, ["light"], logits), logits)  # nothing generated yet


def test_nothing_is_allowed_any_more_still_gives_a_token() -> None:
    batch = new_batch()
    params = SamplingParams(allowed_token_ids=(EOS,), min_tokens=3, temperature=1.0)
    add(batch, "a", [1], [], params)
    tokens = sample(torch.randn(1, VOCAB), SamplingBatch.of(batch, batch.rows(["a"])))
    assert 0 <= tokens[0] < VOCAB


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_sample_obeys_the_edits(temperature: float) -> None:
    batch = new_batch()
    settings_: dict[str, Any] = {"temperature": temperature, "seed": 3}
    add(batch, "bias", [1], [], SamplingParams(logit_bias=((4, 100.0),), **settings_))
    add(batch, "allow", [1], [], SamplingParams(allowed_token_ids=(7,), **settings_))
    add(batch, "word", [1], [5], SamplingParams(bad_words_token_ids=((5, 9),), **settings_))
    add(batch, "free", [1], [], SamplingParams(temperature=0.0))
    logits = torch.zeros(4, VOCAB)
    logits[:, 9] = 50.0
    rows = batch.rows(["bias", "allow", "word", "free"])
    tokens = sample(logits, SamplingBatch.of(batch, rows)).tolist()
    assert tokens[:2] == [4, 7]
    assert tokens[2] != 9
    assert tokens[3] == 9


class TestAgainstTransformers:
    """The same tokens and logits through transformers' logits processors."""

    @pytest.fixture
    def tokens(self) -> torch.Tensor:
        return torch.tensor([[3, 5, 3, 8, 9, 5, 1]])

    @pytest.fixture
    def logits(self) -> torch.Tensor:
        return torch.linspace(-4, 5, VOCAB).unsqueeze(0)

    def ours(self, tokens: torch.Tensor, logits: torch.Tensor, **params: Any) -> torch.Tensor:
        batch = new_batch()
        ids = tokens[0].tolist()
        add(batch, "a", ids[:3], ids[3:], SamplingParams(**params))
        result = edited(batch, ["a"], logits)
        return result.masked_fill(result == FORBIDDEN, -torch.inf)

    @pytest.mark.parametrize("penalty", [0.6, 1.0, 1.2, 3.0])
    def test_repetition(self, tokens: torch.Tensor, logits: torch.Tensor, penalty: float) -> None:
        from transformers import RepetitionPenaltyLogitsProcessor

        theirs = RepetitionPenaltyLogitsProcessor(penalty)(tokens, logits.clone())
        torch.testing.assert_close(self.ours(tokens, logits, repetition_penalty=penalty), theirs)

    def test_bad_words(self, tokens: torch.Tensor, logits: torch.Tensor) -> None:
        from transformers import NoBadWordsLogitsProcessor

        words = [[2], [5, 1, 6], [9, 1, 7], [1, 4]]
        theirs = NoBadWordsLogitsProcessor(words, eos_token_id=EOS)(tokens, logits.clone())
        words_ids = tuple(tuple(word) for word in words)
        assert torch.equal(self.ours(tokens, logits, bad_words_token_ids=words_ids), theirs)

    def test_bias(self, tokens: torch.Tensor, logits: torch.Tensor) -> None:
        from transformers import SequenceBiasLogitsProcessor

        bias = {2: 1.5, 9: -30.0}
        theirs = SequenceBiasLogitsProcessor([[[t], b] for t, b in bias.items()])(
            tokens, logits.clone()
        )
        ours = self.ours(tokens, logits, logit_bias=tuple(bias.items()))
        torch.testing.assert_close(ours, theirs)

    def test_min_tokens(self, tokens: torch.Tensor, logits: torch.Tensor) -> None:
        from transformers import MinNewTokensLengthLogitsProcessor

        for minimum in (4, 5):
            processor = MinNewTokensLengthLogitsProcessor(3, minimum, EOS, device="cpu")
            theirs = processor(tokens, logits.clone())
            assert torch.equal(self.ours(tokens, logits, min_tokens=minimum), theirs)


@settings(max_examples=60, deadline=None)
@given(
    params=PARAMS,
    output=st.lists(TOKEN, max_size=6),
    draft=st.lists(TOKEN, min_size=1, max_size=5),
)
def test_behind_a_draft_edits_are_those_of_a_text_with_it(
    params: SamplingParams, output: list[int], draft: list[int]
) -> None:
    prompt = [1, 2, 3]
    batch = new_batch()
    add(batch, "a", prompt, output, params)
    batch.put_drafts(["a"], {"a": draft})
    count = len(draft) + 1
    rows = np.repeat(batch.rows(["a"]), count)
    logits = torch.randn((count, VOCAB), generator=torch.Generator().manual_seed(1))
    found = logits.clone()
    edits = LogitEdits.of(batch, rows, np.arange(count))
    if edits is not None:
        edits.apply(found)
    for place in range(count):
        text = [*output, *draft[:place]]
        expected = torch.tensor(naive(logits[place].tolist(), prompt, text, params))
        torch.testing.assert_close(found[place], expected)
