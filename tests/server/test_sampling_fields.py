"""How a body becomes SamplingParams: every field arrives, the model's defaults fill the rest."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ConfigError, CorruptModelError
from engine.frontend.sampling_defaults import SamplingDefaults, load_sampling_defaults
from engine.sampling_params import StructuredOutputsParams
from engine.server.protocol import ChatBody, CompletionBody, parse_body
from tests.server.fake_core import FakeCore
from tests.server.serving import serving

ASKED: dict[str, Any] = {
    "temperature": 0.3,
    "top_p": 0.8,
    "top_k": 9,
    "min_p": 0.1,
    "repetition_penalty": 1.2,
    "presence_penalty": -0.5,
    "frequency_penalty": 0.25,
    "seed": 11,
    "max_tokens": 21,
    "min_tokens": 2,
    "stop": ["END"],
    "stop_token_ids": [7],
    "ignore_eos": True,
    "include_stop_str_in_output": True,
    "skip_special_tokens": False,
    "logit_bias": {"5": -3.5},
    "allowed_token_ids": [5, 6],
    "bad_words": ["no"],
    "prompt_logprobs": 2,
    "structured_outputs": {"regex": "a+"},
}


@pytest.mark.parametrize("chat", [True, False])
def test_every_field_arrives_and_none_is_forgotten(chat: bool) -> None:
    body = {**ASKED, "prompt": "x", "messages": [{"role": "user", "content": "x"}]}
    body |= {"logprobs": True, "top_logprobs": 4} if chat else {"logprobs": 4}
    kind = ChatBody if chat else CompletionBody
    params = parse_body(kind, json.dumps(body).encode()).sampling_params({"top_p": 0.5})
    expected = {**ASKED, "stop": ("END",), "stop_token_ids": (7,), "logit_bias": ((5, -3.5),)}
    expected |= {"allowed_token_ids": (5, 6), "bad_words": ("no",), "logprobs": 4}
    expected |= {"n": 1, "bad_words_token_ids": ()}  # the tokenizer's part
    expected["structured_outputs"] = dataclasses.asdict(StructuredOutputsParams(regex="a+"))
    assert dataclasses.asdict(params) == expected


def test_defaults_fill_only_what_is_left_out() -> None:
    defaults = {"temperature": 0.6, "top_k": 20, "repetition_penalty": 1.1}
    body = parse_body(CompletionBody, b'{"prompt": "x", "temperature": 1.0, "top_k": null}')
    params = body.sampling_params(defaults)
    assert (params.temperature, params.top_k, params.repetition_penalty) == (1.0, 20, 1.1)


async def test_bad_words_are_tokenized_alone_and_behind_a_space(
    tiny_folder: Path, answer_ids: list[int]
) -> None:
    async with serving(tiny_folder, FakeCore(answer_ids), in_process=True) as served:
        body = {"prompt": "x", "bad_words": ["no", " ", "no"], "max_tokens": 1}
        assert (await served.http.post("/v1/completions", json=body)).status_code == 200
        (request,) = served.core.requests
        encoded = [
            served.llm.tokenizer.encode(text, add_special_tokens=False)
            for text in ("no", " no", " ")
        ]
        assert request.sampling_params.bad_words_token_ids == tuple(map(tuple, encoded))


async def test_samples_have_seeds_of_their_own(tiny_folder: Path, answer_ids: list[int]) -> None:
    async with serving(tiny_folder, FakeCore(answer_ids), in_process=True) as served:
        for _ in range(2):
            body = {"prompt": "x", "n": 4, "seed": 2**63 - 2, "max_tokens": 1}
            await served.http.post("/v1/completions", json=body)
        seeds = [request.sampling_params.seed for request in served.core.requests]
        assert len(set(seeds[:4])) == 4
        assert seeds[:4] == seeds[4:]
        assert seeds[0] == 2**63 - 2


def write(folder: Path, config: object) -> Path:
    (folder / "generation_config.json").write_text(json.dumps(config))
    return folder


def test_generation_config_gives_the_defaults(tmp_path: Path) -> None:
    assert load_sampling_defaults(tmp_path) == SamplingDefaults()
    config = {"temperature": 0.6, "top_k": 64.0, "top_p": 1.0, "min_p": None, "max_new_tokens": 9}
    defaults = load_sampling_defaults(write(tmp_path, config))
    assert defaults == SamplingDefaults({"temperature": 0.6, "top_k": 64}, max_tokens=9)
    assert isinstance(defaults.settings["top_k"], int)


def test_generation_config_may_be_left_out_or_come_from_elsewhere(tmp_path: Path) -> None:
    model, other = tmp_path / "model", tmp_path / "other"
    model.mkdir()
    other.mkdir()
    write(model, {"top_k": 3})
    assert load_sampling_defaults(model, "vllm") == SamplingDefaults()
    with pytest.raises(ConfigError, match="auto"):
        load_sampling_defaults(model, str(other))
    write(other, {"top_k": 5})
    assert load_sampling_defaults(model, str(other)).settings == {"top_k": 5}


@pytest.mark.parametrize(
    "config",
    [*({"temperature": wrong} for wrong in ("hot", -1, [1], 9)), {"max_new_tokens": 0}],
)
def test_a_damaged_generation_config_is_named(tmp_path: Path, config: object) -> None:
    with pytest.raises(CorruptModelError, match=r"generation_config\.json"):
        load_sampling_defaults(write(tmp_path, config))
