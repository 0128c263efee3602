"""The openai client against the real engine: every process real, the model tiny and random."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from tests.e2e.running_server import ENGINE, Server, free_port, gauge, started, wait_for_gauge
from tests.tiny_model import write_tiny_llama

pytestmark = pytest.mark.timeout(300)

KEY = "sk-test-0123456789abcdef"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = write_tiny_llama(tmp_path_factory.mktemp("model"))
    port = free_port()
    command = [*ENGINE, "serve", str(folder), "--port", str(port), "--dtype", "float32"]
    command += ["--served-model-name", "tiny", "--kv-cache-memory-bytes", "8M"]
    with started(command, port, env={"STOKER_API_KEY": KEY}) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as made:
        yield made


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


def test_refusals_have_openais_shape(client: openai.OpenAI, server: Server) -> None:
    with pytest.raises(openai.NotFoundError, match="nobody"):
        client.completions.create(model="nobody", prompt="x")
    with pytest.raises(openai.BadRequestError, match="512"):
        complete(client, "x" * 600)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        complete(client, "x", temperature=3.0)
    stranger = openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()
    assert KEY not in server.text


def test_a_client_that_goes_away_frees_its_blocks(client: openai.OpenAI, server: Server) -> None:
    aborted = gauge(server.url, 'vllm:request_success_total{engine="0",finished_reason="abort"')
    stream = client.completions.create(
        model="tiny", prompt="x", max_tokens=500, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    wait_for_gauge(server.url, "vllm:kv_cache_usage_perc", 0.0)
    name = 'vllm:request_success_total{engine="0",finished_reason="abort"'
    wait_for_gauge(server.url, name, aborted + 1)


def test_health_says_starting_until_the_core_is_up(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "model")
    port = free_port()
    command = [*ENGINE, "serve", str(folder), "--port", str(port)]
    seen: set[tuple[int, str]] = set()
    with started(command, port, wait=False) as server:
        done = threading.Event()
        while not done.is_set():
            try:
                with urllib.request.urlopen(f"{server.url}/health", timeout=5) as response:
                    seen.add((response.status, ""))
                    done.set()
            except urllib.error.HTTPError as error:
                with error:
                    seen.add((error.code, json.load(error).get("status", "")))
            except OSError:
                assert server.process.poll() is None, server.text
    assert seen == {(200, ""), (503, "starting")}
