"""The engine over HTTP on Triton's kernels, which this CPU interprets."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

from engine.kernels.kernel_set import ModelStep
from engine.machine.ports import free_port
from tests.e2e.running_server import ENGINE, started
from tests.kernels.native_models import reference_model
from tests.kernels.paged_sequences import PagedSequences
from tests.tiny_model import write_tiny_llama

PROMPTS = [[72, 105, 33], [84, 104, 101, 32, 99, 97, 116, 32, 115, 97, 116]]
NUM_TOKENS = 8


def continued(model: ModelStep, prompt: list[int]) -> list[int]:
    """Greedy tokens, each from a whole new pass over everything before it."""
    tokens = list(prompt)
    for _ in range(NUM_TOKENS):
        (logits,) = PagedSequences(model, [tokens], 16).run([[len(tokens)]])
        tokens.append(int(logits[-1].argmax()))
    return tokens[len(prompt) :]


def completed(url: str, prompts: list[list[int]], **settings: float) -> list[list[int]]:
    """Token ids of the completions of all prompts, asked for in one request."""
    body = {
        "model": "tiny",
        "prompt": prompts,
        "max_tokens": NUM_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        **settings,
    }
    request = urllib.request.Request(
        f"{url}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=240) as answer:
        return [choice["token_ids"] for choice in json.load(answer)["choices"]]


def test_greedy_tokens_are_those_of_plain_torch(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "tiny")
    port = free_port()
    command = [*ENGINE, "serve", str(folder), "--served-model-name", "tiny", "--port", str(port)]
    flags = ["--kernels", "triton", "--dtype", "float32", "--max-model-len", "64"]
    with started([*command, *flags], port) as server:
        found = completed(server.url, PROMPTS)
        drawn = [
            completed(server.url, PROMPTS[:1], temperature=2.0, top_k=40, top_p=0.95, seed=seed)
            for seed in (1, 1, 2)
        ]
        text = server.text
    model = reference_model(folder)
    assert found == [continued(model, prompt) for prompt in PROMPTS]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len({tuple(tokens) for tokens in found}) == len(PROMPTS)
    assert "Using TRITON attention backend out of potential backends: ['TRITON'" in text
    assert "Triton kernels run in Triton's interpreter on this CPU" in text
