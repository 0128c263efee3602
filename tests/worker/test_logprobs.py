"""Log probabilities of a running engine against those of float32, with every choice of kernels.

The float32 ones are transformers', or with quantized weights those of the plain-torch twin.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.messages import TokenLogprobs
from engine.sampling_params import SamplingParams
from engine.worker.uniproc_executor import UniProcExecutor
from tests.kernels.native_models import reference_model, save_rounded
from tests.kernels.paged_sequences import PagedSequences
from tests.worker.driver import Driver, engine_config
from tests.worker.kernel_choices import FLOAT32, KernelChoice, exact_only

# How far rounding takes log probabilities from those of float32.
TOLERANCES = {
    "reference-float32": 1e-4,
    "reference-bfloat16": 0.1,
    "reference-int8": 0.25,
    "native-bfloat16": 0.1,
    "native-int8": 0.25,
    "native-int4": 0.4,
}
PROMPT = [17, 5, 120, 88, 3, 42, 42, 9, 150, 61, 7, 7, 7, 33, 90, 2, 11, 64, 180, 21]


Reference = Callable[[list[int]], torch.Tensor]
"""[len(tokens), vocabulary]; row i is what stands behind token i."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("logprobs")
    return folder, save_rounded(folder)


@pytest.fixture
def driver(tiny: tuple[Path, Any], choice: KernelChoice) -> Driver:
    executor = UniProcExecutor(engine_config(tiny[0], max_model_len=256, **choice.flags))
    executor.load_model()
    executor.initialize_kv_cache(200)
    return Driver(executor, 16)


@pytest.fixture
def reference(tiny: tuple[Path, Any], choice: KernelChoice) -> Reference:
    folder, oracle = tiny

    def rows(tokens: list[int]) -> torch.Tensor:
        if choice.quantization == "none":
            with torch.inference_mode():
                logits = oracle(torch.tensor([tokens])).logits[0]
        else:
            twin = reference_model(folder, quantization=choice.quantization)
            (logits,) = PagedSequences(twin, [tokens], 16).run([[len(tokens)]])
        return torch.log_softmax(logits, -1)

    return rows


def check(
    entry: TokenLogprobs, row: torch.Tensor, token: int, num_top: int, choice: KernelChoice
) -> None:
    tolerance = TOLERANCES[str(choice)]
    assert entry.token_ids[0] == token
    assert len(entry.token_ids) == 1 + num_top
    assert entry.logprobs == pytest.approx(row[entry.token_ids].tolist(), abs=tolerance)
    assert entry.logprobs[1:] == pytest.approx(row.topk(num_top).values.tolist(), abs=tolerance)

    def rank(margin: float) -> int:
        return int((row > row[token] + margin).sum()) + 1

    assert rank(2 * tolerance) <= entry.rank <= rank(-2 * tolerance)


def test_sampled_tokens_have_raw_logprobs_whatever_changes_the_logits(
    driver: Driver, reference: Reference, choice: KernelChoice
) -> None:
    asked = {
        "greedy": SamplingParams(temperature=0.0, logprobs=3),
        "random": SamplingParams(temperature=0.6, top_p=0.8, seed=1, logprobs=5),
        "edited": SamplingParams(
            temperature=0.0, repetition_penalty=1.9, logit_bias=((7, -50.0),), logprobs=0
        ),
        "none": SamplingParams(temperature=0.0),
    }
    for number, (name, params) in enumerate(asked.items()):
        driver.add(name, PROMPT[number:], params)
    tokens: dict[str, list[int]] = {name: [] for name in asked}
    entries: dict[str, list[TokenLogprobs]] = {name: [] for name in asked}
    for _ in range(6):
        output = driver.step({name: driver.remaining(name) for name in asked})
        for name, sampled in zip(output.req_ids, output.sampled_token_ids, strict=True):
            tokens[name] += sampled
            entries[name] += output.logprobs.get(name, [])
    assert entries.pop("none") == []
    for number, (name, found) in enumerate(entries.items()):
        prompt, num_top = PROMPT[number:], asked[name].logprobs
        rows = reference(prompt + tokens[name])[len(prompt) - 1 :]
        assert num_top is not None
        assert len(found) == 6
        for entry, row, token in zip(found, rows, tokens[name], strict=False):
            check(entry, row, token, num_top, choice)


