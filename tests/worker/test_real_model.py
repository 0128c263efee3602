"""SmolLM2-135M-Instruct through the executor against transformers' generate(), both in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from engine.worker.uniproc_executor import UniProcExecutor
from tests.default_model import default_model_folder
from tests.worker.driver import Driver, engine_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NUM_TOKENS = 32
QUESTIONS = (
    "What is the capital of France?",
    "Write one sentence about rain.",
    "Name three colours.",
    "What is 17 + 25?",
    "Translate 'good morning' into Spanish.",
    "Who wrote Hamlet?",
    "Explain gravity to a child.",
    "List the planets of the solar system.",
    "What does a compiler do?",
    "Give me a recipe for pancakes.",
    "Why is the sky blue?",
    "Write a Python function that reverses a string.",
    "What is photosynthesis?",
    "Tell me a short joke.",
    "How many days has a leap year?",
    "Describe the sea in five words.",
    "What is the opposite of hot?",
    "Summarise the story of Cinderella.",
)
TEXTS = ("The history of Rome begins with", "def fibonacci(n):\n    ")


@pytest.fixture(scope="module")
def folder() -> Path:
    return default_model_folder()


@pytest.fixture(scope="module")
def prompts(folder: Path) -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    chats = [
        f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n" for question in QUESTIONS
    ]
    return [tokenizer.encode(text).ids for text in (*chats, *TEXTS)]


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.generation_config.eos_token_id = None  # both go on after an EOS
    return model


@pytest.fixture(scope="module")
def expected(oracle: Any, prompts: list[list[int]]) -> list[list[int]]:
    """One padded call: alone, 20 prompts would read the weights 640 times."""
    width = max(len(prompt) for prompt in prompts)
    tokens = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    out = oracle.generate(
        tokens, attention_mask=mask, max_new_tokens=NUM_TOKENS, do_sample=False, pad_token_id=0
    )
    results: list[list[int]] = out[:, width:].tolist()
    return results


def start(folder: Path, dtype: str) -> Driver:
    executor = UniProcExecutor(engine_config(folder, dtype=dtype))
    executor.load_model()
    executor.determine_available_memory()
    executor.initialize_kv_cache(400)
    return Driver(executor, 16)


def test_greedy_tokens_equal_generate(
    folder: Path, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    assert len(prompts) == 20
    driver = start(folder, "float32")
    names = [str(n) for n in range(len(prompts))]
    alone = []
    for name, prompt in zip(names, prompts, strict=True):
        driver.add(name, prompt)
        alone += driver.generate([name], NUM_TOKENS)
    assert alone == expected
    driver = start(folder, "float32")
    for name, prompt in zip(names, prompts, strict=True):
        driver.add(name, prompt)
    assert driver.generate(names, NUM_TOKENS, chunk=13) == expected


def test_bfloat16_answers_and_mostly_agrees(
    folder: Path, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    """Rounding turns close calls, and one turn changes all that follows: compare first tokens."""
    driver = start(folder, "bfloat16")
    names = [str(n) for n in range(len(prompts))]
    for name, prompt in zip(names, prompts, strict=True):
        driver.add(name, prompt)
    outputs = driver.generate(names, 12)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.decode(outputs[0]).startswith("The capital of France is Paris.")
    first_equal = sum(ours[0] == theirs[0] for ours, theirs in zip(outputs, expected, strict=True))
    assert first_equal >= 18


def test_the_tokenizer_equals_transformers_reading_the_gguf(folder: Path) -> None:
    """Up to non-ASCII digits: SmolLM2 splits every digit, transformers' GGUF reader none."""
    from transformers import AutoTokenizer

    from tests.default_model import default_gguf

    source = default_gguf()
    theirs = AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name)
    ours = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = (
        "Hello world", "In 2024 there were 12345678 of 3.5%", "😀👍🏽 émoji", "中文文本 123", "",
        " \n\t x",
        "<|im_start|>user\nHi<|im_end|>\n", "don't we'll I'm", "русский", "日本語", "a" * 99,
    )  # fmt: skip
    for text in texts:
        ids = ours.encode(text).ids
        assert ids == theirs(text)["input_ids"], text
        assert ours.decode(ids, skip_special_tokens=False) == text
    assert ours.encode("x Ⅷ").tokens == ["x", "Ġ", "â", "ħ", "§"]


def test_the_weights_equal_transformers_reading_the_gguf(folder: Path) -> None:
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, GgufConfig

    from tests.default_model import default_gguf

    source = default_gguf()
    theirs = AutoModelForCausalLM.from_pretrained(
        str(source.parent),
        gguf_file=source.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
    ).state_dict()
    ours = load_file(folder / "model.safetensors")
    assert theirs.keys() - ours.keys() == {"lm_head.weight"}  # tied
    for name, weight in ours.items():
        assert torch.equal(weight, theirs[name].to(torch.bfloat16)), name
