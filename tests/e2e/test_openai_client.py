"""The openai client against the real engine: every process real, the model tiny and random."""

from __future__ import annotations

import http.client
import json
import math
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from engine.frontend.tokenizer import Tokenizer
from tests.e2e.running_server import (
    ENGINE,
    Server,
    free_port,
    gauge,
    started,
    tiny_server,
    wait_for_gauge,
)
from tests.tiny_model import VOCAB, write_tiny_llama

pytestmark = pytest.mark.timeout(900)

KEY = "sk-test-0123456789abcdef"
ABORTED = 'vllm:request_success_total{engine="0",finished_reason="abort"'
# Takes seconds, so that it still runs when a test has done something to it.
LONG: Any = {
    "model": "tiny",
    "prompt": "x",
    "max_tokens": 500,
    "n": 32,
    "extra_body": {"ignore_eos": True},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with tiny_server(tmp_path_factory.mktemp("model"), env={"STOKER_API_KEY": KEY}) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_folder(write_tiny_llama(tmp_path_factory.mktemp("tokenizer")))


def complete(client: openai.OpenAI, prompt: str, **options: object) -> str:
    answer = client.completions.create(
        model="tiny",
        prompt=prompt,
        **{"max_tokens": 16, "temperature": 0, **options},  # type: ignore[call-overload]
    )
    return str(answer.choices[0].text)


def test_streamed_and_whole_answers_are_equal(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    options = {"model": "tiny", "messages": messages, "max_tokens": 20, "temperature": 0}
    whole = client.chat.completions.create(**options)  # type: ignore[call-overload]
    stream = client.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    )  # type: ignore[call-overload]
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 20
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason == "length"


def test_the_same_seed_gives_the_same_text_whatever_else_runs(client: openai.OpenAI) -> None:
    def ask(number: int) -> str:
        return complete(client, "seeded", temperature=1.0, seed=number)

    alone = ask(7)
    with ThreadPoolExecutor(12) as pool:
        crowd = list(pool.map(ask, [7, 1, 2, 7, 3, 4, 5, 7, 6, 8, 9, 7]))
    assert [crowd[i] for i in (0, 3, 7, 11)] == [alone] * 4
    assert len(set(crowd)) > 3


def test_batching_does_not_change_greedy_text(client: openai.OpenAI) -> None:
    prompts = [f"prompt number {number} " * (1 + number % 5) for number in range(24)]
    alone = [complete(client, prompt) for prompt in prompts]
    with ThreadPoolExecutor(24) as pool:
        together = list(pool.map(lambda prompt: complete(client, prompt), prompts))
    assert together == alone


def test_stop_strings_end_the_text_before_them(client: openai.OpenAI) -> None:
    full = complete(client, "stop here", max_tokens=24)
    stop = full[5:8]
    answer = client.completions.create(
        model="tiny", prompt="stop here", max_tokens=24, temperature=0, stop=stop
    )
    assert answer.choices[0].text == full[: full.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_a_cached_prefix_is_reported(client: openai.OpenAI, server: Server) -> None:
    prompt = "a shared beginning of more than thirty-two tokens, said twice"
    hits = gauge(server.url, "vllm:prefix_cache_hits_total")
    complete(client, prompt)
    answer = client.completions.create(model="tiny", prompt=prompt, max_tokens=1)
    assert answer.usage
    details = answer.usage.prompt_tokens_details
    assert details
    assert details.cached_tokens == (len(prompt) - 1) // 16 * 16
    assert gauge(server.url, "vllm:prefix_cache_hits_total") - hits >= details.cached_tokens


def test_the_model_is_listed_and_found(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "stoker"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("large")


def test_refusals_have_openais_shape(client: openai.OpenAI, server: Server) -> None:
    with pytest.raises(openai.NotFoundError, match="nobody"):
        client.completions.create(model="nobody", prompt="x")
    with pytest.raises(openai.BadRequestError, match="512"):
        complete(client, "x" * 600)
    numbers: Any = [{"role": "user", "content": 3}]
    with pytest.raises(openai.BadRequestError) as mixed:
        client.chat.completions.create(model="tiny", messages=numbers)
    assert mixed.value.param == "messages.0.content"
    with pytest.raises(openai.BadRequestError, match="temperature"):
        complete(client, "x", temperature=3.0)
    stranger = openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()
    assert KEY not in server.text


def chosen(choice: Any) -> list[Any]:
    """The logprob entries of a chat answer."""
    assert choice.logprobs
    assert choice.logprobs.content
    return list(choice.logprobs.content)


def test_sampled_logprobs_equal_those_of_the_same_text_as_prompt(
    client: openai.OpenAI, server: Server, tokenizer: Tokenizer
) -> None:
    """Teacher forcing: what was sampled token by token is scored again in one prefill."""
    messages: Any = [{"role": "user", "content": "Hello"}]
    answer = client.chat.completions.create(
        model="tiny", messages=messages, max_tokens=20, seed=3, logprobs=True, top_logprobs=20,
        extra_body={"ignore_eos": True, "repetition_penalty": 1.3},
    )  # fmt: skip
    content = chosen(answer.choices[0])
    id_of = {tokenizer.token_bytes(token_id): token_id for token_id in range(VOCAB)}
    prompt = tokenizer.encode("<s>user: Hello</s><s>assistant: ", add_special_tokens=False)
    scored = client.completions.create(
        model="tiny", prompt=prompt + [id_of[bytes(item.bytes)] for item in content],
        max_tokens=0, echo=True, logprobs=20,
    ).choices[0].logprobs  # fmt: skip
    assert scored
    assert scored.token_logprobs
    tail = scored.token_logprobs[len(prompt) :]
    assert tail == pytest.approx([item.logprob for item in content], abs=1e-3)
    for item in content:
        values = [top.logprob for top in item.top_logprobs]
        assert len(values) == 20
        assert values == sorted(values, reverse=True)
        assert 0 < sum(map(math.exp, values)) < 1 + 1e-5


def test_streamed_logprobs_equal_whole_ones(client: openai.OpenAI) -> None:
    options: Any = {"model": "tiny", "prompt": "stream", "max_tokens": 12, "temperature": 0}
    options |= {"logprobs": 2, "echo": True, "stop": ["zzzz"]}
    whole = client.completions.create(**options).choices[0]
    chunks = list(client.completions.create(**options, stream=True))
    parts = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].logprobs]
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.text
    assert whole.logprobs
    for name in ("tokens", "token_logprobs", "text_offset"):
        joined = [value for part in parts for value in getattr(part, name)]
        expected = getattr(whole.logprobs, name)
        if name == "token_logprobs":
            assert joined[0] is expected[0] is None
            assert joined[1:] == pytest.approx(expected[1:], abs=1e-4)
        else:
            assert joined == expected


def test_prompt_logprobs_come_in_spite_of_a_cached_prefix(client: openai.OpenAI) -> None:
    prompt = "a prompt of more than thirty-two tokens, scored twice in a row"
    options: Any = {"model": "tiny", "prompt": prompt, "max_tokens": 1, "temperature": 0}
    first, second = (
        client.completions.create(**options, extra_body={"prompt_logprobs": 1}) for _ in range(2)
    )
    entries = first.choices[0].model_extra["prompt_logprobs"]
    assert len(entries) == len(prompt)
    assert entries[0] is None
    assert entries == second.choices[0].model_extra["prompt_logprobs"]
    assert second.usage.prompt_tokens_details.cached_tokens == 0
    assert first.choices[0].text == complete(client, prompt, max_tokens=1)


def test_samples_differ_and_come_again_with_their_seed(client: openai.OpenAI) -> None:
    def ask(seed: int) -> list[str]:
        answer = client.completions.create(
            model="tiny", prompt="samples", max_tokens=16, temperature=1, n=4, seed=seed
        )
        return [choice.text for choice in answer.choices]

    first = ask(1)
    assert len(set(first)) == 4
    assert ask(1) == first
    assert ask(100) != first


def test_edits_of_one_request_do_not_reach_another(
    client: openai.OpenAI, tokenizer: Tokenizer
) -> None:
    plain = complete(client, "edits", max_tokens=24)
    (letter,) = tokenizer.encode("q", add_special_tokens=False)
    (other,) = tokenizer.encode("z", add_special_tokens=False)
    bad_letter = next(char for char in plain if char.isascii() and char.isalnum())
    asks: list[dict[str, Any]] = [
        {"logit_bias": {str(letter): 100}},
        {"extra_body": {"allowed_token_ids": [letter, other]}},
        {"extra_body": {"bad_words": [bad_letter]}},
        {"frequency_penalty": 2.0, "presence_penalty": 2.0},
        {"extra_body": {"repetition_penalty": 1.5}},
        {},
    ]
    with ThreadPoolExecutor(12) as pool:
        answers = list(
            pool.map(lambda ask: complete(client, "edits", max_tokens=24, **ask), asks * 2)
        )
    assert answers[:6] == answers[6:]
    bias, allowed, bad, penalised, repeated, unchanged = answers[:6]
    assert unchanged == plain
    assert bias == "q" * 24
    assert set(allowed) <= {"q", "z"}
    assert bad_letter in plain
    assert bad_letter not in bad
    assert len({plain, penalised, repeated}) == 3


def test_refusals_of_sampling_fields_name_value_and_limit(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "x"}]
    with pytest.raises(openai.BadRequestError, match=r"\[0, 20\], got 21") as caught:
        client.chat.completions.create(
            model="tiny", messages=messages, logprobs=True, top_logprobs=21
        )
    assert caught.value.param == "top_logprobs"
    with pytest.raises(openai.BadRequestError, match=r"\[-2, 2\], got 3"):
        complete(client, "x", frequency_penalty=3)
    with pytest.raises(openai.BadRequestError, match=r"logit_bias: token id 258"):
        complete(client, "x", logit_bias={"258": 1})