def prompt_entries(driver: Driver, name: str, chunks: list[int]) -> list[TokenLogprobs]:
    params = SamplingParams(temperature=0.0, prompt_logprobs=2)
    driver.add(name, PROMPT, params)
    driver.add(f"{name}-other", PROMPT[::-1], SamplingParams(temperature=0.0))
    for count in chunks:
        output = driver.step({f"{name}-other": 3, name: count})
        if sum(chunks) > count:
            assert not output.prompt_logprobs or count == chunks[-1]
    assert set(output.prompt_logprobs) == {name}
    later = driver.step({name: 1})
    assert later.prompt_logprobs == {}
    driver.finish(name)
    driver.finish(f"{name}-other")
    return list(output.prompt_logprobs[name])


def test_prompt_logprobs_are_those_of_float32_in_any_chunks(
    driver: Driver, reference: Reference, choice: KernelChoice
) -> None:
    driver.add("alone", PROMPT, SamplingParams(temperature=0.0, prompt_logprobs=2))
    step = driver.step({"alone": len(PROMPT)})
    whole = step.prompt_logprobs["alone"]
    rows = reference(PROMPT)
    ((first,),) = step.sampled_token_ids
    assert rows[-1, first] >= rows[-1].max() - 2 * TOLERANCES[str(choice)]
    assert len(whole) == len(PROMPT) - 1
    for entry, row, token in zip(whole, rows, PROMPT[1:], strict=False):
        check(entry, row, token, 2, choice)
    for name, chunks in (
        ("whole", [20]),
        ("halves", [10, 10]),
        ("odd", [1, 13, 5, 1]),
        ("tail", [19, 1]),
    ):
        parts = prompt_entries(driver, name, chunks)
        if not choice.tie:
            assert [entry.token_ids for entry in parts] == [entry.token_ids for entry in whole]
            assert [entry.rank for entry in parts] == [entry.rank for entry in whole]
        for one, other in zip(parts, whole, strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=choice.tie or 1e-4)


def test_a_preempted_prompt_starts_again_and_a_finished_one_is_not_told_twice(
    driver: Driver,
) -> None:
    driver.add("a", PROMPT, SamplingParams(temperature=0.0, prompt_logprobs=1))
    driver.step({"a": 8})
    driver.preempt("a")
    driver.step({"a": 12})
    first = driver.step({"a": len(PROMPT) - 12})
    assert len(first.prompt_logprobs["a"]) == len(PROMPT) - 1
    driver.preempt("a")
    again = driver.step({"a": driver.remaining("a")})
    assert again.prompt_logprobs == {}
    assert again.sampled_token_ids != [[]]


def test_a_prompt_of_one_token_has_no_logprobs(driver: Driver) -> None:
    driver.add("a", [5], SamplingParams(temperature=0.0, prompt_logprobs=1))
    found = driver.step({"a": 1}).prompt_logprobs
    assert {name: list(entries) for name, entries in found.items()} == {"a": []}


@exact_only
@pytest.mark.parametrize(
    "changes",
    [
        {"repetition_penalty": 1.3},
        {"frequency_penalty": 0.8, "presence_penalty": 0.5},
        {"temperature": 1.0, "seed": 4, "repetition_penalty": 1.2},
        {"bad_words_token_ids": ((5,), (7, 7))},
    ],
)
def test_preemption_changes_nothing_for_requests_with_edits(
    driver: Driver, changes: dict[str, Any]
) -> None:
    params = SamplingParams(**{"temperature": 0.0, **changes})
    driver.add("plain", PROMPT, params)
    (expected,) = driver.generate(["plain"], 30)
    driver.add("victim", PROMPT, params)
    for _ in range(3):
        driver.step({"victim": driver.remaining("victim")})
        for _ in range(5):
            driver.step({"victim": 1})
        driver.preempt("victim")
    assert driver.generate(["victim"], 30, chunk=7) == [expected]


@pytest.mark.parametrize("choice", [FLOAT32], indirect=True, ids=str)
def test_greedy_with_penalty_equals_generate(driver: Driver, tiny: tuple[Path, Any]) -> None:
    model = tiny[1]
    model.generation_config.eos_token_id = None
    expected = model.generate(
        torch.tensor([PROMPT]),
        attention_mask=torch.ones(1, len(PROMPT), dtype=torch.long),
        max_new_tokens=40,
        do_sample=False,
        repetition_penalty=1.3,
        bad_words_ids=[[7], [42, 9]],
        pad_token_id=0,
    )[0, len(PROMPT) :].tolist()
    params = SamplingParams(
        temperature=0.0, repetition_penalty=1.3, bad_words_token_ids=((7,), (42, 9))
    )
    driver.add("ours", PROMPT, params)
    assert driver.generate(["ours"], 40) == [expected]
