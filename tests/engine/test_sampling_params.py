from __future__ import annotations

import math
from typing import Any

import pytest

from engine.errors import RequestError
from engine.sampling_params import SamplingParams


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": -0.1},
        {"temperature": 2.1},
        {"temperature": math.nan},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"top_k": -2},
        {"min_p": 1.1},
        {"max_tokens": 0},
        {"min_tokens": 9, "max_tokens": 5},
        {"seed": 2**63},
        {"stop": ("a", "b", "c", "d", "e")},
        {"stop": ("",)},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": math.inf},
        {"presence_penalty": 2.01},
        {"frequency_penalty": math.nan},
        {"logit_bias": ((3, -100.5),)},
        {"bad_words": ("",)},
        {"bad_words": ("x",) * 129},
        {"logprobs": -1},
        {"n": 0},
        {"n": 2, "temperature": 0.0},
        {"prompt_logprobs": -1},
    ],
)
def test_values_out_of_range_name_the_field(changes: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**changes).validate()
    assert caught.value.param == next(iter(changes))


def test_samples_have_seeds_of_their_own_within_64_bits() -> None:
    params = SamplingParams(n=3, seed=2**63 - 1)
    seeds = [params.for_sample(index).seed for index in range(3)]
    assert seeds == [2**63 - 1, -(2**63), -(2**63) + 1]
    assert SamplingParams(n=3).for_sample(2).seed is None


def test_limits_are_allowed() -> None:
    params = SamplingParams(temperature=2.0, top_p=1.0, top_k=-1, min_p=1.0, max_tokens=1)
    assert params.validate() is params
    assert not params.is_greedy
    assert SamplingParams(temperature=0.0).is_greedy
