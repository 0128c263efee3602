"""Greedy continuations of 50 real prompts: transformers' generate() and this engine, side by side.

Both go on after an end-of-text token, so every continuation has the asked number of tokens.
"""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from engine.args import EngineArgs
from engine.core.engine_core import EngineCore
from engine.env import HostDevice
from engine.messages import EngineCoreRequest
from engine.model_config import ModelConfig
from engine.sampling_params import SamplingParams
from tests.places import ROOT

Tokens = list[list[int]]

QUESTIONS = (
    "What is the capital of France?",
    "Write one sentence about rain.",
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
    "Summarise the story of Cinderella.",
    "Was ist der Unterschied zwischen Wetter und Klima?",
    "¿Cuál es la montaña más alta de España?",
    "Explique-moi la photosynthèse en deux phrases.",
    "日本の首都はどこですか?",
    "请用一句话解释什么是人工智能。",
    "Какая столица России?",
    "What do these mean: 😀 👍🏽 🇫🇷 ?",
    "Fix the grammar:\n\n  he go to   school yesterday\tand   he buyed a book\n",
    "Sort these numbers: 9, 3, 27, -4, 0.5, 1000000",
)
TEXTS = (
    "The history of Rome begins with",
    "Once upon a time, in a village by the sea, there lived",
    "In 1969, Neil Armstrong and Buzz Aldrin",
    "Water boils at 100 degrees Celsius because",
    "The three laws of motion are: 1.",
    "Dear Sir or Madam,\n\nI am writing to you about",
    "Ingredients:\n- 200 g flour\n- 3 eggs\n- ",
    "Breaking news: the central bank has",
    "To be, or not to be, that is the question:\n",
    "Der schnelle braune Fuchs springt über",
    "Il était une fois une petite fille qui",
    "En un lugar de la Mancha, de cuyo nombre",
    "吾輩は猫である。名前は",
    "床前明月光,",
    "Мой дядя самых честных правил,",
    "def fibonacci(n):\n    ",
    "import numpy as np\n\n\ndef softmax(x):\n",
    "#include <stdio.h>\n\nint main(void)\n{\n\tfor (int i = 0; i < 10; i++) {\n\t\t",
    "SELECT name, COUNT(*) AS orders\nFROM customers\nJOIN",
    '{"name": "Ada", "born": 1815, "fields": ["mathematics",',
    "<html>\n  <head>\n    <title>",
    "| city | country | population |\n|---|---|---|\n| Paris | France |",
    "$ git status\nOn branch main\n",
)  # fmt: skip
_LICENCE = ROOT / "LICENSE"
LONG_TOKENS = 256
LONG_TEXT_CHARS = (3600, 5200)  # longer than Gemma's window of 512 tokens


def real_prompts(folder: Path) -> Tokens:
    """50 prompts as token ids: questions in the model's chat format, plain texts, two long ones."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    is_gemma = tokenizer.token_to_id("<start_of_turn>") is not None
    start, end, role = (
        ("<start_of_turn>", "<end_of_turn>", "model")
        if is_gemma
        else ("<|im_start|>", "<|im_end|>", "assistant")
    )
    chats = [f"{start}user\n{question}{end}\n{start}{role}\n" for question in QUESTIONS]
    licence = _LICENCE.read_text(encoding="utf-8")
    long_texts = [licence[:count] for count in LONG_TEXT_CHARS]
    return [tokenizer.encode(text).ids for text in (*chats, *TEXTS, *long_texts)]


def load_oracle(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """transformers' model, which ends at no token."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    model.generation_config.eos_token_id = None
    return model


def oracle_tokens(oracle: Any, prompts: Tokens, num_tokens: int) -> Tokens:
    """generate() on two left-padded batches, the short and the long: alone each reads all weights,
    and in one batch the short ones would be mostly padding.
    """
    results: Tokens = [[] for _ in prompts]
    for is_long in (False, True):
        numbers = [n for n, prompt in enumerate(prompts) if (len(prompt) > LONG_TOKENS) == is_long]
        found = generated(oracle, [prompts[n] for n in numbers], num_tokens)
        for number, tokens in zip(numbers, found, strict=True):
            results[number] = tokens
    return results


def generated(oracle: Any, prompts: Tokens, num_tokens: int) -> Tokens:
    """generate() on one left-padded batch."""
    width = max(len(prompt) for prompt in prompts)
    tokens = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    out = oracle.generate(
        tokens, attention_mask=mask, max_new_tokens=num_tokens, do_sample=False, pad_token_id=0
    )
    found: Tokens = out[:, width:].tolist()
    return found


@torch.inference_mode()
def tokens_without_cache(model: Any, prompt: list[int], num_tokens: int) -> list[int]:
    """The greedy continuation, without transformers' own cache, which loses a token of a sliding
    window after a long prompt.
    """
    tokens = list(prompt)
    for _ in range(num_tokens):
        logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits
        tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def start_engine(
    folder: Path, dtype: str, kernels: str = "reference", quantization: str = "none"
) -> EngineCore:
    """An EngineCore in this process, with a cache for all prompts at once."""
    args = EngineArgs(
        dtype=dtype,
        kernels=kernels,
        quantization=quantization,
        max_model_len=2048,
        max_num_batched_tokens=1024,
        max_num_seqs=64,
        kv_cache_memory_bytes=1 << 30,
    )
    model = ModelConfig.from_folder(folder, folder.name)
    return EngineCore(args.create_engine_config(model, HostDevice("cpu", "cpu", None)))


def engine_tokens(core: EngineCore, prompts: Tokens, num_tokens: int) -> Tokens:
    """All prompts through the scheduler, together."""
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    for number, prompt in enumerate(prompts):
        core.add_request(EngineCoreRequest(str(number), prompt, params, arrival_time=0.0))
    tokens: Tokens = [[] for _ in prompts]
    while not core.is_idle:
        for output in core.step().outputs:
            tokens[int(output.request_id)] += output.new_token_ids
    return tokens


def num_equal(ours: list[int], theirs: list[int]) -> int:
    """How many leading tokens agree."""
    agreeing = takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=True))
    return sum(1 for _ in agreeing)


def margin(oracle: Any, tokens: list[int]) -> float:
    """By how much transformers' best next token leads the second, in logits."""
    with torch.inference_mode():
        logits = oracle(torch.tensor([tokens])).logits[0, -1].float()
    best, second = logits.topk(2).values.tolist()
    return float(best - second)
