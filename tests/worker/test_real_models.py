"""SmolLM2 135M and Gemma 3 270M: conversion and greedy tokens against transformers'.

And with every choice of kernels: the same alone and in chunks, and much as in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from engine.worker.uniproc_executor import UniProcExecutor
from tests.default_model import default_gguf, default_model_folder
from tests.gemma_model import gemma_folder, gemma_gguf
from tests.worker.driver import Driver, engine_config
from tests.worker.greedy import (
    engine_tokens,
    load_oracle,
    margin,
    num_equal,
    oracle_tokens,
    real_prompts,
    start_engine,
)
from tests.worker.kernel_choices import CHOICES, KernelChoice, exact_only

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

NUM_TOKENS = 64
TIE = 1e-4  # logits closer than this are equal in float32: either token is right


@pytest.mark.parametrize("model_folder", [default_model_folder, gemma_folder])
def test_fifty_greedy_texts_equal_generate_in_float32(model_folder: Callable[[], Path]) -> None:
    folder = model_folder()
    prompts = real_prompts(folder)
    assert len(prompts) == 50
    ours = engine_tokens(start_engine(folder, "float32"), prompts, NUM_TOKENS)
    oracle = load_oracle(folder)
    theirs = oracle_tokens(oracle, prompts, NUM_TOKENS)
    margins = {}
    for number, (mine, expected) in enumerate(zip(ours, theirs, strict=True)):
        equal = num_equal(mine, expected)
        if equal < NUM_TOKENS:
            margins[number, equal] = margin(oracle, prompts[number] + expected[:equal])
    assert all(value < TIE for value in margins.values()), f"(prompt, token): margin {margins}"


@exact_only
def test_texts_are_the_same_alone_and_in_chunks_beside_others(choice: KernelChoice) -> None:
    folder = default_model_folder()
    prompts = real_prompts(folder)[::5]
    names = [str(number) for number in range(len(prompts))]
    alone_driver, together = start_driver(folder, choice), start_driver(folder, choice)
    alone = []
    for name, prompt in zip(names, prompts, strict=True):
        alone_driver.add(name, prompt)
        together.add(name, prompt)
        alone += alone_driver.generate([name], 32)
    assert together.generate(names, 32, chunk=13) == alone


def start_driver(folder: Path, choice: KernelChoice) -> Driver:
    flags = {**choice.flags, "num_threads": None}
    executor = UniProcExecutor(engine_config(folder, max_model_len=2048, **flags))
    executor.load_model()
    executor.determine_available_memory()
    executor.initialize_kv_cache(600)
    return Driver(executor, 16)


@pytest.fixture(scope="module")
def first_tokens() -> list[int]:
    """What each of the prompts is followed by in float32."""
    folder = default_model_folder()
    exact = engine_tokens(start_engine(folder, "float32"), real_prompts(folder), 1)
    return [tokens[0] for tokens in exact]


@pytest.mark.parametrize("choice", CHOICES[1:], indirect=True, ids=str)
def test_answers_mostly_begin_as_in_float32(choice: KernelChoice, first_tokens: list[int]) -> None:
    """Rounding turns close calls, and one turn changes all that follows: compare first tokens."""
    folder = default_model_folder()
    core = start_engine(folder, choice.dtype, choice.kernels, choice.quantization)
    ours = engine_tokens(core, real_prompts(folder), 12)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.decode(ours[0]).startswith("The capital of France is Paris.")
    same = sum(mine[0] == right for mine, right in zip(ours, first_tokens, strict=True))
    assert same >= {"none": 46, "int8": 43, "int4": 40}[choice.quantization]


def test_the_smollm_tokenizer_equals_transformers_reading_the_gguf() -> None:
    """Up to non-ASCII digits: SmolLM2 splits every digit, transformers' GGUF reader none."""
    from transformers import AutoTokenizer

    folder, source = default_model_folder(), default_gguf()
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


@pytest.mark.parametrize(
    ("model_folder", "gguf"), [(default_model_folder, default_gguf), (gemma_folder, gemma_gguf)]
)
def test_weights_equal_transformers_reading_the_gguf(
    model_folder: Callable[[], Path], gguf: Callable[[], Path]
) -> None:
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, GgufConfig

    folder, source = model_folder(), gguf()
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


def test_the_gemma_tokenizer_equals_transformers_reading_the_gguf() -> None:
    from transformers import AutoTokenizer

    folder, source = gemma_folder(), gemma_gguf()
    theirs: Any = AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name)
    ours = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = (
        "Hello world", " Hello", "In 2024 there were 12345678 of 3.5%", "don't we'll I'm", "",
        "😀👍🏽🧿 émoji 👩‍👩‍👧‍👦 🇫🇷", "中文文本 123", "русский", "日本語", "한국어",
        "עברית العربية", "e\u0301 é",
        "  two   three    four\t\tfive \n\n\n\n six\r\n", "\n", " " * 40, "\t" * 9, "a" * 99,
        "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n", "<bos><eos><pad>x<unk>",
        "[multimodal]<start_of_image><td>1</td> <unused7>", "▁a▁▁b", "\x00\x01\x7f\ufffd", "𐍈𒀀",
        "def f(x):\n    if x:\n        return '''y'''\n\treturn {'a': [1, 2]}", "½ Ⅷ ² ٣", "<0x41>",
    )  # fmt: skip
    for text in texts:
        ids = ours.encode(text).ids
        assert ids == theirs(text)["input_ids"], text
        assert ids[0] == 2  # <bos>
        plain = ours.encode(text, add_special_tokens=False).ids
        assert plain == theirs(text, add_special_tokens=False)["input_ids"], text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True), text
