"""/v1/embeddings over a FakeCore: forms of input, forms of the answer, refusals, metrics."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import math
import struct
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import openai
import pytest

from engine.config import TaskConfig
from engine.model_files.sentence_files import SentenceFiles
from engine.pooling_params import PoolingParams
from engine.server.routes.embeddings import MAX_INPUTS
from tests.server.fake_core import HIDDEN_SIZE, READY, FakeCore, fake_vector
from tests.server.serving import MODEL, Served, serving
from tests.tiny_model import VOCAB
from tests.waiting import until


@pytest.fixture
async def served(tiny_folder: Path) -> AsyncGenerator[Served, None]:
    async with serving(tiny_folder, FakeCore([65]), in_process=True) as served:
        yield served


async def ask(served: Served, **body: Any) -> Any:
    response = await served.http.post("/v1/embeddings", json={"model": MODEL, **body})
    assert response.status_code == 200, response.text
    return response.json()


async def refused(served: Served, status: int, **body: Any) -> dict[str, Any]:
    response = await served.http.post("/v1/embeddings", json=body)
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


@pytest.mark.parametrize("given", ["ab", ["ab", "c"], [1, 2, 3], [[1], [2, 3]]])
async def test_forms_of_an_input(served: Served, given: Any) -> None:
    def as_ids(entry: str | list[int]) -> list[int]:
        if isinstance(entry, str):
            return served.llm.tokenizer.encode(entry, add_special_tokens=True)
        return entry

    is_one = isinstance(given, str) or isinstance(given[0], int)
    expected = [as_ids(entry) for entry in ([given] if is_one else given)]
    answer = await ask(served, input=given, user="somebody")
    assert (answer["object"], answer["model"]) == ("list", MODEL)
    assert answer["id"].startswith("embd-")
    for index, (entry, token_ids) in enumerate(zip(answer["data"], expected, strict=True)):
        assert (entry["index"], entry["object"]) == (index, "embedding")
        assert entry["embedding"] == pytest.approx(fake_vector(token_ids))
    count = sum(map(len, expected))
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] == count
    assert [request.prompt_token_ids for request in served.core.requests] == expected
    assert {request.pooling for request in served.core.requests} == {PoolingParams()}


async def test_many_inputs_keep_their_order(served: Served) -> None:
    inputs = [[n % VOCAB, (3 * n) % VOCAB] for n in range(500)]
    answer = await ask(served, input=inputs)
    vectors = [entry["embedding"] for entry in answer["data"]]
    assert vectors == [pytest.approx(fake_vector(entry)) for entry in inputs]


async def test_base64_holds_the_same_numbers(served: Served) -> None:
    plain = await ask(served, input="ab", encoding_format="float")
    packed = await ask(served, input="ab", encoding_format="base64")
    data = base64.b64decode(packed["data"][0]["embedding"])
    assert list(struct.unpack(f"<{HIDDEN_SIZE}f", data)) == plain["data"][0]["embedding"]


async def test_the_openai_client_decodes_what_it_asks_for(tiny_folder: Path) -> None:
    async with serving(tiny_folder, FakeCore([65])) as real:
        answer = await real.openai.embeddings.create(model=MODEL, input=["ab", "cd"])
        ids = [request.prompt_token_ids for request in real.core.requests]
    assert [entry.embedding for entry in answer.data] == [
        pytest.approx(fake_vector(token_ids), abs=1e-6) for token_ids in ids
    ]
    assert answer.usage.prompt_tokens == 4


@pytest.mark.parametrize("encoding", ["float", "base64"])
async def test_dimensions_cut_and_normalise_again(served: Served, encoding: str) -> None:
    whole = (await ask(served, input=[5, 6]))["data"][0]["embedding"]
    short = await ask(served, input=[5, 6], dimensions=3, encoding_format=encoding)
    vector = short["data"][0]["embedding"]
    if encoding == "base64":
        vector = struct.unpack("<3f", base64.b64decode(vector))
    norm = math.hypot(*whole[:3])
    assert vector == pytest.approx([value / norm for value in whole[:3]], abs=1e-6)
    assert math.hypot(*vector) == pytest.approx(1)


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"input": ""}, "input", "empty"),
        ({"input": []}, "input", f"1 to {MAX_INPUTS} entries, got 0"),
        ({"input": ["a", ""]}, "input.1", "empty"),
        ({"input": [[1], []]}, "input.1", "empty"),
        ({"input": [VOCAB]}, "input", "out of vocabulary"),
        ({"input": [[1], [-1]]}, "input", "valid"),
        ({"input": "a" * 513}, "input", "maximum context length is 512 tokens"),
        ({"input": ["a", "b" * 600]}, "input.1", "has 600 tokens"),
        ({"input": [[1]] * (MAX_INPUTS + 1)}, "input", f"got {MAX_INPUTS + 1}"),
        ({"input": 3}, "input", "valid"),
        ({}, "input", "required"),
        ({"input": "a", "dimensions": 0}, "dimensions", f"[1, {HIDDEN_SIZE}]"),
        ({"input": "a", "dimensions": HIDDEN_SIZE + 1}, "dimensions", f"[1, {HIDDEN_SIZE}]"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "'float' or 'base64'"),
        ({"input": "a", "truncate_prompt_tokens": 513}, "truncate_prompt_tokens", "512"),
        ({"input": "a", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "-1"),
        ({"input": "a", "embed_dtype": "float16"}, "embed_dtype", "float32"),
        ({"input": "a", "normalize": False}, "normalize", "True"),
    ],
)
async def test_what_is_refused(
    served: Served, body: dict[str, Any], param: str, words: str
) -> None:
    error = await refused(served, 400, **body)
    assert error["type"] == "BadRequestError"
    assert error["param"] == param
    assert words in error["message"]
    assert served.core.requests == []


async def test_too_long_has_openais_code_and_the_whole_context_may_be_filled(
    served: Served,
) -> None:
    limit = READY.max_model_len
    error = await refused(served, 400, input=[1] * (limit + 1))
    assert error["code"] == "context_length_exceeded"
    assert (await ask(served, input=[1] * limit))["usage"]["prompt_tokens"] == limit


async def test_another_model_is_not_found(served: Served) -> None:
    error = await refused(served, 404, input="a", model="ada")
    assert (error["code"], error["param"]) == ("model_not_found", "model")


async def test_a_key_is_needed_as_elsewhere(tiny_folder: Path) -> None:
    async with serving(tiny_folder, FakeCore([1]), api_key="s3cret", in_process=True) as served:
        assert (await served.http.post("/v1/embeddings", json={"input": "a"})).status_code == 401


async def test_pooling_type_and_tasks_come_from_the_flags(served: Served) -> None:
    mean = PoolingParams(pooling_type="MEAN")
    tasks = TaskConfig(can_generate=False, pooling=mean)
    served.state.become_ready(dataclasses.replace(served.services, tasks=tasks))
    await ask(served, input="a")
    assert [request.pooling for request in served.core.requests] == [mean]
    for path, body in (
        ("completions", {"prompt": "a"}),
        ("chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ):
        response = await served.http.post(f"/v1/{path}", json=body)
        assert response.status_code == 404
        assert "--runner pooling" in response.json()["error"]["message"]


async def test_a_model_without_a_head_says_so(served: Served) -> None:
    tasks = TaskConfig(can_generate=False, has_text_model=False)
    served.state.become_ready(dataclasses.replace(served.services, tasks=tasks))
    response = await served.http.post("/v1/completions", json={"prompt": "a"})
    assert response.status_code == 404
    assert "no head for text" in response.json()["error"]["message"]


def with_files(served: Served, **files: Any) -> None:
    sentence = SentenceFiles(**files)
    served.state.become_ready(dataclasses.replace(served.services, sentence=sentence))


async def test_prompts_are_put_before_texts_by_name(served: Served) -> None:
    prompts = {"query": "Q: ", "document": ""}
    with_files(served, prompts=prompts, default_prompt="query")
    for name, whole in (("query", "Q: ab"), ("document", "ab"), (None, "Q: ab")):
        answer = await ask(served, input=["ab", "c"], prompt_name=name)
        ids = served.llm.tokenizer.encode(whole, add_special_tokens=True)
        assert served.core.requests[-2].prompt_token_ids == ids
        assert answer["usage"]["prompt_tokens"] == 2 * len(ids) - 1
    await ask(served, input=[5, 6])
    assert served.core.requests[-1].prompt_token_ids == [5, 6]
    error = await refused(served, 400, input="a", prompt_name="passage")
    assert error["param"] == "prompt_name"
    assert (
        "'passage' is no prompt of this model: those of this model are query, document"
        in (error["message"])
    )


async def test_a_model_without_prompts_knows_no_name(served: Served) -> None:
    error = await refused(served, 400, input="a", prompt_name="query")
    assert "it has none" in error["message"]


async def test_tokens_of_a_prompt_may_be_left_out_of_the_pooling(served: Served) -> None:
    with_files(served, prompts={"q": "ABC"}, pools_prompt=False, lowers_case=True)
    await ask(served, input="De", prompt_name="q")
    (request,) = served.core.requests
    assert request.prompt_token_ids == served.llm.tokenizer.encode("abcde", add_special_tokens=True)
    assert request.pooling == PoolingParams(num_left_out=3)


async def test_embeddings_can_be_turned_off(served: Served) -> None:
    tasks = TaskConfig(can_embed=False)
    served.state.become_ready(dataclasses.replace(served.services, tasks=tasks))
    error = await refused(served, 404, input="a")
    assert "--convert none" in error["message"]


async def test_metrics_count_a_vector_as_a_stop_without_tokens(served: Served) -> None:
    await ask(served, input=["abc", "de"])
    text = (await served.http.get("/metrics")).text

    def value(name: str) -> float:
        (line,) = (line for line in text.splitlines() if line.startswith(name))
        return float(line.rsplit(" ", 1)[1])

    labels = '{engine="0",'
    assert value(f'vllm:request_success_total{labels}finished_reason="stop"') == 2
    assert value(f"vllm:prompt_tokens_total{labels}") == 5
    assert value(f"vllm:generation_tokens_total{labels}") == 0
    assert value(f"vllm:time_to_first_token_seconds_count{labels}") == 0
    assert value(f"vllm:e2e_request_latency_seconds_count{labels}") == 2
    assert value(f"vllm:request_params_max_tokens_count{labels}") == 0
    assert 0 <= value(f"vllm:request_inference_time_seconds_sum{labels}") < 600  # no time of day
    assert value(f"vllm:num_requests_running{labels}") == 0


async def test_a_dead_engine_is_told_at_once(tiny_folder: Path) -> None:
    async with serving(tiny_folder, FakeCore([1])) as served:
        served.core.is_paused = True
        asked = served.openai.embeddings.create(model=MODEL, input=["a", "b"])
        pending = asyncio.create_task(asked)
        await until(lambda: served.core.num_running == 2)
        served.core.die()
        with pytest.raises(openai.InternalServerError) as caught:
            await pending
        assert caught.value.status_code == 503


async def test_a_client_that_goes_away_aborts_every_input(tiny_folder: Path) -> None:
    async with serving(tiny_folder, FakeCore([1])) as served:
        served.core.is_paused = True
        pending = asyncio.create_task(
            served.openai.embeddings.create(model=MODEL, input=["a", "b"])
        )
        await until(lambda: served.core.num_running == 2)
        pending.cancel()
        await until(lambda: len(served.core.aborted) == 2)