def test_preemption_changes_no_penalised_text(tmp_path: Path) -> None:
    """16 long requests in a cache that holds a few of them give what each gives alone."""
    folder = write_tiny_llama(tmp_path / "model", seed=3)
    port = free_port()
    command = [*ENGINE, "serve", str(folder), "--port", str(port), "--dtype", "float32"]
    command += ["--served-model-name", "tiny", "--num-gpu-blocks-override", "40"]
    with (
        started(command, port) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client,
    ):

        def ask(number: int) -> str:
            extra = {"ignore_eos": True, "repetition_penalty": 1.2}
            return complete(
                client, f"request {number} ", max_tokens=150, frequency_penalty=0.3,
                temperature=0.0 if number % 2 else 0.8, seed=number, extra_body=extra,
            )  # fmt: skip

        alone = [ask(number) for number in range(16)]
        assert gauge(server.url, "vllm:num_preemptions_total") == 0
        with ThreadPoolExecutor(16) as pool:
            assert list(pool.map(ask, range(16))) == alone
        assert gauge(server.url, "vllm:num_preemptions_total") > 0


def test_the_models_own_defaults_are_used_and_told(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "model")
    text = '{"top_k": 1, "do_sample": true, "max_new_tokens": 9}'
    (folder / "generation_config.json").write_text(text)
    port = free_port()
    command = [*ENGINE, "serve", str(folder), "--port", str(port), "--dtype", "float32"]
    command += ["--served-model-name", "tiny", "--max-logprobs", "-1"]
    with (
        started(command, port) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client,
    ):
        greedy = complete(client, "defaults")
        assert complete(client, "defaults", temperature=2.0) == greedy
        override = {"extra_body": {"top_k": 0}, "seed": 1}
        assert complete(client, "defaults", temperature=2.0, **override) != greedy
        assert (
            "Default sampling parameters have been overridden by the model's "
            "`generation_config.json`: `{'top_k': 1, 'max_tokens': 9}`." in server.text
        )
        messages: Any = [{"role": "user", "content": "x"}]
        options: Any = {"model": "tiny", "messages": messages, "extra_body": {"ignore_eos": True}}
        answer = client.chat.completions.create(**options, logprobs=True, top_logprobs=VOCAB)
        assert answer.usage
        assert answer.usage.completion_tokens == 9
        tops = chosen(answer.choices[0])[0].top_logprobs
        assert math.fsum(math.exp(top.logprob) for top in tops) == pytest.approx(1, abs=1e-4)
        assert (
            client.chat.completions.create(**options, max_tokens=12).usage.completion_tokens == 12
        )


