"""Structured output of the real default model through the openai client, under a tight KV cache.

The cache holds about a quarter of what the requests of a crowd grow to, so they are preempted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import jsonschema_rs
import openai
import pytest
from pydantic import BaseModel, Field

from tests.default_model import default_model_folder
from tests.e2e.running_server import ENGINE, Server, free_port, gauge, started, wait_for_gauge
from tests.random_schemas import random_schema

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MODEL = "smollm2"
NUM_SCHEMAS = 50
ASK: Any = [{"role": "user", "content": "Describe a shop as JSON."}]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    port = free_port()
    command = [*ENGINE, "serve", str(default_model_folder()), "--port", str(port)]
    command += ["--served-model-name", MODEL, "--max-model-len", "512"]
    command += ["--num-gpu-blocks-override", "34", "--kv-cache-memory-bytes", "64M"]
    with started(command, port) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def chat(client: openai.OpenAI, **options: Any) -> Any:
    return client.chat.completions.create(
        model=MODEL, messages=ASK, **{"max_tokens": 400, "temperature": 0, **options}
    )


def json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "shop", "schema": schema}}


def obey(client: openai.OpenAI, number: int) -> tuple[str, str]:
    """One answer to random schema `number`: its text and why it ended; odd ones are streamed."""
    schema = random_schema(number)
    options: dict[str, Any] = {"response_format": json_schema(schema), "seed": number}
    options["temperature"] = number % 3 / 2
    if number % 3 == 0:
        options["frequency_penalty"] = 0.5
    if number % 2:
        chunks = [chunk.choices[0] for chunk in chat(client, stream=True, **options)]
        return "".join(c.delta.content or "" for c in chunks), str(chunks[-1].finish_reason)
    choice = chat(client, logprobs=number % 4 == 0, **options).choices[0]
    return choice.message.content, choice.finish_reason


def test_json_schema_output_always_parses(client: openai.OpenAI, server: Server) -> None:
    with ThreadPoolExecutor(16) as pool:
        free = [pool.submit(chat, client, max_tokens=40) for _ in range(4)]
        answers = list(pool.map(lambda number: obey(client, number), range(NUM_SCHEMAS)))
    for number, (text, reason) in enumerate(answers):
        assert reason == "stop", (number, text)
        jsonschema_rs.validate(random_schema(number), json.loads(text))
    assert len({text for text, _ in answers}) > NUM_SCHEMAS / 2
    alone = chat(client, max_tokens=40).choices[0].message.content
    assert [future.result().choices[0].message.content for future in free] == [alone] * 4
    assert gauge(server.url, "vllm:num_preemptions_total") > 0
    wait_for_gauge(server.url, "vllm:kv_cache_usage_perc", 0)


def test_regex_choice_and_grammar_are_obeyed(client: openai.OpenAI) -> None:
    regex = r"(0x[0-9a-f]{4}|[A-Z]{2}[0-9]{3})"
    choices = ['naïve "quoted"', "no", "no, thanks", "日本🗼"]
    grammar = 'root ::= "(" root ")" root | "x"'

    def ask(seed: int, **structure: Any) -> str:
        answer = chat(
            client, seed=seed, temperature=1.0, extra_body={"structured_outputs": structure}
        )
        assert answer.choices[0].finish_reason == "stop"
        return str(answer.choices[0].message.content)

    for seed in range(4):
        assert re.fullmatch(regex, ask(seed, regex=regex))
        assert ask(seed, choice=choices) in choices
        text = ask(seed, grammar=grammar)
        while "(x)x" in text:
            text = text.replace("(x)x", "x")
        assert text == "x"
        assert isinstance(json.loads(ask(seed, json={"type": "boolean"})), bool)


def test_json_object_and_samples(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt='A short JSON object: ', max_tokens=300, n=4, temperature=0.7,
        extra_body={"response_format": {"type": "json_object"}},
    )  # fmt: skip
    complete = [choice.text for choice in answer.choices if choice.finish_reason == "stop"]
    assert all(isinstance(json.loads(text), dict) for text in complete)
    assert all(choice.text.startswith("{") for choice in answer.choices)
    assert complete


class Shop(BaseModel):
    name: str = Field(max_length=12)
    kind: Literal["bakery", "bank"]
    employees: int = Field(ge=1, le=50)


def test_the_clients_own_parser_reads_it(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=ASK, max_tokens=200, response_format=Shop
    )
    assert isinstance(answer.choices[0].message.parsed, Shop)


def test_a_cut_answer_says_length(client: openai.OpenAI) -> None:
    choice = chat(client, max_tokens=5, response_format={"type": "json_object"}).choices[0]
    assert choice.finish_reason == "length"
    assert choice.message.content.startswith("{")


def test_the_end_comes_although_eos_is_ignored(client: openai.OpenAI) -> None:
    for extra in ({"ignore_eos": True}, {"min_tokens": 50}):
        options = {"guided_choice": ["yes", "no"], **extra}
        choice = chat(client, extra_body=options).choices[0]
        assert choice.finish_reason == "stop"
        assert choice.message.content in ("yes", "no")
