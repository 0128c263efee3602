"""Embeddings of the default model with the openai client, beside a chat on the same server."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openai
import pytest
from numpy.typing import NDArray

from tests.e2e.running_server import STOKER, Server, free_port, started, wait_for_gauge

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# The first two of each row say nearly the same, the third has nothing to do with them.
SENTENCES = [
    (
        "The cat is sleeping on the sofa.",
        "A kitten naps on the couch.",
        "The central bank raised interest rates by half a percent.",
    ),
    (
        "How do I install Python on my computer?",
        "What are the steps to set up Python on a laptop?",
        "The football match ended without a goal.",
    ),
    (
        "The doctor prescribed a new medicine for her headache.",
        "She got tablets from her physician against the pain in her head.",
        "Our train to the mountains leaves early in the morning.",
    ),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder, port = tmp_path_factory.mktemp("serve"), free_port()
    env = {"STOKER_STATE_DIR": str(folder / "state"), "XDG_RUNTIME_DIR": str(folder / "run")}
    command = [str(STOKER), "serve", "--no-tui", "--port", str(port)]
    command += ["--served-model-name", "embedder", "--max-model-len", "512"]
    command += ["--pooler-config", '{"pooling_type": "MEAN"}']
    with started(command, port, env=env) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def embed(client: openai.OpenAI, texts: list[str]) -> NDArray[np.float64]:
    answer = client.embeddings.create(model="embedder", input=texts)
    assert [entry.index for entry in answer.data] == list(range(len(texts)))
    return np.array([entry.embedding for entry in answer.data])


def test_similar_sentences_are_nearer_than_unrelated_ones(client: openai.OpenAI) -> None:
    vectors = embed(client, [text for row in SENTENCES for text in row])
    assert vectors.shape == (9, 576)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    nearness = vectors @ vectors.T
    for first in (0, 3, 6):
        assert nearness[first, first + 1] > nearness[first, first + 2]
        assert nearness[first, first + 1] == np.sort(nearness[first])[-2]  # the next after itself


def test_embeddings_beside_a_chat(server: Server, client: openai.OpenAI) -> None:
    def chat(_number: int) -> str:
        messages = [{"role": "user", "content": "What is the capital of France?"}]
        options = {"model": "embedder", "messages": messages, "max_tokens": 24, "temperature": 0}
        answer = client.chat.completions.create(**options)  # type: ignore[call-overload]
        return str(answer.choices[0].message.content)

    texts = [text for row in SENTENCES for text in row]
    vectors = embed(client, texts)
    with ThreadPoolExecutor(4) as pool:
        chats = pool.map(chat, range(2))
        again = list(pool.map(lambda _number: embed(client, texts), range(2)))
    for found in again:
        # Rounding in 16 bit depends on the company; the direction does not.
        assert (np.sum(found * vectors, axis=1) > 0.999).all()
    assert all("Paris" in text for text in chats)
    wait_for_gauge(server.url, "vllm:num_requests_running", 0)


def test_a_long_text_and_dimensions(client: openai.OpenAI) -> None:
    text = "All work and no play makes Jack a dull boy. " * 40
    whole = client.embeddings.create(model="embedder", input=text, encoding_format="float")
    short = client.embeddings.create(model="embedder", input=text, dimensions=64)
    cut = np.array(whole.data[0].embedding[:64])
    cut /= np.linalg.norm(cut)
    np.testing.assert_allclose(short.data[0].embedding, cut, atol=1e-3)
    assert 400 < whole.usage.prompt_tokens <= 512


def test_errors_reach_the_client(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum context length is 512 tokens"):
        client.embeddings.create(model="embedder", input="word " * 600)
    with pytest.raises(openai.BadRequestError, match="empty"):
        client.embeddings.create(model="embedder", input="")
    with pytest.raises(openai.NotFoundError, match="serves `embedder`"):
        client.embeddings.create(model="ada", input="a")
