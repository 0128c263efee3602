from __future__ import annotations

import pytest

from engine.errors import RequestError
from engine.frontend.input_processor import InputProcessor
from engine.messages import EngineCoreRequest
from engine.sampling_params import SamplingParams

LIMITS = InputProcessor(vocab_size=100, max_model_len=16, eos_token_ids=(2, 2, 7))


def _process(prompt: list[int], params: SamplingParams | None = None) -> EngineCoreRequest:
    return LIMITS.process("r", prompt, params or SamplingParams(), arrival_time=1.0)


def test_max_tokens_becomes_the_rest_of_the_context() -> None:
    request = _process([1] * 10)
    assert request.sampling_params.max_tokens == 6
    assert request.eos_token_ids == (2, 7)
    assert _process([1] * 15).sampling_params.max_tokens == 1


def test_asked_values_are_kept() -> None:
    request = _process([1], SamplingParams(max_tokens=3, ignore_eos=True, top_k=5))
    assert request.sampling_params.max_tokens == 3
    assert request.sampling_params.top_k == 5
    assert request.eos_token_ids == ()


def test_the_models_own_limit_is_cut_to_the_room_and_gives_way_to_an_asked_one() -> None:
    limits = InputProcessor(
        vocab_size=100, max_model_len=16, eos_token_ids=(), default_max_tokens=5
    )

    def max_tokens(prompt: int, asked: int | None = None) -> int | None:
        params = SamplingParams(max_tokens=asked)
        request = limits.process("r", [1] * prompt, params, arrival_time=1.0)
        return request.sampling_params.max_tokens

    assert max_tokens(4) == 5
    assert max_tokens(13) == 3
    assert max_tokens(4, asked=9) == 9


@pytest.mark.parametrize(
    ("prompt", "asked", "default", "left"),
    [
        (10, None, None, None),
        (10, 9, None, 6),
        (16, None, None, 8),
        (40, None, 3, 3),
        (40, 5, 3, 5),
        (40, 9, None, 8),
    ],
)
def test_a_limit_is_lowered_to_what_the_context_has_room_for(
    prompt: int, asked: int | None, default: int | None, left: int | None
) -> None:
    limits = InputProcessor(
        vocab_size=100, max_model_len=16, eos_token_ids=(), default_max_tokens=default
    )
    assert limits.within_context(SamplingParams(max_tokens=asked), prompt).max_tokens == left


@pytest.mark.parametrize(
    ("limit", "field", "asked", "message"),
    [
        (20, "logprobs", 21, r"top_logprobs must be in \[0, 20\], got 21"),
        (5, "prompt_logprobs", 6, r"prompt_logprobs must be in \[0, 5\], got 6"),
        (-1, "logprobs", 101, r"top_logprobs must be in \[0, 100\], got 101"),
    ],
)
def test_logprobs_up_to_the_servers_limit(limit: int, field: str, asked: int, message: str) -> None:
    limits = InputProcessor(vocab_size=100, max_model_len=16, eos_token_ids=(), max_logprobs=limit)

    def ask(number: int) -> EngineCoreRequest:
        params = SamplingParams(**{field: number})  # type: ignore[arg-type]
        return limits.process("r", [1], params, arrival_time=1.0, logprobs_param="top_logprobs")

    assert getattr(ask(asked - 1).sampling_params, field) == asked - 1
    with pytest.raises(RequestError, match=message):
        ask(asked)


def test_top_k_above_the_vocabulary_is_the_whole_vocabulary() -> None:
    assert _process([1], SamplingParams(top_k=2**31 - 1)).sampling_params.top_k == 100
    assert _process([1], SamplingParams(top_k=-1)).sampling_params.top_k == -1


@pytest.mark.parametrize(
    ("prompt", "params", "param", "words"),
    [
        ([], {}, "prompt", ["empty"]),
        ([1] * 16, {}, "prompt", ["16 tokens", "16 input tokens", "15 tokens or fewer"]),
        ([1, 100], {}, "prompt", ["100", "0 to 99"]),
        ([1, -1], {}, "prompt", ["-1"]),
        ([1] * 10, {"max_tokens": 7}, "max_tokens", ["7", "16", "10", "at most 6"]),
        ([1] * 10, {"min_tokens": 7}, "min_tokens", ["7", "max_tokens=6"]),
        ([1], {"stop_token_ids": (1, 100)}, "stop_token_ids", ["100"]),
    ],
)
def test_refusals_name_field_value_and_limit(
    prompt: list[int], params: dict[str, int], param: str, words: list[str]
) -> None:
    with pytest.raises(RequestError) as caught:
        _process(prompt, SamplingParams(**params))  # type: ignore[arg-type]
    assert caught.value.param == param
    assert all(word in str(caught.value) for word in words), caught.value
