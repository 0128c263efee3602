"""--kv-cache-dtype fp8 on the default model: twice the tokens, nearly the same probabilities.

On both kernel sets, which agree on real text.
"""

from __future__ import annotations

import dataclasses

import pytest
from tokenizers import Tokenizer

from engine.core.engine_core import EngineCore
from engine.messages import EngineCoreRequest
from engine.sampling_params import SamplingParams
from tests.benchmarks.bench_kernel_accuracy import compare, forced_logits, loaded_step
from tests.default_model import default_model_folder
from tests.worker.driver import engine_config

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("native_threads"),
]

TEXTS = (
    "The Roman Empire was one of the largest empires of the ancient world. At its height it "
    "reached from Britain in the north to Egypt in the south, and its roads, laws and language "
    "shaped the history of Europe for many centuries after its fall in the west.",
    "Photosynthesis is the process by which plants turn light, water and carbon dioxide into sugar "
    "and oxygen. It takes place in the chloroplasts of the leaves, where a green pigment called "
    "chlorophyll takes up the energy of the sun.",
    "def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n"
    "    return a\n\nprint([fibonacci(n) for n in range(10)])\n",
)


def mean_logprob(core: EngineCore, prompts: list[list[int]]) -> float:
    """Of the prompts' own tokens, read in chunks so that most keys come out of the cache."""
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    for number, prompt in enumerate(prompts):
        core.add_request(EngineCoreRequest(str(number), prompt, params, 0.0))
    found: list[float] = []
    while not core.is_idle:
        for output in core.step().outputs:
            found += [entry.logprobs[0] for entry in output.prompt_logprobs or ()]
    assert len(found) == sum(len(prompt) - 1 for prompt in prompts)
    return sum(found) / len(found)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(default_model_folder() / "tokenizer.json"))
    return [tokenizer.encode(text).ids for text in TEXTS]


@pytest.mark.parametrize("kernels", ["reference", "native"])
def test_half_the_bytes_and_the_same_model(kernels: str, prompts: list[list[int]]) -> None:
    plain = engine_config(default_model_folder(), dtype="bfloat16", kernels=kernels)
    scheduler = dataclasses.replace(plain.scheduler, max_num_batched_tokens=24, max_num_seqs=3)
    cache = dataclasses.replace(plain.cache, kv_cache_memory_bytes=1 << 28)
    results = {}
    for name in ("auto", "fp8"):
        config = dataclasses.replace(
            plain, scheduler=scheduler, cache=dataclasses.replace(cache, cache_dtype=name)
        )
        core = EngineCore(config)
        results[name] = (core.capacity.num_blocks, mean_logprob(core, prompts))
        core.shutdown()
    (blocks, exact), (more_blocks, rounded) = results["auto"], results["fp8"]
    assert more_blocks in (2 * blocks, 2 * blocks + 1)
    assert exact != rounded
    assert abs(exact - rounded) < 0.03  # perplexity changes by less than 3 percent


def test_native_agrees_with_the_reference_on_real_text(prompts: list[list[int]]) -> None:
    """A last digit of the inputs turns some of the 3 bits that fp8 keeps: more than in bf16."""
    folder = default_model_folder()
    twin = loaded_step(folder, "float32", "reference", cache_dtype="fp8")
    native = loaded_step(folder, "bfloat16", "native", cache_dtype="fp8")
    found = compare(forced_logits(native, prompts), forced_logits(twin, prompts), prompts)
    print(found)
    assert found.relative_error < 0.05
    assert found.same_argmax >= 0.95