def test_a_client_that_goes_away_frees_its_blocks(client: openai.OpenAI, server: Server) -> None:
    aborted = gauge(server.url, ABORTED)
    stream = client.completions.create(**LONG, stream=True)
    next(iter(stream))
    stream.close()
    wait_for_gauge(server.url, ABORTED, aborted + 32)
    wait_for_gauge(server.url, "vllm:kv_cache_usage_perc", 0.0)


def test_a_client_that_waits_no_longer_frees_its_blocks(
    client: openai.OpenAI, server: Server
) -> None:
    aborted = gauge(server.url, ABORTED)
    asking = http.client.HTTPConnection("127.0.0.1", urlsplit(server.url).port)
    body = json.dumps({**LONG, **LONG["extra_body"]})
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    asking.request("POST", "/v1/completions", body, headers)
    wait_for_gauge(server.url, "vllm:num_requests_running", 32)
    asking.close()
    wait_for_gauge(server.url, ABORTED, aborted + 32)
    wait_for_gauge(server.url, "vllm:num_requests_running", 0)
    assert reset_prefix_cache(server) == (200, {"success": True})


def reset_prefix_cache(server: Server, key: str = KEY) -> tuple[int, Any]:
    request = urllib.request.Request(
        f"{server.url}/reset_prefix_cache",
        method="POST",
        headers={"Authorization": f"Bearer {key}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_reset_forgets_prefixes_but_not_those_in_use(client: openai.OpenAI, server: Server) -> None:
    prompt = "a beginning of more than thirty-two tokens, to be forgotten"

    def cached_tokens() -> int | None:
        answer = client.completions.create(model="tiny", prompt=prompt, max_tokens=1)
        assert answer.usage
        assert answer.usage.prompt_tokens_details
        return answer.usage.prompt_tokens_details.cached_tokens

    cached_tokens()
    assert cached_tokens() == 48
    assert reset_prefix_cache(server, key="wrong")[0] == 401
    with client.completions.create(**LONG, stream=True) as stream:
        next(iter(stream))
        status, body = reset_prefix_cache(server)
    assert (status, body["error"]["code"]) == (409, "cache_in_use")
    wait_for_gauge(server.url, "vllm:num_requests_running", 0)
    assert reset_prefix_cache(server)[0] == 200
    assert cached_tokens() == 0


def test_streamed_samples_equal_whole_ones(client: openai.OpenAI) -> None:
    options: Any = {"model": "tiny", "prompt": "n", "n": 3, "seed": 4, "max_tokens": 12}
    whole = client.completions.create(**options)
    texts, reasons = [""] * 3, [""] * 3
    for chunk in client.completions.create(**options, stream=True):
        (choice,) = chunk.choices
        texts[choice.index] += choice.text
        reasons[choice.index] = choice.finish_reason or ""
    assert texts == [choice.text for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert len(set(texts)) == 3


def test_a_stop_string_is_shown_when_asked_for(client: openai.OpenAI) -> None:
    letters = list(range(32, 58))  # A to Z
    options: Any = {"model": "tiny", "prompt": "stop", "max_tokens": 24, "temperature": 0}
    extra: dict[str, object] = {"allowed_token_ids": letters}
    full = client.completions.create(**options, extra_body=extra).choices[0].text
    stop = full[6:8]
    extra["include_stop_str_in_output"] = True
    whole = client.completions.create(**options, stop=stop, extra_body=extra).choices[0]
    assert whole.text == full[: full.index(stop) + 2]
    assert whole.model_extra
    assert (whole.finish_reason, whole.model_extra["stop_reason"]) == ("stop", stop)
    stream = client.completions.create(**options, stop=stop, extra_body=extra, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.text


def test_health_says_starting_until_the_core_is_up(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "model")
    port = free_port()
    command = [*ENGINE, "serve", str(folder), "--port", str(port)]
    seen: set[tuple[int, str]] = set()
    with started(command, port, wait=False) as server:
        done = threading.Event()
        while not done.is_set():
            try:
                with urllib.request.urlopen(f"{server.url}/health", timeout=30) as response:
                    seen.add((response.status, ""))
                    done.set()
            except urllib.error.HTTPError as error:
                with error:
                    seen.add((error.code, json.load(error).get("status", "")))
            except OSError:
                assert server.process.poll() is None, server.text
    assert seen == {(200, ""), (503, "starting")}
